"""The chats of the demo's shop once more, put together by hand from the log in plain Python. Pure, as `recount` is.
What the view must be is what this says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from headrace.demo.recount import WITHIN
from headrace.demo.rows import LEDGER

GAP = timedelta(seconds=30)

Key = tuple[str, datetime]


@dataclass(slots=True)
class Chats:
    """`rows`: customer and start -> end, messages, corrections."""

    rows: dict[Key, tuple[datetime, int, int]] = field(default_factory=dict)
    ledger: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LEDGER, 0))

    @property
    def records(self) -> int:
        return sum(self.ledger.values())

    def differing(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Rows that are not what was put together, each as a sentence."""
        found = {
            (row["customer"], row["window_start"]): (row["window_end"], row["messages"], row["_corrections"])
            for row in rows
        }
        return [
            f"{key[0]} from {key[1]:%H:%M:%S}: the view has {found.get(key)}, the log says {self.rows.get(key)}"
            for key in sorted(self.rows.keys() | found.keys())
            if self.rows.get(key) != found.get(key)
        ]


def chats_of(messages: Iterable[Mapping[str, Any]]) -> Chats:
    """Of the records of the one partition, in their order."""
    out = Chats()
    counted: dict[str, list[tuple[datetime, bool]]] = {}
    progress: datetime | None = None
    for message in messages:
        at = message["at"]
        late = progress is not None and progress >= at + GAP
        if progress is not None and progress >= at + GAP + WITHIN:
            out.ledger["dropped"] += 1
        else:
            out.ledger["corrected" if late else "on_time"] += 1
            counted.setdefault(message["customer"], []).append((at, late))
        progress = at if progress is None else max(progress, at)
    for customer, written in counted.items():
        _put_together(out, customer, sorted(written))
    return out


def _put_together(out: Chats, customer: str, written: list[tuple[datetime, bool]]) -> None:
    begin = 0
    for end in range(1, len(written) + 1):
        if end == len(written) or written[end][0] - written[end - 1][0] > GAP:
            chat = written[begin:end]
            out.rows[customer, chat[0][0]] = (chat[-1][0], len(chat), sum(late for _, late in chat))
            begin = end
