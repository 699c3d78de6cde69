"""One life of a capture's connections, from finding out where the log is to their end: what is the same for every
database. Owns which tables are captured and how they are copied; does not know how a database says what it has: that
are the methods without a body.

After a crash at any point the next life goes on from the journal: with what was to be made in the database, with the
tables whose copying was cut off (in a new snapshot, which knows what it has seen of the stream), or with the stream."""

from __future__ import annotations

import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa

from headrace.cdc.applying import Applying
from headrace.cdc.change import Row
from headrace.cdc.current import difference
from headrace.cdc.journal import Journal, Name, Value
from headrace.cdc.parts import Parts
from headrace.cdc.rows import UPSERT, Shape, loaded_mark, too_large
from headrace.cdc.secret import stored_secret
from headrace.cdc.tables import Chunk, Column, Difference, Known, NotHeld, Seen, SourceTable, difference_of, with_chunk
from headrace.cdc.topics import fit_topic
from headrace.errors import CaptureFailed, HeadraceError, RecordTooLarge, UnknownTopic
from headrace.names import check_name

if TYPE_CHECKING:
    from headrace.cdc.choice import Choice
    from headrace.log.contract import Log

__all__ = ["Again", "Capturing", "Life", "Server"]

logger = logging.getLogger("headrace.cdc")
BATCH_ROWS: Final = 20_000
HEARTBEAT_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 0.1
EMPTY_SECONDS: Final = 1.0
"""So seldom is it noted that transactions have passed in which nothing was ours."""


class Again(Exception):
    """This life of the connections ends, and another one begins: tables are to be read again, or it was stopped."""


class Server(Protocol):
    """An address, and for which capture it is used."""

    @property
    def shown(self) -> str:
        """For messages: without the password."""

    def failed(self, why: str, *, passing: bool = False) -> CaptureFailed: ...

    def translated(self) -> AbstractContextManager[None]:
        """The client's errors as CaptureFailed."""


A = TypeVar("A", bound=Applying)
T = TypeVar("T", bound=SourceTable)


