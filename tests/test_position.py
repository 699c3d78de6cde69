from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidArgument
from headrace.position import Position

positions = st.lists(
    st.builds(
        Position.of,
        st.sampled_from(["clicks", "orders", "a.b-c_d", "__dead"]),
        st.sampled_from(["1a2b", "ff00"]),
        st.dictionaries(st.integers(0, 5), st.integers(0, 9), max_size=4),
    ),
    max_size=4,
).map(lambda parts: _union(parts))


def _union(parts: list[Position]) -> Position:
    out = Position()
    for part in parts:
        out = out | part
    return out


def test_the_text_form_is_sorted_and_fits_a_header() -> None:
    p = Position.of("orders", "99ff", {0: 3}) | Position.of("clicks", "1a2b3c4d", {1: 7, 0: 12})
    assert str(p) == "clicks~1a2b3c4d:0=12,1=7;orders~99ff:0=3"
    assert p.offsets("clicks") == {0: 12, 1: 7}
    assert p.offsets("nothing") == {}
    assert str(Position()) == ""
    assert Position.parse("") == Position()
    assert not Position()
    assert p


def test_union_is_the_larger_offset_of_each_partition() -> None:
    p = Position.of("t", "1", {0: 5, 1: 2}) | Position.of("t", "1", {0: 3, 2: 9})
    assert p.offsets("t") == {0: 5, 1: 2, 2: 9}


def test_a_recreated_topic_is_another_topic() -> None:
    old, new = Position.of("t", "1", {0: 100}), Position.of("t", "2", {0: 1})
    assert not old >= new
    assert not new >= old
    with pytest.raises(InvalidArgument, match="several topics of this name, with ids 1, 2"):
        (old | new).offsets("t")


def test_offset_zero_says_nothing() -> None:
    assert Position.of("t", "1", {0: 0, 1: 4}) == Position.of("t", "1", {1: 4})
    assert Position.of("t", "1", {0: 0}) == Position()
    assert Position.parse("t~1:0=0") == Position()


def test_order_is_that_of_sets() -> None:
    p, q = Position.of("t", "1", {0: 5}), Position.of("t", "1", {0: 5, 1: 1})
    assert p <= q
    assert p < q
    assert q > p
    assert q.covers(p)
    assert not p.covers(q)
    assert not p < p
    assert not Position.of("t", "1", {1: 2}) <= q


@given(positions, positions, positions)
def test_the_laws_of_union_and_order(p: Position, q: Position, r: Position) -> None:
    assert Position.parse(str(p)) == p
    assert str(p).isascii()
    assert " " not in str(p)
    assert p | p == p
    assert p | q == q | p
    assert (p | q) | r == p | (q | r)
    assert p <= p | q
    assert (p <= q) == (p | q == q)
    assert (p <= q and q <= p) == (p == q)
    assert p != q or hash(p) == hash(q)


@pytest.mark.parametrize(
    "text",
    [
        "clicks", "clicks~", "clicks~1", "clicks~1:", "clicks~1:0", "clicks~1:0=", "clicks~1:0=x", "clicks~1:0=-1",
        "clicks~1:0=1,", "clicks~1:0=1;", ";", "clicks~XY:0=1", "cl icks~1:0=1", " clicks~1:0=1", "clicks~1:0=1\n",
        "clicks~1:0=1,0=2", "clicks~1:0=1;clicks~1:1=2", "clicks~1:0=9223372036854775808", "clicks~1:9999999999=1",
        "..~1:0=1", "clicks~1:0=٣", "a" * 250 + "~1:0=1", "x" * 2_000_000, None, b"",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Position.parse(text)
    assert caught.value.argument == "position"
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("topic", "topic_id", "nexts"),
    [("a b", "1", {}), ("t", "", {}), ("t", "XYZ", {}), ("t", "1", {-1: 1}), ("t", "1", {0: -1}), ("t", "1", {True: 1}),
     ("t", "1", {0: 2**63}), ("t", "1", {0: 1.0})],
)  # fmt: skip
def test_no_position_of_nonsense(topic: str, topic_id: str, nexts: dict[int, int]) -> None:
    with pytest.raises(InvalidArgument):
        Position.of(topic, topic_id, nexts)
