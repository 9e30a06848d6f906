"""Works off a queue with a program's own functions.

`handlers` is what a worker needs to know about a function; `casque.App` makes it from plain ones. Nothing in here knows
arguments, types or results: a handler takes bytes and gives bytes.
"""
