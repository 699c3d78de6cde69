"""What Flink SQL makes of the same joins over the same rows: the same final results. It runs in an environment of its
own, which scripts/peers makes; where there is none, these tests are skipped. Minutes, so not in `make test`: there, the
models of `tests/operators` say what joins are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from bench import flink_peer
from bench.peers import Unavailable

pytestmark = pytest.mark.soak

START_MS = 1_767_225_600_000
MILLISECONDS = pa.timestamp("ms", tz="UTC")
LONG = pa.int64()


def rows(dice: np.random.Generator, count: int, name: str, keys: int) -> pa.Table:
    """In the order of their times, which are all different: else Flink takes any version of that time, and calls late
    what is not before the last."""
    ms = START_MS + np.sort(dice.choice(60_000, count, replace=False))
    times = pa.array(ms).cast(MILLISECONDS).cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"id": dice.integers(0, keys, count), name: np.arange(count), "at": times})


def table(name: str, some: pa.Table, folder: Path) -> str:
    """A table of Flink with these rows."""
    files = folder / name
    flink_peer.write_files([some], files)
    columns = f"id BIGINT, {name} BIGINT, at_ms BIGINT, `at` AS TO_TIMESTAMP_LTZ(at_ms, 3)"
    stored = f"'connector' = 'filesystem', 'path' = '{files}', 'format' = 'csv'"
    return f"CREATE TABLE {name} ({columns}, WATERMARK FOR `at` AS `at`) WITH ({stored});\n"


def asked(ddl: str, query: str, folder: Path, columns: dict[str, pa.DataType]) -> Counter[Any]:
    try:
        flink_peer.run_sql(ddl, query, folder / "out", repeat=1)
    except Unavailable as error:
        pytest.skip(str(error))
    return told(flink_peer.answer(folder / "out", columns), *columns)


def told(some: pa.Table, *names: str) -> Counter[Any]:
    return Counter(zip(*(some[name].to_pylist() for name in names), strict=True))


@pytest.mark.timeout(300)
def test_enrich_finds_what_a_temporal_join_finds(tmp_path: Path, spark: Any, seed: int) -> None:
    dice = np.random.default_rng(seed)
    facts, versions = rows(dice, 3_000, "facts", 120), rows(dice, 900, "versions", 100)  # some find nothing
    ddl = table("facts", facts, tmp_path) + table("versions", versions, tmp_path)
    ddl += """CREATE TEMPORARY VIEW latest AS SELECT id, versions, `at` FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY `at` DESC) AS place FROM versions) WHERE place = 1"""
    query = """SELECT facts.id, facts, versions FROM facts
        LEFT JOIN latest FOR SYSTEM_TIME AS OF facts.`at` ON facts.id = latest.id"""
    wanted = asked(ddl, query, tmp_path, dict.fromkeys(("id", "facts", "versions"), LONG))
    with hr.App("opinion", home=":temp:", spark=spark) as app:
        schema = "id bigint, versions bigint, at timestamp"
        known = app.table("known", schema, key="id", event_time="at", history="versions")
        topic = app.topic("facts", "id bigint, facts bigint, at timestamp", event_time="at")
        view = app.stream(topic).enrich(known, on="id", as_of="at", columns=["versions"]).to_view("enriched")
        topic.append(facts)  # before the table: its changes correct the rows
        for at in range(0, versions.num_rows, 100):
            known.upsert(versions.slice(at, 100))
            app.drain()
        assert told(view.to_arrow(), "id", "facts", "versions") == wanted
        assert None in {found for _, _, found in wanted} and len(wanted) == facts.num_rows


@pytest.mark.timeout(300)
def test_a_join_of_streams_has_the_rows_of_an_interval_join(tmp_path: Path, spark: Any, seed: int) -> None:
    """All four kinds, with an interval that is longer after a record than before it."""
    dice = np.random.default_rng(seed)
    sides = {"lefts": rows(dice, 900, "lefts", 40), "rights": rows(dice, 900, "rights", 40)}
    ddl = "".join(table(name, some, tmp_path) for name, some in sides.items())
    kinds = {"inner": "INNER", "left": "LEFT", "right": "RIGHT", "full": "FULL OUTER"}
    near = "rights.`at` BETWEEN lefts.`at` - INTERVAL '1' SECOND AND lefts.`at` + INTERVAL '3' SECOND"
    query = " UNION ALL ".join(
        f"SELECT '{how}' AS how, lefts, rights FROM lefts {kind} JOIN rights ON lefts.id = rights.id AND {near}"
        for how, kind in kinds.items()
    )
    wanted = asked(ddl, query, tmp_path, {"how": pa.string(), "lefts": LONG, "rights": LONG})
    with hr.App("opinion", home=":temp:", spark=spark) as app:
        topics = [app.topic(name, f"id bigint, {name} bigint, at timestamp", event_time="at") for name in sides]
        one, other = map(app.stream, topics)
        spans = {"before": "1 second", "after": "3 seconds", "grace": "0 seconds"}
        views = {how: one.join(other, on="id", how=how, **spans).to_view(f"{how}_rows") for how in kinds}  # type: ignore[arg-type]
        for at in range(0, 900, 300):
            for topic in topics:
                topic.append(sides[topic.name].slice(at, 300))
            app.drain()
        app.drain(close=True)
        found = Counter[Any]()
        for how, view in views.items():
            found.update((how, *pair) for pair in told(view.to_arrow(), "lefts", "rights").elements())
        assert found == wanted


PATTERNS = {
    "A+ B": "PAST LAST ROW",
    "A B* C": "PAST LAST ROW",
    "A+? B C": "TO NEXT ROW",
    "A B{1,2} C": "TO NEXT ROW",
    "A B? C": "PAST LAST ROW",
}
"""With where the scan goes on. Flink has no alternatives, no absence and no greedy end: brute force says these."""


@pytest.mark.timeout(600)
def test_patterns_find_what_match_recognize_finds(tmp_path: Path, spark: Any, seed: int) -> None:
    """Times are even milliseconds, and `within` is odd: Flink's is less than, ours at most. No row has two symbols:
    where a greedy loop could take the row that must follow it, Flink does not go back, and finds less than SQL says."""
    dice = np.random.default_rng(seed)
    count = 3_000
    ms = START_MS + 2 * np.sort(dice.choice(60_000, count, replace=False))
    times = pa.array(ms).cast(MILLISECONDS).cast(pa.timestamp("us", tz="UTC"))
    some = pa.table({"id": dice.integers(0, 40, count), "v": dice.integers(0, 4, count), "at": times})
    define = "A AS A.v = 0, B AS B.v = 1, C AS C.v >= 2 AND C.v > LAST(A.v)"
    measures = "FIRST(A.v) AS first_a, LAST(A.v) AS last_a, COUNT(A.v) AS n_a, SUM(A.v) AS total_a"

    def clauses(text: str, skip: str) -> str:
        symbols = [each for each in ("A", "B", "C") if each in text]
        defined = ", ".join(each for each in define.split(", ") if each.split(" ")[0] in symbols)
        return (
            f"PARTITION BY id ORDER BY `at` MEASURES {measures} ONE ROW PER MATCH AFTER MATCH SKIP {skip} "
            f"PATTERN ({text}) WITHIN INTERVAL '20.001' SECOND DEFINE {defined}"
        )

    columns = dict.fromkeys(("id", "first_a", "last_a", "n_a", "total_a"), LONG)
    query = " UNION ALL ".join(
        f"SELECT '{text}' AS asked, T.* FROM v MATCH_RECOGNIZE ({clauses(text, skip)}) AS T"
        for text, skip in PATTERNS.items()
    )
    wanted = asked(table("v", some, tmp_path), query, tmp_path, {"asked": pa.string(), **columns})
    with hr.App("opinion", home=":temp:", spark=spark) as app:
        topic = app.topic("events", "id bigint, v bigint, at timestamp", key="id", event_time="at")
        views = {}
        for number, (text, skip) in enumerate(PATTERNS.items()):
            made = hr.match_recognize(clauses(text, skip))
            views[text] = app.stream(topic).match(made).to_view(f"matches_{number}")
        for at in range(0, count, 700):
            topic.append(some.slice(at, 700))
            app.drain()
        app.drain(close=True)
        found = Counter[Any]()
        for text, view in views.items():
            found.update((text, *row) for row in told(view.to_arrow(), *columns).elements())
        assert found == wanted
        assert found.total() > 300
