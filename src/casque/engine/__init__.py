"""Group commit: many callers, one write in flight.

Decide synchronously, then await the write, then answer. Calls that arrive during a write form the next batch. Nothing
here knows how a commit is stored or what a job's states mean.
"""
