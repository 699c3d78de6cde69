"""The log: its contract, and the logs that keep it."""
