"""Brokers: several may run for one queue; one of them leads and commits, the others stand by and take over.

The bucket is all they have in common. Whether a broker may commit is decided by the journal's conditional writes alone;
what lives here is the impatience around it: when to try to lead, when to show a sign of life, when to give up.
"""
