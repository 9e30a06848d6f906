"""The live view of a queue: a board that events keep up to date, where they come from, and how it is drawn.

Nothing here writes to a queue. A board reads all jobs once and follows the events from then on, so that a look costs
the same however deep the queue is.
"""
