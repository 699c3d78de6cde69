"""Flights: a seeded stand-in for the published records of a year of departures, with as much repetition as those have
(few carriers, airports and routes, a day's schedule again the next day). Owns their shape."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DDL = (
    "flight_id string, carrier string, flight int, tail string, origin string, dest string, distance int, "
    "scheduled timestamp, departed timestamp, arrived timestamp, dep_delay int, arr_delay int, air_time int, "
    "cancelled boolean"
)
COUNT = 450_000
BEGIN_US = 1_735_689_600_000_000
"""2025-01-01, in UTC."""
MINUTE_US = 60_000_000
DAYS = 365
CARRIERS = np.array(["AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV", "9E"])
AIRPORTS, AIRCRAFT, SCHEDULES = 120, 4_000, 8_000
INSTANT = pa.timestamp("us", tz="UTC")


def flights(count: int = COUNT, seed: int = 7) -> pa.RecordBatch:
    """In order of departure. A schedule is a flight number of a carrier on a route at a minute of the day."""
    random = np.random.default_rng(seed)
    airports = np.array([_letters(number) for number in random.permutation(26**3)[:AIRPORTS]])
    share = 1 / np.arange(1, AIRPORTS + 1)
    origins = random.choice(AIRPORTS, SCHEDULES, p=share / share.sum())
    dests = (origins + 1 + random.integers(0, AIRPORTS - 1, SCHEDULES)) % AIRPORTS
    carriers, numbers = random.integers(0, len(CARRIERS), SCHEDULES), random.integers(1, 6_000, SCHEDULES)
    distances = random.integers(100, 2_700, SCHEDULES).astype(np.int32)
    minutes = np.clip(random.normal(14 * 60, 5 * 60, SCHEDULES), 300, 1_435).astype(np.int64) // 5 * 5

    which = random.integers(0, SCHEDULES, count)
    minute = np.sort(random.integers(0, DAYS, count)) * 1_440 + minutes[which]
    dep = np.where(random.random(count) < 0.7, random.integers(-10, 6, count), random.exponential(35, count)).astype(
        int
    )
    air = distances[which] // 8 + random.integers(15, 30, count)
    arr = dep + random.integers(-20, 15, count)
    cancelled = random.random(count) < 0.02
    scheduled = BEGIN_US + minute * MINUTE_US
    departed = scheduled + dep * MINUTE_US + random.integers(0, 60, count) * 1_000_000
    arrived = departed + air * MINUTE_US
    tails = np.array([f"N{number:03}{_letters(number * 7)[:2]}" for number in range(AIRCRAFT)])
    columns = {
        "flight_id": pa.array(
            [f"{CARRIERS[carriers[s]]}{numbers[s]}-{m // 1_440:03}-{s}" for s, m in zip(which, minute, strict=True)]
        ),
        "carrier": pa.array(CARRIERS[carriers[which]]),
        "flight": pa.array(numbers[which].astype(np.int32)),
        "tail": pa.array(tails[random.integers(0, AIRCRAFT, count)]),
        "origin": pa.array(airports[origins[which]]),
        "dest": pa.array(airports[dests[which]]),
        "distance": pa.array(distances[which]),
        "scheduled": pa.array(scheduled).cast(INSTANT),
        "departed": pa.array(departed, mask=cancelled).cast(INSTANT),
        "arrived": pa.array(arrived, mask=cancelled).cast(INSTANT),
        "dep_delay": pa.array(dep.astype(np.int32), mask=cancelled),
        "arr_delay": pa.array(arr.astype(np.int32), mask=cancelled),
        "air_time": pa.array(air.astype(np.int32), mask=cancelled),
        "cancelled": pa.array(cancelled),
    }
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return batch.take(pc.sort_indices(batch, sort_keys=[("scheduled", "ascending")]))


def _letters(number: int) -> str:
    return "".join(chr(65 + number // 26**place % 26) for place in range(3))
