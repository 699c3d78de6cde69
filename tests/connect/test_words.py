"""What people type: every text is a query, and means what docs/sinks.md says."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.connect.index.words import CHARACTERS_MAX, parse
from headrace.errors import InvalidArgument

COLUMNS = {"name": "c0", "about": "c1", "rank": "c2"}


@pytest.fixture(scope="module")
def texts() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", check_same_thread=False)
    db.execute("CREATE VIRTUAL TABLE texts USING fts5(c0, c1, c2, tokenize='unicode61 remove_diacritics 2', prefix=2)")
    rows = [("Heat pump", "quiet, no oil", ""), ("Oil stove", "heat", ""), ("Zoë", "and OR not NEAR", "1")]
    db.executemany("INSERT INTO texts VALUES (?, ?, ?)", rows)
    return db


def found(texts: sqlite3.Connection, query: str) -> list[int]:
    match = parse(query, COLUMNS).match
    if match is None:
        return []
    return [id for (id,) in texts.execute("SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rowid", (match,))]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("heat", [1, 2]),
        ("HEAT oil", [1, 2]),
        ("heat pump", [1]),
        ("zoe", [3]),
        ('"heat pump"', [1]),
        ('"pump heat"', []),
        ('"heat pump', [1]),  # the end of the text ends it
        ("pu*", [1]),
        ("p*", []),  # one letter is a word, not a beginning
        ('"heat pu"*', [1]),
        ("heat -oil", []),
        ("heat -stove", [1]),
        ("-stove heat", [1]),
        ('heat -"oil stove"', [1]),
        ("pump OR stove", [1, 2]),
        ("pump OR stove -heat", [1]),  # the first side has no '-'
        ("name:oil", [2]),
        ('about:"no oil"', [1]),
        ("rank:1", [3]),
        ("price:oil", []),  # no column: two words, one behind the other
        ("or", [3]),
        ("not near", [3]),
        ("OR OR heat OR", [1, 2]),
        ("heat, pump!", [1]),
        ("-", []),
        ("", []),
    ],
)
def test_what_a_text_finds(texts: sqlite3.Connection, query: str, ids: list[int]) -> None:
    assert found(texts, query) == ids


def test_why_nothing_can_be_found() -> None:
    assert parse(" ", COLUMNS).why == "type a word"
    assert parse("-heat", COLUMNS).why == "every word has a '-': add one that has to be there"
    assert parse('"!?"', COLUMNS).why == "there is no word in it"


@pytest.mark.parametrize("query", ["x" * (CHARACTERS_MAX + 1), "a " * 40])
def test_too_much_is_refused(query: str) -> None:
    with pytest.raises(InvalidArgument):
        parse(query, COLUMNS)


PIECES = st.sampled_from(
    [
        '"',
        "*",
        "-",
        "^",
        "(",
        ")",
        "{",
        "}",
        ":",
        "+",
        "NEAR(",
        " OR ",
        " AND ",
        " NOT ",
        "c0",
        "name:",
        "heat",
        "\0",
        " ",
    ]
)


@given(st.lists(PIECES | st.characters(), max_size=30).map("".join))
@example('name:"*"* -"')
@example("\ud800")
@example("\u02b0\u0308 \u2044 \ue000*")
def test_no_text_is_a_syntax_error(texts: sqlite3.Connection, query: str) -> None:
    found(texts, query)
