"""Where a flow's rows go: topics that it makes, and the outbox on its way there."""
