"""Prints Arrow batches to standard output, in every format. Owns the order: a batch is flushed before the next one is
read."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
import pyarrow as pa

from headrace.cli.output import PAGE_ROWS, StreamedTable, csv_lines, json_harmless, on_terminal, stdout_bytes
from headrace.formats.lines import json_lines_of
from headrace.rows import to_rows

__all__ = ["BatchPrinter"]


class BatchPrinter:
    def __init__(self, schema: pa.Schema, kind: str) -> None:
        self._schema = schema
        self._out, self._terminal = stdout_bytes(), on_terminal()
        ways: dict[str, Callable[[], Callable[[pa.RecordBatch], None]]] = {
            "json": lambda: self._json,
            "csv": self._csv,
            "table": self._table,
            "arrow": self._arrow,
        }
        self.print = ways[kind]()

    def print_all(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            self.print(batch)

    def _json(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            text = b"\n".join(json_lines_of(batch)) + b"\n"
            self._out.write(json_harmless(text) if self._terminal else text)
            self._out.flush()

    def _csv(self) -> Callable[[pa.RecordBatch], None]:
        csv_lines([], self._schema.names)
        return lambda batch: csv_lines(to_rows(batch), self._schema.names, header=False)

    def _table(self) -> Callable[[pa.RecordBatch], None]:
        table = StreamedTable(self._schema.names)

        def write(batch: pa.RecordBatch) -> None:
            rows = to_rows(batch)
            for first in range(0, len(rows), PAGE_ROWS):
                table.print(rows[first : first + PAGE_ROWS])

        return write

    def _arrow(self) -> Callable[[pa.RecordBatch], None]:
        writer = pa.ipc.new_stream(self._out, self._schema)
        click.get_current_context().call_on_close(writer.close)

        def write(batch: pa.RecordBatch) -> None:
            writer.write_batch(batch)
            self._out.flush()

        return write
