"""`casque spark`: check Spark, replay finished jobs with it, and run jobs on its executors.

Nothing here imports PySpark at module level: every other command works without it.
"""
