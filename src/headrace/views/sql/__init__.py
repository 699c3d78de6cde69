"""What view stores in SQL databases share: a flow's own rows, commits, versions, watchers, reading."""
