"""Brokers: several may run for one queue; one of them leads and commits, the others stand by and take over.

They share only the bucket. The journal's conditional writes alone decide whether a broker may commit; this package
decides when to try to lead, when to send a heartbeat, and when to give up.
"""
