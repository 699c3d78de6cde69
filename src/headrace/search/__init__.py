"""Stored queries, and the records that they find: from a query's text to its tree, its terms and an index of queries.
Pure: knows no log, no flow and no store."""
