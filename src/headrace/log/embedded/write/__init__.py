"""From rows to frames: appends, producers, and what could not be appended."""
