"""Postgres as a source of changes: logical replication with pgoutput, which every Postgres has. No extension."""
