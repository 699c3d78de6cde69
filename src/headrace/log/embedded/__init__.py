"""The embedded log: a directory with Arrow frames in data files and one SQLite file that says which exist."""