class Life(ABC, Generic[A, T]):
    """`kind`: how the journal calls the database."""

    kind: str

    def __init__(self, capture: Capturing, server: Server, made: Callable[..., A]) -> None:
        self.capture, self.server = capture, server
        self.journal = Journal(capture.log, capture.name)
        self._secret = stored_secret(capture.folder) if capture.choice.mask else b""
        self.applying = made(
            self.journal, capture.folder, shape=self._shape, is_behind=self._is_behind, grow=self._grow
        )
        self._written = 0
        self._written_at = self._beaten_at = 0.0

    # -- what a database says of itself --------------------------------------------------------------

    @abstractmethod
    def set_up(self, before: Sequence[Known]) -> None:
        """Makes in the database what a capture needs, and copies the tables as they are at that place."""

    @abstractmethod
    def is_set_up(self) -> bool: ...

    @abstractmethod
    def check(self) -> None:
        """CaptureGap if the database does not go on where we are."""

    @abstractmethod
    def start(self) -> None:
        """The stream begins behind `applying.end`."""

    @abstractmethod
    def target(self) -> int:
        """All that is committed now is before it."""

    @abstractmethod
    def take(self, seconds: float) -> None:
        """Reads what has come, at most a batch, or waits for so long."""

    @abstractmethod
    def look_after(self) -> None:
        """Every few seconds: a heartbeat, and whether all is as it was."""

    @abstractmethod
    def tables(self, choice: Choice) -> Sequence[T]: ...

    @abstractmethod
    def source(self, known: Known) -> T | None:
        """The table as it is now."""

    @abstractmethod
    def _shape(self, known: Known, columns: Sequence[Column]) -> Shape: ...

    @abstractmethod
    def _is_behind(self, known: Known, key: Row, bound: Sequence[str]) -> bool:
        """Whether a key of the stream comes behind one that is recorded, in the order in which the table is copied."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Seen]:
        """What is copied meanwhile is of one moment."""

    @abstractmethod
    def attempt(self) -> AbstractContextManager[None]:
        """In a snapshot: an error in it does not end the snapshot."""

    def is_connected(self) -> bool:
        """Whether the next table can be copied in this snapshot, after one that could not."""
        return True

    @abstractmethod
    def chunks(self, table: T, after: Sequence[str] | None) -> Iterator[pa.Table]:
        """The rows behind the key, in its order: values as `Shape.readers` read them."""

    @abstractmethod
    def count_rows(self, table: T) -> int: ...

    @abstractmethod
    def key_text(self, value: Any) -> str:
        """A value of a key in a chunk, as it is recorded."""

    def resumes(self, table: T) -> bool:  # noqa: ARG002
        """Whether keys say where copying was cut off; otherwise it begins anew."""
        return True

    def publish(self, tables: Sequence[T]) -> None:
        """The stream has the changes of these tables from now on."""

    def facts_of_database(self) -> dict[Name, Value]:
        """What else is recorded when tables are."""
        return {}

    def told(self) -> None:
        """Something was written, or time has passed: what the database wants to know of it."""

    # -- what tables are ---------------------------------------------------------------------------

    def _grow(self, known: Known, found: Difference, shape: Shape) -> bool:
        self._topic(known, shape)
        source = self.source(known)
        names = {column.name for column in found.added}
        return source is not None and bool(names & source.filled)

    def _topic(self, known: Known, shape: Shape) -> None:
        """The table's topic has these columns: made, or given those that it does not have."""
        if why := fit_topic(self.capture.log, known.topic, shape):
            raise self.server.failed(why)

    def _new(self, source: T, taken: set[str]) -> Known:
        """A table that was not captured before."""
        name = self.capture.choice.topic(self.capture.name, source.schema, source.name)
        known = Known(source.id, source.schema, source.name, name, source.key, source.columns)
        why = source.refused
        if why is None and name in taken:
            why = f"the topic {name!r} is another table's"
        if why is None:
            try:
                check_name(name, argument="table")
                self._topic(known, self._shape(known, source.columns))
            except HeadraceError as error:
                why = str(error)
        return known if why is None else replace(known, state="stopped", why=why)

    # -- beginning ---------------------------------------------------------------------------------

    def begin(self, again: Sequence[str] | None) -> None:
        if not self.is_set_up() or again == ():
            self.set_up(self._known())
        else:
            self.check()
            self._add_new_tables()
            if again is not None:
                self.mark_again(again)
            self._copy_rest()
        for known in self._known():
            if known.state != "stopped":
                self.applying.track(known)
        self.start()
        self._written = self.applying.end

    def _known(self) -> list[Known]:
        return [Known.of(value) for value in self.journal.of("table").values()]

    def _facts(self) -> dict[str, Any]:
        choice = self.capture.choice
        return {
            "database": self.server.shown,
            "tables": choice.tables,
            "mask": dict(choice.mask),
            "source": self.kind,
            **({"debezium": choice.debezium, "schemas": choice.schemas} if choice.debezium else {}),
        }

    def _first(self, place: int, more: Mapping[Name, Value], found: Sequence[tuple[T, Known]]) -> None:
        """Records that the stream begins at this place, with these tables; copies them, in the snapshot that there
        is."""
        names = {known.full_name for _, known in found}
        gone = [each for each in self._known() if each.full_name not in names]
        why = "it is not there any more, or not chosen"
        tables = [*(known for _, known in found), *(replace(each, state="stopped", why=why) for each in gone)]
        self.applying.end = place
        recorded: dict[Name, Value] = {("table", each.full_name): each.value() for each in tables}
        self.journal.write([], recorded | dict(more) | {("place", ""): {"end": place}})
        self._copy(None)

    def _chosen(
        self, before: Sequence[Known], *, captured: frozenset[int | str] = frozenset()
    ) -> list[tuple[T, Known]]:
        """The tables that are chosen, and are not `captured`. One that was captured before is read again, also if it
        was made anew."""
        by_id = {each.id: each for each in before}
        by_name = {each.full_name: each for each in before}
        taken = {each.topic for each in before}
        found = []
        for source in self.tables(self.capture.choice):
            if source.id in captured:
                continue
            earlier = by_id.get(source.id) or by_name.get(source.full_name)
            made = self._new(source, taken) if earlier is None else self._as_it_is(earlier, source)
            taken.add(made.topic)
            found.append((source, made))
        return found

    def _as_it_is(self, known: Known, source: T) -> Known:
        """The table is read again, with the columns that it has now; from the beginning, if it has no topic."""
        try:
            self.capture.log.topic(known.topic)
        except UnknownTopic:
            return self._new(source, set())
        fresh = replace(
            known,
            id=source.id,
            schema=source.schema,
            name=source.name,
            columns=source.columns,
            chunks=(),
            after=None,
        )
        try:
            if source.refused is not None:
                raise self.server.failed(source.refused)
            if set(source.key) != set(known.key):
                raise self.server.failed(f"the key is now ({', '.join(source.key)}): delete topic {known.topic!r}")
            self._topic(fresh, self._shape(fresh, source.columns))
        except HeadraceError as error:
            return replace(known, state="stopped", why=str(error))
        return replace(fresh, state="reading again", why="", epoch=known.epoch + 1)

    def mark_again(self, names: Sequence[str]) -> None:
        """These tables are to be read again."""
        by_name = {each.full_name: each for each in self._known()}
        changed = {}
        for name in names:
            full = ".".join(self.capture.choice.full(name))
            if full not in by_name:
                raise self.server.failed(f"table {full!r} is not captured. There are: {', '.join(by_name) or 'none'}")
            source = self.source(by_name[full])
            if source is None:
                raise self.server.failed(f"table {full!r} is not in the database any more")
            marked = self._as_it_is(by_name[full], source)
            if marked.state == "stopped":
                raise self.server.failed(f"table {full!r} cannot be captured: {marked.why}")
            changed["table", full] = marked.value()
            self.publish([source])
        self.journal.write([], {**changed, **self.facts_of_database()})

    def _add_new_tables(self) -> None:
        """Tables that are chosen, and were made since."""
        known = self._known()
        added = self._chosen(known, captured=frozenset(each.id for each in known))
        facts = json.loads(json.dumps(self._facts()))
        if not added and self.journal.states.get(("capture", "")) == facts:
            return
        self.publish([source for source, each in added if each.state != "stopped"])
        recorded = {("table", each.full_name): each.value() for _, each in added}
        self.journal.write([], {**recorded, **self.facts_of_database(), ("capture", ""): facts})

    # -- copying -----------------------------------------------------------------------------------

    def _copy_rest(self) -> None:
        """Tables whose copying was cut off, that are new, or that are to be read again: in a snapshot of their own."""
        if any(each.state in ("copying", "reading again") for each in self._known()):
            with self.snapshot() as seen:
                self._copy(seen)

    def _copy(self, seen: Seen | None) -> None:
        for known in self._known():
            if known.state not in ("copying", "reading again"):
                continue
            source = self.source(known)
            masks = self.capture.choice.masks(known.schema, known.name)
            if (
                source is not None
                and known.state == "copying"
                and known.after is not None
                and (set(known.key) & {*masks} or not self.resumes(source))
            ):
                known = self._as_it_is(known, source)  # where it was cut off is a key that was not stored
            try:
                if source is None:
                    raise self.server.failed("it is gone")
                if found := difference_of(known, source.columns, source.key):
                    if not found.is_growth:
                        raise self.server.failed(f"it changed before it was read: {found}")
                    if seen is None:  # the stream will say so
                        source = source.only(known.columns)
                    else:
                        known = self._as_it_is(known, source)
                with self.attempt(), self.server.translated():
                    self._read(known, source, seen)
            except (NotHeld, CaptureFailed, RecordTooLarge) as error:
                if isinstance(error, CaptureFailed) and error.passing:
                    raise
                if isinstance(error, RecordTooLarge):
                    why = too_large(error)
                else:
                    why = error.why if isinstance(error, CaptureFailed) else str(error)
                logger.warning("capture %s: table %s is stopped: %s", self.capture.name, known.full_name, why)
                self.journal.write([], {("table", known.full_name): replace(known, state="stopped", why=why).value()})
                if not self.is_connected():
                    raise Again from None

    def _read(self, known: Known, source: T, seen: Seen | None) -> None:
        shape = self._shape(known, source.columns)
        if known.state == "reading again":
            topic = self.capture.log.topic(known.topic)
            told = (self._rows(shape, texts) for texts in self.chunks(source, None))
            live = replace(known, state="live", chunks=(Chunk(None, seen),), after=None)
            parts = Parts(self.capture.folder, self._read_again(known, source, difference(topic, shape, told)))
            self.journal.write(parts, {("table", known.full_name): live.value()})
            return
        begun_now = known.after is None
        counted = self.count_rows(source) if begun_now else None
        known = with_chunk(known, Chunk(None, seen))
        hides_key = set(known.key) & {*self.capture.choice.masks(known.schema, known.name)}
        for texts in self.chunks(source, known.after):
            last = tuple(self.key_text(texts[name][-1].as_py()) for name in known.key)
            after = tuple("" for _ in last) if hides_key else last
            known = replace(known, after=after, copied=known.copied + texts.num_rows)
            written = [(known.topic, self._rows(shape, texts))]
            if (echo := self.applying.echo) is not None:
                written.append(echo.copied(known, source.columns, texts, self.applying.end))
            self.journal.write(written, {("table", known.full_name): known.value()})
            if self.capture.stopping():  # the next start goes on behind this chunk
                raise Again
        if counted is not None and counted != known.copied:
            raise self.server.failed(
                f"{known.copied} rows were copied, and count(*) in the same snapshot says {counted}"
            )
        done = replace(known, state="live", after=None, loaded=seen is None and len(known.chunks) == 1)
        if done.loaded:
            done = replace(done, chunks=())
        mark = [(known.topic, loaded_mark(shape))] if done.loaded else []
        self.journal.write(mark, {("table", known.full_name): done.value()})

    def _read_again(self, known: Known, source: T, parts: Iterable[pa.Table]) -> Iterator[tuple[str, pa.Table]]:
        for part in parts:
            yield known.topic, part
            if (echo := self.applying.echo) is not None:
                yield echo.read_again(known, source.columns, part)

    @staticmethod
    def _rows(shape: Shape, texts: pa.Table) -> pa.Table:
        columns = [read(texts[name].combine_chunks()) for name, read in zip(shape.names, shape.readers, strict=True)]
        return pa.Table.from_arrays([*columns, pa.array([UPSERT] * texts.num_rows)], schema=shape.schema)

    # -- the stream --------------------------------------------------------------------------------

    def step(self, seconds: float) -> None:
        """Takes what has come, at most a batch, or waits for so long, and writes what is whole."""
        self.take(seconds)
        said, self.applying.signals = self.applying.signals, []
        asked = [name for content in said for name in self._asked(content)]
        passed = self.applying.end > self._written and time.monotonic() - self._written_at > EMPTY_SECONDS
        if self.applying.rows or passed or asked:  # what was asked is behind us then, and not heard twice
            self._write()
        self.told()
        if time.monotonic() - self._beaten_at >= self.capture.heartbeat_seconds:
            self._beaten_at = time.monotonic()
            self.look_after()
        if (asked and self._marked_again(asked)) or self._is_to_read_again():
            raise Again

    def _marked_again(self, asked: Sequence[str]) -> bool:
        """Whether these tables, for which others have asked, are to be read again now."""
        try:
            self.mark_again(asked)
        except CaptureFailed as error:
            if error.passing:
                raise
            logger.warning("%s. Nothing is read again", error)  # what others ask ends no capture
            return False
        return True

    def _asked(self, content: bytes) -> Sequence[str]:  # noqa: ARG002
        """Tables that another process asks to read again."""
        return ()

    def _write(self) -> None:
        with self.server.translated():
            self.applying.write()
        self._written, self._written_at = self.applying.end, time.monotonic()

    def _is_to_read_again(self) -> bool:
        return any(table.known.state == "reading again" for table in self.applying.tables.values())

    def finish(self) -> None:
        """What is read is written, and told."""
        if self.applying.end > self._written or self.applying.rows:
            self._write()
            if self._is_to_read_again():
                raise Again


