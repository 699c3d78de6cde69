"""Between a batch and its commit: what operators, and transforms behind them, make of it."""
