"""Where commits are stored: load the state, append a commit, follow others' commits.

One small port. The journal finds out whether a write whose answer was lost has landed; it never decides what a batch
contains.
"""
