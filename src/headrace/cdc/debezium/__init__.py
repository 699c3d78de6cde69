"""Debezium's events: read, as a source of changes like a database, and written, for those who read them."""
