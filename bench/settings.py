"""How much is measured, where, and beside whom. Owns the sizes of a full and of a quick run."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.payload import Payload
from bench.peers import Unavailable
from bench.table import Measured, Peer
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.open import open_log


@dataclass
class Run:
    payload: Payload
    folder: Path  # of this run, on the disk that is measured; removed afterwards
    results: Path
    quick: bool
    peers: bool
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def repeat(self) -> int:
        return 1 if self.quick else 5

    @property
    def warm_ups(self) -> int:
        """Runs of a flow that come before those that count."""
        return 0 if self.quick else 1

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def fresh(self, name: str) -> Path:
        """A path nobody has used."""
        return self.folder / f"{name}-{next(self._numbers)}"

    @contextlib.contextmanager
    def log(self) -> Iterator[EmbeddedLog]:
        with open_log(self.fresh("log")) as log:
            yield log

    def peer(self, name: str, settings: str, measure: Callable[[], Measured]) -> Peer:
        """Measures a peer; when it cannot be had, the row says why."""
        if not self.peers:
            return Peer(name, settings, Measured(None))
        try:
            return Peer(name, settings, measure())
        except (Unavailable, ImportError, OSError) as error:
            return Peer(name, settings, Measured(None, why=str(error)))
