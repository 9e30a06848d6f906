"""casque beside Spark: its tables as DataFrames, DataFrames as jobs, its history as a warehouse, executors as workers.

Stands on the queue's public interfaces only, and on PySpark's: nothing here needs a jar. Stores are read and written
through casque's own adapters, on the driver and on the executors alike. Whatever an executor runs is importable there.
"""

from __future__ import annotations
