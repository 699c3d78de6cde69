"""A log to check a program with: the topics of another log as they are, and those that the program would make, made in
a directory beside. Changes nothing in the other log, and does not close it. Reads and writes no records."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import TopicExists, UnknownTopic
from headrace.log.capabilities import Foreign
from headrace.log.embedded.log import EmbeddedLog

if TYPE_CHECKING:
    from headrace.log.contract import Log, Topic


class TrialLog(EmbeddedLog):
    """`there`: the log of the program; None if it has none yet."""

    def __init__(self, beside: Path, there: Log | None) -> None:
        super().__init__(beside)
        self._beside, self._there = EmbeddedLog(beside), there

    def _found(self, name: str) -> Topic | None:
        if self._there is not None:
            with contextlib.suppress(UnknownTopic):
                return self._there.topic(name)
        return None

    def topic(self, name: str) -> Any:
        return self._found(name) or self._beside.topic(name)

    def create_topic(self, name: str, schema: object, *, exist_ok: bool = False, **settings: Any) -> Any:
        found = self._found(name)
        if found is not None and not exist_ok:
            raise TopicExists(topic=name)
        return found or self._beside.create_topic(name, schema, exist_ok=exist_ok, **settings)

    def adopt_topic(self, name: str, schema: object, **settings: Any) -> Any:
        """On Kafka, which keeps of a topic of others only how it is read."""
        return (
            self._there.adopt_topic(name, schema, **settings) if isinstance(self._there, Foreign) else self.topic(name)
        )

    def own_topic(self, name: str, schema: Any, **settings: Any) -> Any:
        self._copy(name)
        return self._beside.own_topic(name, schema, **settings)

    def flow_topic(self, name: str, schema: Any, *, flow: str, **settings: Any) -> Any:
        self._copy(name)
        return self._beside.flow_topic(name, schema, flow=flow, **settings)

    def _copy(self, name: str) -> None:
        """A topic that is there may have to get columns: a copy of it gets them, or says that it cannot."""
        if (found := self._found(name)) is not None:
            self._beside.clone_topic(found)

    def delete_own_topic(self, name: str) -> None:
        """Deletes nothing: the program does, when it runs."""

    def close(self) -> None:
        self._beside.close()
        super().close()
