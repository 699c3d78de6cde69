"""Who gets which partition: fair, complete, and moving as little as can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.log.embedded.consume.assignment import assign

members = st.sets(st.sampled_from([f"m{n}" for n in range(8)]), max_size=8)
owners = st.dictionaries(st.integers(0, 15), st.none() | st.sampled_from([f"m{n}" for n in range(8)]))
counts = st.integers(0, 16)


def sizes(assigned: dict[int, str], of: set[str]) -> list[int]:
    return sorted(sum(owner == member for owner in assigned.values()) for member in of)


@given(counts, members, owners)
def test_every_partition_has_one_owner_and_shares_differ_by_at_most_one(
    count: int, alive: set[str], owned: dict[int, str | None]
) -> None:
    assigned = assign(range(count), alive, owned)
    if not alive:
        assert assigned == {}
        return
    assert sorted(assigned) == list(range(count))
    assert set(assigned.values()) <= alive
    assert sizes(assigned, alive)[-1] - sizes(assigned, alive)[0] <= 1


@given(counts, members.filter(bool), owners)
def test_it_moves_as_few_as_any_fair_assignment_could(
    count: int, alive: set[str], owned: dict[int, str | None]
) -> None:
    """At best each member keeps min(what it has, its share), the larger shares going to those who have most."""
    assigned = assign(range(count), alive, owned)
    kept = sum(assigned[p] == owned.get(p) for p in range(count))
    held = sorted((sum(owned.get(p) == m for p in range(count)) for m in alive), reverse=True)
    low, above = divmod(count, len(alive))
    assert kept == sum(min(has, low + (place < above)) for place, has in enumerate(held))


@given(counts, members, owners)
def test_doing_it_again_changes_nothing(count: int, alive: set[str], owned: dict[int, str | None]) -> None:
    assigned = assign(range(count), alive, owned)
    assert assign(range(count), alive, assigned) == assigned


@given(counts, members, owners)
def test_the_order_in_which_members_are_named_means_nothing(
    count: int, alive: set[str], owned: dict[int, str | None]
) -> None:
    assert assign(range(count), sorted(alive), owned) == assign(range(count), sorted(alive, reverse=True), owned)


def test_a_newcomer_gets_its_share_and_nobody_else_moves() -> None:
    four = assign(range(8), ["a", "b", "c"], dict.fromkeys(range(8)))
    assert sizes(four, {"a", "b", "c"}) == [2, 3, 3]  # 8 = 3 + 3 + 2
    five = assign(range(8), ["a", "b", "c", "d"], four)
    assert sizes(five, {"a", "b", "c", "d"}) == [2, 2, 2, 2]
    moved = [p for p in range(8) if four[p] != five[p]]
    assert len(moved) == 2 and {five[p] for p in moved} == {"d"}


def test_who_leaves_is_shared_out_and_nobody_else_moves() -> None:
    three = assign(range(7), ["a", "b", "c"], {})
    two = assign(range(7), ["a", "b"], three)
    assert all(two[p] == three[p] for p in range(7) if three[p] != "c")


def test_more_members_than_partitions() -> None:
    assert sorted(assign(range(2), ["a", "b", "c"], {}).values()) in (["a", "b"], ["a", "c"], ["b", "c"])
