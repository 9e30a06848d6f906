"""Attacks on a broker of our own, on this machine: what hostile callers cost everybody else.

Each module starts a broker on a free port of 127.0.0.1, attacks it, and prints what a bystander noticed. All are
bounded in count and time.
"""
