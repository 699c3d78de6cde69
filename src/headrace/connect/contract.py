"""What a sink is to those who run it: a contract. Owns no behaviour.

A sink reads one topic. How far it is, its place, is by partition the next offset that it does not have. Where the place
is kept decides what is promised: in one transaction with what the sink writes, each record has its effect once; beside
it, the last batch may come again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.contract import Log, Topic

__all__ = ["Deliver", "Delivery", "Place", "Sink"]

Place = dict[int, int]
Deliver = Callable[["pa.Table", str], Any]
"""A function of a user: rows, and the key by which it knows a batch that comes again."""


class Delivery(Protocol):
    """A sink that is open, over its topic. Used by one thread at a time."""

    @property
    def topic(self) -> Topic: ...

    @property
    def place(self) -> Place: ...

    def step(self) -> int:
        """Takes some of what the topic has now; how many records. 0: there was nothing more."""

    def close(self) -> None: ...


@runtime_checkable
class Sink(Protocol):
    """What a user describes with `hr.search_index(…)`: a value. `over` opens it; makes what is not there yet."""

    @property
    def kind(self) -> str: ...

    def facts(self) -> dict[str, Any]:
        """What is recorded of it, so that commands and the page find it without the program."""

    def over(self, name: str, log: Log, topic: Topic, home: Path, key: tuple[str, ...] | None) -> Delivery:
        """`key`: the columns that tell the topic's rows apart, where the topic does not say so itself."""
