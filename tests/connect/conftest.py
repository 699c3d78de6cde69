"""A log with a topic of rows, a model of what is in it, and the index over it. No Spark."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connect.index.audit import audit
from headrace.connect.index.searching import Found, Searching
from headrace.connect.index.spec import SearchIndex, search_index
from headrace.connect.index.writing import Indexing
from headrace.log.contract import Log, Topic
from tests.cli.conftest import shell
from tests.faults.conftest import children

__all__ = ["Indexed", "children", "shell"]

SCHEMA = "_op string, id int, name string, about string"
WORDS = ("heat", "pump", "oil", "stove", "Ärger", "näher", "<b>", "zoë", "\x00", "🙂", "OR")


class Indexed:
    def __init__(self, home: Path, partitions: int = 2) -> None:
        self.home = home
        self.log: Log = hr.open_log(home)
        self.topic: Topic = self.log.create_topic("users", SCHEMA, key="id", partitions=partitions, exist_ok=True)
        self.index: SearchIndex = search_index("users.db", text=["name", "about"])
        self.rows: dict[int, dict[str, Any]] = {}

    @property
    def file(self) -> Path:
        return self.index.file(self.home)

    def put(self, id: int, name: str | None, about: str | None = None) -> None:
        self.topic.append({"_op": "upsert", "id": id, "name": name, "about": about})
        self.rows[id] = {n: v for n, v in (("id", id), ("name", name), ("about", about)) if v is not None}

    def delete(self, id: int) -> None:
        self.topic.append({"_op": "delete", "id": id})
        self.rows.pop(id, None)

    def churn(self, dice: random.Random, times: int) -> None:
        """Random changes; several in a transaction."""
        for _ in range(times):
            rows = []
            for _ in range(dice.choice((1, 1, 3, 40))):
                id = dice.randrange(60)
                if dice.random() < 0.3:
                    rows.append({"_op": "delete", "id": id, "name": None, "about": None})
                    self.rows.pop(id, None)
                else:
                    name = dice.choice((None, *WORDS))
                    about = " ".join(dice.choices(WORDS, k=dice.randrange(5)))
                    rows.append({"_op": "upsert", "id": id, "name": name, "about": about})
                    self.rows[id] = {n: v for n, v in (("id", id), ("name", name), ("about", about)) if v is not None}
            self.topic.append(rows)

    @contextlib.contextmanager
    def writing(self, index: SearchIndex | None = None, *, anew: bool = False) -> Iterator[Indexing]:
        index = index or self.index
        opened = index.over("users", self.log, self.topic, self.home, None, anew=anew)
        with contextlib.closing(opened):
            yield opened

    def drain(self, index: SearchIndex | None = None) -> int:
        total = 0
        with self.writing(index) as opened:
            while taken := opened.step():
                total += taken
        return total

    def search(self, query: str, **more: Any) -> Found:
        with Searching(self.file) as found:
            return found.search(query, **more)

    def found(self, query: str) -> list[int]:
        return sorted(hit.row["id"] for hit in self.search(query, limit=100).hits)

    def same(self) -> None:
        """The index has what the topic says: by its own audit, and by the model."""
        found = audit(self.file, self.topic)
        assert (found.differences, found.words, found.keys) == ([], "", len(self.rows))
        for word in ("heat", "oil", "arger", "zoe"):
            said = {"arger": "Ärger", "zoe": "zoë"}.get(word, word)
            wanted = [id for id, row in self.rows.items() if said in f"{row.get('name')} {row.get('about')}".split()]
            assert self.found(word) == sorted(wanted), word


@pytest.fixture
def indexed(tmp_path: Path) -> Iterator[Indexed]:
    made = Indexed(tmp_path / "home")
    yield made
    made.log.close()
