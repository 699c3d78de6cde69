"""From a planned flow to one that can be run: questions to Spark's analyser about columns, types and plans. Runs no job
but on sample rows."""
