"""A message of a queue in a `with` block, in any log. Owns when that acknowledges it, and what is said of an error.
Knows no queue."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from headrace.errors import LeaseExpired

__all__ = ["Answering", "one_line"]


class Answering:
    """`with message:` acknowledges it, or rejects it if the block raises; unless the block has answered it."""

    __slots__ = ()

    answered: bool
    """Whether this delivery was acknowledged, rejected or given back, by this very object."""

    def ack(self) -> None:
        raise NotImplementedError

    def nack(self, error: str = "") -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.answered:
            return
        if error is None:
            self.ack()
            return
        try:
            self.nack(one_line(error))
        except LeaseExpired:  # somebody else has it by now; what the block raised says more
            return


def one_line(error: BaseException) -> str:
    """The last line of a traceback."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
