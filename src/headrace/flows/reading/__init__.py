"""Ranges of offsets: planned, read in workers and on the driver, divided where a record fails."""
