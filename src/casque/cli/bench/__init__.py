"""A quick measurement of a queue on your own bucket, and `casque bench`, which shows it.

It works in a directory of its own beside other objects, and removes it. The project's own benchmarks, with other
queues beside casque, are in benchmarks/.
"""
