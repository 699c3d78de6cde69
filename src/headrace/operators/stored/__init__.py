"""Search with stored queries: the step of a program, its operator, and the versions of queries."""
