"""From the events of a binlog to what happened to tables. Owns where in the log we are, which table a number in it is,
and what is done about changes that the log does not have as rows. Knows no connection.

Rows are decoded when they come; a transaction is in the log only when all of it was read (`in_transaction`). A binlog
has no transactions that are rolled back, so nothing has to be undone."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from headrace.cdc import applying
from headrace.cdc.change import Change, Place, Row, Transaction, parts_of
from headrace.cdc.mysql.binlog import events as e
from headrace.cdc.mysql.binlog.images import Value, decoder_of, rows_of
from headrace.cdc.mysql.catalog import Cascade, MySqlTable
from headrace.cdc.mysql.statements import is_data, is_definition, mentions, rewrites, truncated, without_texts
from headrace.cdc.mysql.types import kind_of
from headrace.cdc.tables import Known, Tracked, difference_of

__all__ = ["Applying", "file_of", "place_of", "position_of"]

logger = logging.getLogger("headrace.cdc")
_BITS: Final = 40
"""Of a place: the number of the file, and then these bits of the position in it."""


def place_of(file: str, position: int) -> int:
    return int(file.rpartition(".")[2]) << _BITS | position


def position_of(place: int) -> int:
    return place & (1 << _BITS) - 1


def file_of(base: str, place: int) -> str:
    """`base`: the name of any file of that log."""
    name, _, number = base.rpartition(".")
    return f"{name}.{place >> _BITS:0{len(number)}d}"


class Layout:
    """How rows of a number become rows of a table. Without decoders they are nobody's."""

    def __init__(self, event: e.TableMap, table: Tracked | None = None, decoders: Sequence[Value] = ()) -> None:
        self.number, self.full_name = event.number, f"{event.schema}.{event.table}"
        self.table, self.decoders = table, decoders
        self.places = {column.name: at for at, column in enumerate(event.columns)}
        wire, columns = event.columns, table.known.columns if table is not None else ()
        # -1 where an image has none: a column that was added later
        self._take = [self.places.get(column.name, -1) for column in columns]
        self._same = self._take == list(range(len(wire)))

    def row(self, image: Row) -> Row:
        return image if self._same else tuple([None if at < 0 else image[at] for at in self._take])


