"""A stream that is enriched by a captured table has what one batch over both would have. No Spark."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

import headrace as hr
from tests.cdc.conftest import Source
from tests.operators.sparkless_joins import without_spark

ZERO = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return ZERO + timedelta(seconds=seconds)


@pytest.mark.parametrize("seed", range(2))
def test_an_enriched_stream_is_the_batch_answer(source: Source, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The table is copied when it has rows, and changed between the facts: each gets the tier of its own time."""
    without_spark(monkeypatch.setattr)
    dice = random.Random(seed)
    tiers: dict[int, list[tuple[datetime, str]]] = {}
    facts: dict[int, tuple[int, datetime]] = {}
    source.sql("CREATE TABLE users (id int PRIMARY KEY, tier text, since timestamptz)")

    def change(seconds: int) -> None:
        """Each change of a user is behind those before it, as an application writes them."""
        source.sql("BEGIN")
        for user in dice.sample(range(6), dice.randrange(1, 4)):
            since, tier = at(seconds), f"{user}-{seconds}"
            tiers.setdefault(user, []).append((since, tier))
            values = f"({user}, '{tier}', '{since.isoformat()}')"
            source.sql(
                f"INSERT INTO users VALUES {values} "
                "ON CONFLICT (id) DO UPDATE SET tier = excluded.tier, since = excluded.since"
            )
        source.sql("COMMIT", "BEGIN", "UPDATE users SET tier = 'never'", "ROLLBACK")

    change(0)
    with hr.App("site", home=source.home) as app:
        users = app.capture("shop", source.url).table("users", history="versions", event_time="since")
        clicks = app.topic("clicks", "n int, user int, at timestamp", event_time="at")
        how = {"on": {"user": "id"}, "as_of": "at", "columns": ["tier"], "grace": "1 hour"}
        view = app.stream(clicks).enrich(users, **how).to_view("seen")  # type: ignore[arg-type]
        app.drain()  # the copy has the rows as they are, and not what they were before
        for turn in range(1, 8):
            if dice.random() < 0.7:
                change(10 * turn)
            for _ in range(dice.randrange(4)):
                number, user, when = len(facts), dice.randrange(7), at(dice.randrange(10 * turn + 10))
                facts[number] = user, when
                clicks.append({"n": number, "user": user, "at": when})
            if dice.random() < 0.6:
                app.drain()
        app.drain()
        found = {row["n"]: row["tier"] for row in view.to_arrow().to_pylist()}
    assert found == {
        number: max((each for each in tiers.get(user, []) if each[0] <= when), default=(None, None))[1]
        for number, (user, when) in facts.items()
    }
    assert set(found.values()) - {None}
