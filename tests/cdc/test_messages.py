"""pgoutput's messages: what each says, and that no bytes do anything but decode or raise BadMessage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cdc.change import UNCHANGED, Change, Place, Row, Transaction, parts_of
from headrace.cdc.postgres import messages as m
from headrace.cdc.tables import Column


def row(*values: object) -> bytes:
    out = struct.pack(">H", len(values))
    for value in values:
        if value is None:
            out += b"n"
        elif value is UNCHANGED:
            out += b"u"
        else:
            assert isinstance(value, bytes)
            out += b"t" + struct.pack(">I", len(value)) + value
    return out


def encoded(message: m.Message) -> bytes:
    """The bytes that Postgres would send."""
    match message:
        case m.Begin(final, at_us, xid):
            return b"B" + struct.pack(">QqI", final, at_us - m.EPOCH_US, xid)
        case m.Commit(commit, end, at_us):
            return b"C" + struct.pack(">BQQq", 0, commit, end, at_us - m.EPOCH_US)
        case m.Relation(oid, namespace, name, identity, columns):
            out = b"R" + struct.pack(">I", oid) + namespace.encode() + b"\0" + name.encode() + b"\0"
            out += identity.encode() + struct.pack(">H", len(columns))
            for column in columns:
                out += bytes([column.in_identity]) + column.name.encode() + b"\0"
                out += struct.pack(">Ii", column.type, column.modifier)
            return out
        case m.Insert(oid, new):
            return b"I" + struct.pack(">I", oid) + b"N" + row(*new)
        case m.Update(oid, old, whole, new):
            before = b"" if old is None else (b"O" if whole else b"K") + row(*old)
            return b"U" + struct.pack(">I", oid) + before + b"N" + row(*new)
        case m.Delete(oid, old, whole):
            return b"D" + struct.pack(">I", oid) + (b"O" if whole else b"K") + row(*old)
        case m.Truncate(oids, cascade, restart):
            options = cascade | restart << 1
            return b"T" + struct.pack(">IB", len(oids), options) + b"".join(struct.pack(">I", oid) for oid in oids)
        case m.TypeName(oid, namespace, name):
            return b"Y" + struct.pack(">I", oid) + namespace.encode() + b"\0" + name.encode() + b"\0"
        case m.Origin(commit, name):
            return b"O" + struct.pack(">Q", commit) + name.encode() + b"\0"
        case m.Logical(transactional, at, prefix, content):
            head = b"M" + struct.pack(">BQ", transactional, at) + prefix.encode() + b"\0"
            return head + struct.pack(">I", len(content)) + content


u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
times = st.integers(0, 2**52)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
rows = st.lists(st.none() | st.just(UNCHANGED) | st.binary(max_size=20), max_size=8).map(tuple)
columns = st.builds(Column, names, u32, st.integers(-(2**31), 2**31 - 1), st.booleans(), st.just(0))
messages: st.SearchStrategy[m.Message] = st.one_of(
    st.builds(m.Begin, u64, times, u32),
    st.builds(m.Commit, u64, u64, times),
    st.builds(m.Relation, u32, names, names, st.sampled_from("dnfi"), st.lists(columns, max_size=5).map(tuple)),
    st.builds(m.Insert, u32, rows),
    st.builds(m.Update, u32, st.none(), st.just(False), rows),
    st.builds(m.Update, u32, rows, st.booleans(), rows),
    st.builds(m.Delete, u32, rows, st.booleans()),
    st.builds(m.Truncate, st.lists(u32, max_size=4).map(tuple), st.booleans(), st.booleans()),
    st.builds(m.TypeName, u32, names, names),
    st.builds(m.Origin, u64, names),
    st.builds(m.Logical, st.booleans(), u64, names, st.binary(max_size=20)),
)


@given(messages)
def test_what_is_sent_is_what_is_read(message: m.Message) -> None:
    assert m.decode(encoded(message)) == message


@given(messages, st.data())
def test_a_message_that_is_cut_or_longer_is_refused(message: m.Message, data: st.DataObject) -> None:
    sent = encoded(message)
    cut = data.draw(st.integers(0, len(sent) - 1))
    with pytest.raises(m.BadMessage):
        m.decode(sent[:cut])
    with pytest.raises(m.BadMessage):
        m.decode(sent + b"x")


@given(st.binary(max_size=200) | st.tuples(st.sampled_from(b"BCRIUDTYOM"), st.binary(max_size=100)).map(
    lambda both: bytes([both[0]]) + both[1]
))  # fmt: skip
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        found = m.decode(data)
    except m.BadMessage:
        return
    assert isinstance(found, tuple)


def test_a_key_that_changes_is_a_delete_and_an_insert() -> None:
    where = Transaction(7, 100, 0)

    def changed(key: Row, before: Row) -> tuple[Change, ...]:
        return parts_of(Change("update", "t", key, None, (*key, b"x"), Place(100, 3), where), before)

    assert [(part.op, part.key, part.place) for part in changed((b"2",), (b"1",))] == [
        ("delete", (b"1",), (100, 3, 0)),
        ("insert", (b"2",), (100, 3, 1)),
    ]
    assert [part.op for part in changed((b"2",), (b"2",))] == ["update"]
