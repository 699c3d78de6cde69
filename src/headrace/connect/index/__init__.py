"""A full-text index over the rows of a topic, in a SQLite file: `spec` describes it, `file` has its tables, `writing`
keeps it up, `words` reads what people type, `searching` finds, `audit` compares it with the log."""
