"""Who reads a topic together with others: groups, and queues."""
