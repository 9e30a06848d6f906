"""Where a commit goes: load the state, append a commit, follow what others appended.

One small port. The journal knows how to find out whether a write whose answer was lost has landed; it never decides
what a batch contains.
"""
