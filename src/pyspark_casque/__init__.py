"""Lets Spark find the data source `casque` by itself: it looks for packages that are called `pyspark_*`.

One that fails to import would hide everybody's Python data sources, so nothing here may raise.
"""
