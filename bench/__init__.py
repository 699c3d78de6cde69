"""What headrace's log costs, measured, with peers beside it on the same payload. Run with `python -m bench`.

Nothing here is part of the product. Every number is a median over repetitions; rows where a peer wins stay in."""