class Applying(applying.Applying):
    """`source(known)`: the table as it is now. `encoding`: of a collation's number. `find_cascades`: foreign keys by
    which the database changes rows itself."""

    source: Callable[[Known], MySqlTable | None]
    encoding: Callable[[int], str]
    refused: Callable[[str], Exception]
    gap: Callable[[str], Exception]
    find_cascades: Callable[[], Mapping[str, Sequence[Cascade]]]

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.where: dict[str, Any] = dict(self.journal.states.get(("log", ""), {}))
        self.in_transaction = False
        self._file = ""
        self._checksum: bool | None = None
        self._mariadb = True
        self._layouts: dict[int, Layout] = {}
        self._seen: dict[bytes, Layout] = {}
        """By table map: each transaction says again what its tables look like."""
        self._group = e.Begin()
        self._prepared: set[str] = set()
        self._number = 0
        self.server, self.row, self._begins = 0, 0, 0
        """Of the change that is read: which server made it, which row of its event it is, where the event begins."""
        self.cascades: Mapping[str, Sequence[Cascade]] = {}

    @property
    def is_greeted(self) -> bool:
        """The server has said which log it is."""
        return self._checksum is not None

    # -- events ------------------------------------------------------------------------------------

    def read(self, data: bytes) -> None:
        """Takes an event."""
        header = e.header_of(data)
        if header.kind == e.TABLE_MAP and (layout := self._seen.get(data[e.HEADER_BYTES : -e.CRC_BYTES])) is not None:
            self._layouts[layout.number] = layout
            return
        if header.kind == e.FORMAT:
            self._file_begins(header)
            self._checksum, self._mariadb = e.checksummed(data), e.is_mariadb(data)
        checksum = e.ends_with_checksum(data) if self._checksum is None else self._checksum
        event = e.decode(data, header, checksum=checksum, mariadb=self._mariadb)
        self.server, self._begins = header.server, self._place(header) - header.size if self._file else 0
        match event:
            case e.Rotate():
                self._file = event.file
                if not self.in_transaction:
                    self.end = max(self.end, place_of(event.file, event.position))
                return
            case e.TableMap():
                layout = self._layouts[event.number] = self._layout(event)
                if checksum:
                    self._seen[data[e.HEADER_BYTES : -e.CRC_BYTES]] = layout
            case e.Rows():
                self._images(event, self._now(header))
            case e.Begin():
                self._begin(event)
            case e.Commit():
                self._ended(header, event.number)
            case e.Prepared():
                if event.committed:
                    self._read_again(self._prepared, "an XA transaction committed", self._now(header))
                self._ended(header, 0)
            case e.Statement():
                self._statement(event, header)
            case e.Refused():
                raise self.refused(event.why)
            case None:
                pass
        if header.end and self._file and not self.in_transaction:
            self.end = max(self.end, self._place(header))

    def _place(self, header: e.Header) -> int:
        """Positions of events have 32 bits, and a file may be longer: they go round."""
        found = place_of(self._file, header.end)
        while found < self.end and found >> _BITS == self.end >> _BITS and self.in_transaction:
            found += 1 << 32
        return found

    def _file_begins(self, header: e.Header) -> None:
        """A file is known by when it was begun, and by which server."""
        begun = {"file": self._file, "begun": header.at, "server": header.server}
        before = {name: self.where.get(name) for name in begun}
        if before["file"] == self._file and before["begun"] is not None and before != begun:
            raise self.gap(f"the log {self._file} is not the one that was read: it was made again")
        self._forget_layouts()
        self.where |= begun

    def _forget_layouts(self) -> None:
        self._layouts.clear()
        self._seen.clear()

    def _now(self, header: e.Header) -> Transaction:
        return Transaction(self._group.number, self._place(header), header.at * 1_000_000)

    # -- groups of events ----------------------------------------------------------------------------

    def _begin(self, event: e.Begin) -> None:
        if event.gtid or not self.in_transaction:
            self._group, self._number = event, 0
            self.where["gtid"] = event.gtid or self.where.get("gtid", "")
        self._group = self._group._replace(standalone=event.standalone)
        self.in_transaction = True

    def _ended(self, header: e.Header, number: int) -> None:
        transaction = self._now(header)
        self.in_transaction = False
        self.committed(transaction._replace(number=transaction.number or number))

    def _statement(self, event: e.Statement, header: e.Header) -> None:
        text = without_texts(event.text)
        first = text.lstrip()[:24].upper()
        if first.startswith("XA"):
            self._xa(first, self._now(header))
        elif first.startswith("ROLLBACK") and not re.match(r"ROLLBACK\s+(WORK\s+)?TO\b", first):
            why = "a transaction with tables that keep no transactions was rolled back"
            self._read_again(self._touched(), why, self._now(header))
        elif (emptied := truncated(text, event.schema)) is not None:
            table = self.live(".".join(emptied))
            if table is not None:
                self.row = 0
                self.truncate(table, self._now(header), self._begins)
        elif is_definition(text):
            self._defined(text, self._now(header))
        elif is_data(text):
            self._unlogged(text)
        if self._group.standalone or not self.in_transaction or first.startswith("ROLLBACK"):
            self._ended(header, 0)

    def _xa(self, first: str, transaction: Transaction) -> None:
        """What XA transactions do is in the log before they commit: it is read from the tables when they do."""
        if re.match(r"XA\s+START|XA\s+BEGIN", first):
            self._group = self._group._replace(prepared=True, standalone=False)
        elif re.match(r"XA\s+COMMIT", first):
            names = self._prepared or {str(name) for name in self.tables}
            self._read_again(names, "an XA transaction committed", transaction)

    def _touched(self) -> set[str]:
        return {each.full_name for each in self._layouts.values() if each.table is not None}

    def _read_again(self, names: set[str], why: str, transaction: Transaction) -> None:
        """Unless a table was copied since, or is read again already."""
        for table in filter(None, map(self.live, names)):
            if table.known.state != "reading again" and not self._copied_later(table.known, transaction):
                logger.info("capture %s: %s is read again: %s", self.journal.capture, table.known.full_name, why)
                self.note(table, replace(table.known, state="reading again", epoch=table.known.epoch + 1))

    # -- rows --------------------------------------------------------------------------------------

    def group_at(self, place: int) -> str:
        """The id of the transaction that is read: its GTID, or where its change is, where the server has none."""
        at = f"file={file_of(self.where['file'], place)},pos={position_of(place)}"
        return self._group.gtid or at

    def _layout(self, event: e.TableMap) -> Layout:
        name = f"{event.schema}.{event.table}"
        table = self.live(name)
        if table is None and name not in self.cascades:
            return Layout(event)
        if not all(column.name for column in event.columns):
            if table is not None:
                self.stop(table, "the log does not name columns: SET GLOBAL binlog_row_metadata = FULL")
            return Layout(event)
        kinds = {column.name: kind_of(str(column.type)) for column in table.known.columns} if table is not None else {}
        decoders = []
        try:
            for column in event.columns:
                kind = kinds.get(column.name)
                more = {"type_name": kind.name, "unsigned": kind.unsigned} if kind is not None else {}
                decoders.append(decoder_of(column, self.encoding, **more))  # type: ignore[arg-type]
        except (e.BadEvent, LookupError) as error:
            if table is not None:
                self.stop(table, str(error))
            return Layout(event)
        return Layout(event, table, decoders)

    def _images(self, event: e.Rows, transaction: Transaction) -> None:
        layout = self._layouts.get(event.number)
        if layout is None or not layout.decoders:
            return
        table = layout.table if layout.table is None else self.live(layout.full_name)
        if self._group.prepared:
            self._prepared |= {layout.full_name, *(each.child for each in self.cascades.get(layout.full_name, ()))}
            return
        self._cascade(layout, event, transaction)
        if table is not None and not event.whole:
            self.stop(table, "the log has parts of rows only: SET GLOBAL binlog_row_image = FULL")
        elif table is not None and event.columns == len(layout.decoders):
            self._apply(table, event.op, [layout.row(row) for row in rows_of(event.data, layout.decoders)], transaction)

    def _apply(self, table: Tracked, op: str, rows: list[Row], transaction: Transaction) -> None:
        name, key_of = table.known.full_name, table.key_of
        at = self._begins
        if op == "update":
            for self.row, (before, after) in enumerate(zip(rows[::2], rows[1::2], strict=True)):
                place = Place(transaction.end, self._next())
                change = Change("update", name, key_of(after), before, after, place, transaction, at)
                for part in parts_of(change, key_of(before)):
                    self.apply(table, part)
            return
        for self.row, row in enumerate(rows):
            place = Place(transaction.end, self._next())
            if op == "insert":
                self.apply(table, Change("insert", name, key_of(row), None, row, place, transaction, at))
            else:
                self.apply(table, Change("delete", name, key_of(row), row, None, place, transaction, at))

    def _next(self) -> int:
        self._number += 1
        return self._number - 1

    def _cascade(self, layout: Layout, event: e.Rows, transaction: Transaction) -> None:
        """The database changes rows of other tables itself, and says it nowhere: these are read again."""
        if event.op == "insert" or layout.full_name not in self.cascades:
            return
        for each in self.cascades[layout.full_name]:
            if event.op == "delete" and each.on_delete:
                why = f"rows of {each.parent} were deleted, and its foreign key cascades"
                self._read_again({each.child}, why, transaction)
            elif event.op == "update" and each.on_update:
                places = [layout.places[name] for name in each.columns if name in layout.places]
                images = rows_of(event.data, layout.decoders) if event.whole else []
                pairs = zip(images[::2], images[1::2], strict=True)
                if not event.whole or any(one[at] != other[at] for one, other in pairs for at in places):
                    why = f"keys of {each.parent} were changed, and its foreign key cascades"
                    self._read_again({each.child}, why, transaction)

    # -- statements --------------------------------------------------------------------------------

    def _defined(self, text: str, transaction: Transaction) -> None:
        """Tables that the statement names are compared with what is recorded of them."""
        if re.search(r"\bREFERENCES\b", text, re.IGNORECASE):
            self.cascades = self.find_cascades()
        schemas = re.match(r"\s*DROP\s+(DATABASE|SCHEMA)\b", text, re.IGNORECASE) is not None
        for table in [*self.tables.values()]:
            known = table.known
            named = mentions(text, known.schema if schemas else known.name)
            if not named or known.state == "stopped" or self._copied_later(known, transaction):
                continue
            self._forget_layouts()
            source = self.source(known)
            if source is None:
                self.stop(table, "it was dropped, or has another name now")
                continue
            found = difference_of(known, source.columns, source.key)
            if found:
                self.lay_out(table, found, (*known.columns, *found.added), transaction)
            altered = text.lstrip()[:5].upper() == "ALTER"
            if table.known.state != "stopped" and rewrites(text) and not (found and altered):
                self._read_again({known.full_name}, "a statement may have changed its rows", transaction)

    @staticmethod
    def _copied_later(known: Known, transaction: Transaction) -> bool:
        return bool(known.chunks) and all(chunk.has(transaction) for chunk in known.chunks)

    def _unlogged(self, text: str) -> None:
        for table in [*self.tables.values()]:
            if table.known.state != "stopped" and mentions(text, table.known.name):
                self.stop(
                    table, "a session wrote to it with binlog_format other than ROW: SET GLOBAL binlog_format = ROW"
                )

    def write(self) -> None:
        if "file" in self.where:
            self.where["position"] = f"{file_of(self.where['file'], self.end)}:{position_of(self.end)}"
        self.record("log", dict(self.where))
        super().write()
