"""Binlog events and images of rows, without a server: above all what MariaDB does not write, and MySQL does."""

from __future__ import annotations

import json
import struct
import zlib
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.cdc.mysql.address import Address
from headrace.cdc.mysql.binlog import events as e
from headrace.cdc.mysql.binlog.decimals import decimal_reader
from headrace.cdc.mysql.binlog.images import decoder_of, rows_of
from headrace.cdc.mysql.binlog.jsons import json_text
from headrace.cdc.mysql.statements import is_data, is_definition, mentions, rewrites, truncated, without_texts
from headrace.errors import InvalidArgument


def event(kind: int, body: bytes, *, checksum: bool = False, end: int = 100) -> bytes:
    size = e.HEADER_BYTES + len(body) + (4 if checksum else 0)
    data = struct.pack("<IBIIIH", 7, kind, 1, size, end, 0) + body
    return data + zlib.crc32(data).to_bytes(4, "little") if checksum else data


def decoded(data: bytes, *, checksum: bool = False, mariadb: bool = False) -> e.Event | None:
    return e.decode(data, e.header_of(data), checksum=checksum, mariadb=mariadb)


def test_rows_of_mysql_have_a_header_of_their_own_length() -> None:
    body = (9).to_bytes(6, "little") + b"\1\0" + b"\5\0abc" + b"\2" + b"\3" + b"\3" + b"\0\1\0\0\0\2\0\0\0" * 2
    found = decoded(event(31, body))
    assert isinstance(found, e.Rows)
    assert (found.op, found.number, found.columns, found.whole) == ("update", 9, 2, True)
    number = decoder_of(e.WireColumn("a", 3, 0), str)
    assert rows_of(found.data, [number, number]) == [(1, 2), (1, 2)]
    assert not decoded(event(30, body[:14] + b"\1" + body[15:])).whole  # type: ignore[union-attr]


def test_gtids() -> None:
    source = bytes.fromhex("3e11fa4771ca11e19e33c80aa9429562")
    found = decoded(event(33, b"\1" + source + (23).to_bytes(8, "little") + b"\0" * 17))
    assert found == e.Begin("3e11fa47-71ca-11e1-9e33-c80aa9429562:23", 23, standalone=True)
    found = decoded(event(162, struct.pack("<QIB", 5, 2, 1 | 8) + b"\0" * 6, checksum=True), checksum=True)
    assert found == e.Begin("2-1-5", 5, standalone=True)


def test_what_cannot_be_read_says_what_to_do() -> None:
    assert "binlog_transaction_compression" in decoded(event(40, b"x")).why  # type: ignore[union-attr]
    assert "binlog_row_value_options" in decoded(event(39, b"x" * 30)).why  # type: ignore[union-attr]


def test_a_checksum_that_is_wrong_is_noticed() -> None:
    data = bytearray(event(16, b"\0" * 8, checksum=True))
    data[20] ^= 1
    with pytest.raises(e.BadEvent, match="checksum"):
        decoded(bytes(data), checksum=True)


@given(st.sampled_from((2, 4, 15, 16, 19, 23, 24, 31, 32, 33, 162, 165, 166, 171)), st.binary(max_size=80))
def test_any_bytes_are_an_event_or_refused(kind: int, body: bytes) -> None:
    try:
        decoded(event(kind, body))
    except e.BadEvent:
        return


@example(b"\x04\x03")  # a literal that is none
@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_refused(data: bytes) -> None:
    kinds = ((3, 0), (246, 2 << 8 | 10), (18, 6), (252, 2), (15, 300), (248, 1), (16, 0x0100), (245, 4))
    columns = [e.WireColumn(str(kind), kind, meta) for kind, meta in kinds]
    try:
        rows_of(data, [decoder_of(column, lambda _: "utf-8") for column in columns])
    except e.BadEvent:
        return


def packed(number: Decimal, precision: int, scale: int) -> bytes:
    """As MySQL does it: each part in groups of nine digits, the odd one outside."""
    sign, digits, _ = number.as_tuple()
    said = "".join(map(str, digits)).rjust(precision, "0")
    whole, small = said[: precision - scale], said[precision - scale :]
    odd = len(whole) % 9
    groups = [whole[:odd], *(whole[at : at + 9] for at in range(odd, len(whole), 9))]
    groups += [small[at : at + 9] for at in range(0, len(small), 9)]
    raw = bytearray(b"".join(int(g).to_bytes((0, 1, 1, 2, 2, 3, 3, 4, 4, 4)[len(g)], "big") for g in groups if g))
    raw[0] |= 0x80
    return bytes(byte ^ 0xFF for byte in raw) if sign else bytes(raw)


@given(st.data(), st.integers(1, 65), st.integers(0, 30))
def test_decimals(data: st.DataObject, precision: int, scale: int) -> None:
    scale = min(scale, precision)
    digits = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    number = Decimal(digits).scaleb(-scale) if scale else Decimal(digits)
    exact = Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))
    text, end = decimal_reader(precision, scale)(packed(exact, precision, scale) + b"more", 0)
    assert Decimal(text) == number or precision > 28
    assert text.replace("-", "").replace(".", "").lstrip("0") == str(abs(digits)).lstrip("0")
    assert end == len(packed(exact, precision, scale))


