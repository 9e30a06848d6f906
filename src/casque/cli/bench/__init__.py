"""A quick measurement of a queue on somebody's own bucket, and `casque bench`, which shows it.

It works in a directory of its own beside whatever is there, and removes it. The project's own benchmarks, with other
queues beside casque, are in benchmarks/.
"""
