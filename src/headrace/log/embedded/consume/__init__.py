"""Who has read what: groups, queues, and flows as readers."""