def binary_json(value: Any) -> tuple[int, bytes]:
    """As MySQL writes it: the type, and the bytes. Containers are small ones."""
    if value is None or isinstance(value, bool):
        return 4, bytes([{None: 0, True: 1, False: 2}[value]])
    if isinstance(value, int):
        return 9, struct.pack("<q", value)
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        text = value.encode()
        length, said = len(text), b""
        while length > 127:
            said, length = said + bytes([length & 127 | 128]), length >> 7
        return 12, said + bytes([length]) + text
    names = [name.encode() for name in value] if isinstance(value, dict) else []
    values = [*value.values()] if isinstance(value, dict) else value
    head = 4 + 4 * len(names) + 3 * len(values)
    entries, body = b"", b"".join(names)
    at = head
    for name in names:
        entries += struct.pack("<HH", at, len(name))
        at += len(name)
    for each in values:
        kind, data = binary_json(each)
        if kind == 4:
            entries += struct.pack("<BBx", 4, data[0])
        else:
            entries += struct.pack("<BH", kind, head + len(body))
            body += data
    return (0 if isinstance(value, dict) else 2), struct.pack("<HH", len(values), head + len(body)) + entries + body


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
documents = st.recursive(
    plain | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(documents)
def test_json_documents(document: Any) -> None:
    kind, data = binary_json(document)
    assert json.loads(json_text(bytes([kind]) + data) or "null") == document


def test_json_is_written_as_mysql_writes_it() -> None:
    kind, data = binary_json({"a": [1, None, True], "b": "é"})
    assert json_text(bytes([kind]) + data) == '{"a": [1, null, true], "b": "é"}'
    number = packed(Decimal("1.50"), 4, 2)
    assert json_text(b"\x0f" + bytes([246, 2 + len(number), 4, 2]) + number) == "1.50"
    assert json_text(b"") is None


@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_refused(data: bytes) -> None:
    try:
        rows_of(b"\0" + len(data).to_bytes(4, "little") + data, [decoder_of(e.WireColumn("j", 245, 4), str)])
    except e.BadEvent:
        return


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("TRUNCATE users", ("shop", "users")),
        ("/* x */ truncate table `other`.`us``ers` WAIT 5", ("other", "us`ers")),
        ("TRUNCATE TABLE\n users -- all of it", ("shop", "users")),
        ("ALTER TABLE users TRUNCATE PARTITION p0", None),
    ],
)
def test_truncate(text: str, told: tuple[str, str] | None) -> None:
    assert truncated(without_texts(text), "shop") == told


@pytest.mark.parametrize(
    ("text", "does"),
    [
        ("ALTER TABLE users ADD INDEX (name)", False),
        ("ALTER TABLE users ADD COLUMN c int", True),
        ("ALTER TABLE users DROP c, ADD UNIQUE KEY (b)", True),
        ("ALTER TABLE users ENGINE = InnoDB", False),
        ("ALTER TABLE users COMMENT = 'DROP it'", False),
        ("ALTER TABLE users RENAME INDEX a TO b", False),
        ("ALTER TABLE users EXCHANGE PARTITION p WITH TABLE t", True),
        ("/*!50100 DROP TABLE users */", True),
        ("RENAME TABLE a TO users", True),
        ("CREATE VIEW v AS SELECT * FROM users", False),
    ],
)
def test_what_leaves_other_rows(text: str, does: bool) -> None:
    said = without_texts(text)
    assert rewrites(said) is does and is_definition(said) and not is_data(said)


def test_names_in_statements_are_whole_words() -> None:
    assert mentions("ALTER TABLE `shop`.`Users` …", "users")
    assert not mentions("ALTER TABLE users_old …", "users")
    assert not mentions(without_texts("UPDATE t SET a = 'users'"), "users")


@pytest.mark.parametrize(
    "url",
    ["mysql://ann:se/same@host/shop", "mysql://ann:se@same@host/shop", "mysql://ann:sesame@host/a/b", "mysql://host/shop",
     "mysql://ann:sesame@host:x/shop", "mysql://ann:sesame@host/shop?sesame=1", "mysql://ann:sesame@host"],
)  # fmt: skip
def test_an_address_that_is_wrong_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Address.of(url)
    assert "same" not in str(caught.value)


def test_an_address_is_shown_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "sesame")
    found = Address.of("mysql://ann@host/shop?password=env:SHOP_PASSWORD&ssl_ca=ca.pem")
    assert found.shown == "mysql://ann@host:3306/shop" and found.may_be_stored
    assert found.connecting()["password"] == "sesame" and found.connecting()["ssl_ca"] == "ca.pem"
    given = Address.of("mysql://ann:se%2Fsame@host/shop")
    assert not given.may_be_stored and "same" not in f"{given!r} {given.shown}"
