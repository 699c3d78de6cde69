"""What becomes of stragglers: records that come when their window is over."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.durations import Duration, duration_us, format_duration


@dataclass(frozen=True, slots=True, repr=False)
class Drop:
    """Stragglers are counted, and not folded in."""

    dropped_to: str | None = None
    within_us: int = 0

    def __repr__(self) -> str:
        return f"hr.drop({'' if self.dropped_to is None else f'dropped_to={self.dropped_to!r}'})"


@dataclass(frozen=True, slots=True, repr=False)
class Correct:
    """Stragglers are folded in while the partition is less than `within` past the window's end and grace."""

    within_us: int
    dropped_to: str | None = None

    def __repr__(self) -> str:
        kept = "" if self.dropped_to is None else f", dropped_to={self.dropped_to!r}"
        return f"hr.correct(within={format_duration(self.within_us)!r}{kept})"


Late = Drop | Correct


def drop(dropped_to: str | None = None) -> Drop:
    """Count stragglers and leave them out; with `dropped_to`, keep them in a topic of that name."""
    return Drop(dropped_to)


def correct(within: Duration = "1 hour", dropped_to: str | None = None) -> Correct:
    """Fold stragglers in, as corrections, for so long after the window closed; then drop them."""
    return Correct(duration_us(within, argument="within"), dropped_to)
