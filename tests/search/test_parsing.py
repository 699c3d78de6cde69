"""What queries mean, and how those are refused that are wrong, find nothing, or find everything."""

from __future__ import annotations

import pytest

from headrace.errors import InvalidSearch
from headrace.search.bind import bound
from headrace.search.fields import fields_of
from headrace.search.index import QueryIndex
from headrace.search.parse import CLAUSES_MAX, DEPTH_MAX, LENGTH_MAX
from tests.search.asking import SCHEMA, TEXT

FIELDS = fields_of(SCHEMA, TEXT)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("heat pump", "heat AND pump"),
        ('"Heat Pump"', '"heat pump"'),
        ("heat-pump", '"heat pump"'),
        ("a b OR c -d", "(a AND b) OR (c AND NOT d)"),
        ("title:(a OR body) AND NOT b", "(title:a OR title:body) AND NOT b"),
        ("((a)) AND (a AND b)", "a AND b"),
        ("NOT NOT a", "a"),
        ("price > 5 AND price<10 x", "price:{5.0 TO 10.0} AND x"),
        ("n:7", "n = 7"),
        ("n != 7 x", "n:* AND NOT n = 7 AND x"),
        ("price:-5", "price = -5.0"),
        ("at >= 2026-01-01T00:00:00Z", 'at >= "2026-01-01T00:00:00+00:00"'),
        ("at:2026-01-01", 'at = "2026-01-01T00:00:00+00:00"'),
        ('sku:"A 1" sku:A*', None),
        ("sku:A1*", 'sku:"A1"*'),
        ("heat*", "heat*"),
        ('title:"heat pu"*', 'title:"heat pu"*'),
        ("ok:true", "ok = true"),
        (r"\AND", '"and"'),
        ('"AND"', '"and"'),
        ("x (a OR (n>3 AND n<2))", "x AND a"),
        ("漢字", '"漢 字"'),
        ("\uff26\uff35\uff2c\uff2c Straße \ufb01n", "full AND strasse AND fin"),
    ],
)
def test_what_a_query_means(text: str, meaning: str | None) -> None:
    if meaning is None:
        with pytest.raises(InvalidSearch):
            bound(text, FIELDS)
    else:
        assert str(bound(text, FIELDS)) == meaning


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("", 0, "is empty"),
        ("a AND", 5, "found the end"),
        ("a OR OR b", 5, "found 'OR'"),
        ("(a", 0, "bracket is not closed"),
        ("a)", 1, "closes nothing"),
        ('x "a', 2, "quotation mark is not closed"),
        ("title:", 6, "found the end"),
        ("nothing:1", 0, "no column 'nothing'"),
        ("titel:a", 0, "Did you mean 'title'?"),
        ("price:cheap", 0, "is a number, and 'cheap' is not one"),
        ("price:nan", 0, "is a number, and 'nan' is not one"),
        ("n:1e999999999", 0, "is a whole number"),
        ("at > yesterday", 0, "is a time, and 'yesterday' is not one"),
        ("ok:maybe", 0, "is true or false"),
        ("title > a", 0, "has no order here"),
        ("x sku < A", 2, "has no order here"),
        ("!?", 0, "no word in '!?'"),
        ("a*b", 1, "'*' is at the end of a word only"),
        ("*a", 0, "expected a word"),
        ("x h*", 2, "at least 2 letters"),
        ("price:[1 5]", 9, "TO between its ends"),
        ("price:[1 TO 5", 6, "range is not closed"),
        ("title:(a price:5)", 9, "inside the brackets of column 'title'"),
        ("a AND NOT a", 0, "exclude each other"),
        ("price < 5 AND price > 5", 0, "exclude each other"),
        ("sku:A1 AND sku:B1", 0, "exclude each other"),
        ("NOT a", 0, "would find nearly all"),
        ("price:*", 0, "would find nearly all"),
        ("a OR NOT b", 0, "one of the alternatives asks for none"),
        ("a\x00b", 1, "NUL"),
        ("a " * LENGTH_MAX, LENGTH_MAX, f"may have {LENGTH_MAX:,}"),
        ("a " * (CLAUSES_MAX + 1), 2 * CLAUSES_MAX, f"more than {CLAUSES_MAX} words"),
        ("(" * 4_000 + "a" + ")" * 4_000, DEPTH_MAX, f"{DEPTH_MAX} deep"),
        ("NOT " * 2_000 + "a", 4 * DEPTH_MAX, f"{DEPTH_MAX} deep"),
        ('"' + "a " * 100 + '"', 0, "at most 64 words"),
    ],
)
def test_what_is_refused_and_where(text: str, at: int, why: str) -> None:
    with pytest.raises(InvalidSearch, match=r"^query, character") as refused:
        QueryIndex(FIELDS).add(text, 0)
    assert why in refused.value.why
    assert refused.value.at == at
    assert len(str(refused.value)) < 500


def test_words_need_a_column_to_be_in() -> None:
    with pytest.raises(InvalidSearch, match="no column is searched for words"):
        bound("heat", fields_of(SCHEMA, []))
    assert str(bound("title:heat", fields_of(SCHEMA, []))) == 'title:"heat"'
