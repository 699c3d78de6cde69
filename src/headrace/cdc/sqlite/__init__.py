"""Capturing SQLite: triggers write what is done to a table into an outbox beside it, in the writer's transaction."""
