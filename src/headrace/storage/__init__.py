"""Files, shared by everything that keeps some: how bytes reach the disk, whose turn it is to write, and
space for when there is none."""
