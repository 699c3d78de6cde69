"""Runs one of these programs over generated events and shows the first of its results:

python examples/nexmark/q5.py [EVENTS]"""

import sys
from collections.abc import Callable
from typing import Any

import events
import pyarrow as pa

import headrace as hr


def run(flow: Callable[[hr.App], Any], rows: int = 10, load: Callable[[hr.App], None] | None = None) -> None:
    """`load`: what has to be there before the events."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with hr.App("nexmark", home=":temp:") as app:
        if load is not None:
            load(app)
        events.load(app, count)
        made = flow(app)
        app.drain(close=True)
        result = made.to_arrow() if isinstance(made, hr.View) else pa.Table.from_batches(made.batches())
        print(result.slice(0, rows).to_pandas().to_string(index=False))
        print(f"{result.num_rows} rows of {count} events")
