"""The story of a view, told by running it: `headrace demo`, `make demo`. Owns the plot and its processes, which are
gone when it ends, however it ends. What it says is measured, not claimed: numbers are read from log, view and ledger,
and a promise that is not kept ends it with exit code 1."""