class Capturing(ABC):
    """One capture. `folder`: in the home, for large transactions and the secret of masks."""

    def __init__(
        self, log: Log, name: str, choice: Choice, folder: Path, *, heartbeat_seconds: float = HEARTBEAT_SECONDS
    ) -> None:
        self.log, self.name, self.choice, self.folder = log, name, choice, folder
        self.heartbeat_seconds = heartbeat_seconds
        self.stopping: Callable[[], bool] = lambda: False
        self.life: Life[Any, Any] | None = None

    @abstractmethod
    def connected(self) -> AbstractContextManager[Life[Any, Any]]: ...

    def uninstall(self) -> list[str]:
        """Nothing of it is in the database."""
        return []

    @contextmanager
    def living(self, *, again: Sequence[str] | None = None) -> Iterator[Life[Any, Any]]:
        """Connected and set up; copies what is to be copied. `again`: tables that are read again, () for all: the way
        on after a CaptureGap."""
        with self.connected() as life:
            self.life = life
            with life.server.translated():
                life.begin(again)
            yield life

    def run(self, stopping: Callable[[], bool]) -> None:
        """Until `stopping()`, which is not asked before there is a connection."""
        self.stopping, again = stopping, True
        while again:
            try:
                with self.living() as life:
                    while not stopping():
                        life.step(WAIT_SECONDS)
                    life.finish()
                again = False
            except Again:
                again = not stopping()

    def drain(self, *, again: Sequence[str] | None = None) -> int:
        """All that is committed in the database now; how many changes."""
        self.stopping, done = lambda: False, 0
        while True:
            try:
                with self.living(again=again) as life:
                    again = None
                    target = life.target()
                    while life.applying.end < target:
                        life.step(WAIT_SECONDS)
                    life.finish()
                    return done + int(life.applying.changes)
            except Again:
                again = None  # what is to be read again is recorded
                done += 0 if self.life is None else self.life.applying.changes
