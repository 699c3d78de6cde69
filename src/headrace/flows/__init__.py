"""Flows: micro-batches over ranges of the log, on Spark. The only layer that imports pyspark."""
