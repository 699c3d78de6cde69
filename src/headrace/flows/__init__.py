"""Flows: streams into views and topics, on Spark. The only layer that imports pyspark."""
