"""File formats: files and pipes to rows, rows to lines, and schemas read off data. Knows schemas, no log."""
