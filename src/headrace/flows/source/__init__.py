"""The log as a data source of plain Spark: `spark.read.format("headrace")`."""
