"""Edges: what goes from topics to other systems. `contract` is what a sink is; each kind has a module or folder."""
