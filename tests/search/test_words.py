"""Words: the way for a column of ASCII is the way for any text; and where a record has what was asked for."""

from __future__ import annotations

import json
import random
import string

import pyarrow as pa
import pytest

from headrace.search.bind import bound
from headrace.search.fields import fields_of
from headrace.search.highlight import Highlighter, asked_for
from headrace.search.words import folded, spans, words
from tests.search.asking import SCHEMA, TEXT

FIELDS = fields_of(SCHEMA, TEXT)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Heat-Pump, 2nd_hand!", ["heat", "pump", "2nd_hand"]),
        ("don't", ["don", "t"]),
        ("Cafe\u0301 CAFÉ", ["café", "café"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("\ufb01ne \ufdfa", ["fine", "صلىاللهعليهوسلم"]),
        ("हिन्दी", ["हिन्दी"]),
        ("東京で", ["東", "京", "で"]),
        ("", []),
        ("\x00 \u00a0", []),
    ],
)
def test_words_of_a_text(text: str, found: list[str]) -> None:
    assert words(text) == found
    assert folded(pa.array([text, "ascii"]))[0].as_py().split() == found


def test_columns_are_folded_as_texts_are(seed: int) -> None:
    dice = random.Random(seed)
    some = string.printable + "\x00\x01\x7f"
    for more in ("", "éß漢İ\u0301\u00a0"):
        texts = ["".join(dice.choice(some + more) for _ in range(dice.randint(0, 40))) for _ in range(300)]
        column = pa.array([None, *texts, None])
        for part in (column, column.slice(7, 200), column.cast(pa.large_string())):
            made = [None if text is None else text.split() for text in folded(part).to_pylist()]
            assert made == [None if text is None else words(text) for text in part.to_pylist()]


@pytest.mark.parametrize(
    ("query", "title", "found"),
    [
        ('"heat pump" OR solar', "A Heat-Pump, no solar: heat", {"title": [[2, 11], [16, 21]]}),
        ("title:hea* NOT pump", "heating HEAT", {"title": [[0, 7], [8, 12]]}),
        ("body:heat title:heat", "heat", {"title": [[0, 4]]}),
        ("price < 5 strasse", "die Straße", {"title": [[4, 10]]}),
        ('"heat pu"*', "heat pumps heat", {"title": [[0, 10]]}),
        ("heat", None, {}),
    ],
)
def test_highlights(query: str, title: str | None, found: dict[str, list[list[int]]]) -> None:
    phrases = asked_for(bound(query, FIELDS))
    assert json.loads(Highlighter({"title": title, "body": None}).of(phrases)) == found
    assert title is None or all(title[start:stop].strip() for start, stop in found.get("title", []))


def test_spans_are_of_the_text_itself() -> None:
    text = "İstanbul, \ufb01ne Cafe\u0301"
    assert [text[start:stop] for _, start, stop in spans(text)] == ["İstanbul", "\ufb01ne", "Cafe\u0301"]
