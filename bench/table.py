"""Results: rows of one table, as text and as JSON. Owns how numbers are shown, not how they are made."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter


@dataclass(frozen=True)
class Measured:
    """A number, or why there is none."""

    median: float | None
    best: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Peer:
    name: str
    settings: str
    value: Measured


@dataclass(frozen=True)
class Row:
    section: str
    what: str
    unit: str
    ours: Measured
    target: float | None = None  # at least that much; at most, when smaller is better
    smaller_is_better: bool = False
    peers: Sequence[Peer] = field(default_factory=tuple)
    others: float | None = None  # the part of all processors that other programs used while this was measured

    @property
    def reached(self) -> str:
        """Whether the target is: by the median, only by the best repetition, or not at all."""
        if self.target is None or self.ours.median is None:
            return ""
        return "yes" if self._reaches(self.ours.median) else "best only" if self._reaches(self.ours.best) else "NO"

    def _reaches(self, value: float | None) -> bool:
        assert self.target is not None
        return value is not None and (value <= self.target if self.smaller_is_better else value >= self.target)

    def ratio(self, peer: Peer) -> float | None:
        """How many times better ours is; below 1 the peer wins."""
        if not self.ours.median or not peer.value.median:
            return None
        quotient = self.ours.median / peer.value.median
        return 1 / quotient if self.smaller_is_better else quotient


def rate(count: int, work: Callable[[], object], repeat: int) -> Measured:
    """How many a second: `work` handles `count` of them."""
    rates = []
    for _ in range(repeat):
        began = perf_counter()
        work()
        rates.append(count / (perf_counter() - began))
    return of_rates(rates)


def of_rates(rates: Sequence[float]) -> Measured:
    """For what is better when larger."""
    return Measured(statistics.median(rates), max(rates))


def of_samples(samples: Sequence[float]) -> Measured:
    """For what is better when smaller."""
    return Measured(statistics.median(samples), min(samples))


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    for limit, unit in ((1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / limit if unit == ' M' else value / 1e3:.3g}{unit}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


HEAD = ("what", "unit", "median", "best", "target", "reached", "others", "peer", "peer's", "ours/peer")


def text(rows: Sequence[Row]) -> str:
    """The table, in Markdown: it is pasted into the documentation as it is."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        target = "" if row.target is None else f"{'<' if row.smaller_is_better else '≥'} {shown(row.target)}"
        median = row.ours.why if row.ours.median is None else shown(row.ours.median)
        first = (row.what, row.unit, median, shown(row.ours.best), target, row.reached, _percent(row.others))
        shown_peers = [peer for peer in row.peers if peer.value != Measured(None)]  # the others were not asked for
        for number, peer in enumerate(shown_peers or [None]):
            lines.append((*(first if number == 0 else ("",) * 7), *_peer(row, peer)))
    widths = [max(len(line[i]) for line in [HEAD, *lines]) for i in range(len(HEAD))]
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in [HEAD, rule, *lines]
    )


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.0f} %"


def _peer(row: Row, peer: Peer | None) -> tuple[str, str, str]:
    if peer is None:
        return "", "", ""
    name = f"{peer.name}, {peer.settings}" if peer.settings else peer.name
    if peer.value.median is None:
        return name, f"none: {peer.value.why}", ""
    ratio = row.ratio(peer)
    return name, shown(peer.value.median), "" if ratio is None else f"{ratio:.3g}x"
