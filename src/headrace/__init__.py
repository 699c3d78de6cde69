"""headrace: a partitioned, durable, typed log in a directory, and streams and views on it."""
