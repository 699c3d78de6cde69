"""Arrow and numpy over record batches: judging, choosing, grouping, folding. The same code runs in Spark's workers and
on the driver. Knows no Spark, no session and no flow."""
