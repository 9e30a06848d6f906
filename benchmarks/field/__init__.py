"""Against the field: casque beside what a user would pick instead, each durable, on the same machine and in one run.

`section.py` runs in casque's own environment and starts everything else. `desk.py` is what every side is put through
and needs the standard library only; each `of_*.py` is one side, and runs in an environment that has its packages
(`scripts/field-venv` makes the one of the others). `servers.py` starts PostgreSQL and Redis, which come as wheels.
"""
