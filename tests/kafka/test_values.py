"""Values that any client may have written: each is a row or a dead letter, by itself, and none ends the process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace import rows
from headrace.log.kafka.catalog import Entry
from headrace.log.kafka.reading import CHUNKS_MAX, MARKS_MAX, Chunk, Mark, Reader, _given
from headrace.log.kafka.values import SINGLY_ROWS, JsonForm, decode
from headrace.log.settings import settings_of
from headrace.schema import parse_ddl
from headrace.time import UNSET

ARRIVED_US = 1_767_225_600_000_000  # 2026-01-01
GOOD = b'{"n": 1, "s": "x", "at": "2026-01-01T00:00:00Z"}'


def entry(ddl: str = "n bigint, s string, at timestamp, x double", unit: str | None = None, **settings: Any) -> Entry:
    given = {"event_time": "at", **settings}
    columns = parse_ddl(ddl) if unit is None else hr.epoch("at", unit).with_instant(parse_ddl(ddl))
    return Entry("t", "id", columns, settings_of(given), foreign=unit is not None, unit=unit)


def decoded(values: list[bytes | None], of: Entry) -> tuple[list[dict[str, Any]], dict[int, tuple[str, str]]]:
    batch, bad = decode(values, [b"k"] * len(values), np.full(len(values), ARRIVED_US), of, JsonForm())
    return rows.to_rows(batch), {each.number: (each.reason, each.why) for each in bad}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"null", "is null"),  # Arrow's reader ends the process
        (b"[]", "is an array"),
        (b"", "is empty"),
        (b'{"s": "\xff"}', "UTF-8"),
        (b'{"x": NaN}', "JSON"),
        (b'{"at": "2026-01-01T00:00:00"}', "no time zone"),
        (b'{"at": "2026-01-01"}', "no time zone"),
        (b'{"at": "0000-01-01T00:00:00Z"}', "no such time"),
        (b'{"at": "2026-01-01T01:00:01Z"}', "3600 s ahead of arrival"),
        (b'{"n": 1}{"n": 2}', "JSON"),
    ],
)
def test_what_is_no_row_is_none_whatever_lies_beside_it(value: bytes, why: str) -> None:
    for values in ([value], [GOOD] * 100 + [value] + [GOOD] * 99, [b"x", value]):
        good, bad = decoded(list(values), entry())
        assert why in bad[values.index(value)][1]
        assert len(good) == values.count(GOOD) and all(row["n"] == 1 for row in good)


@pytest.mark.parametrize("value", [b'{"n": 1, "more": 1, "more": 2}', b'\xef\xbb\xbf{"n": 1}', b' {"n": 1} '])
def test_what_is_a_row_is_one_whatever_lies_beside_it(value: bytes) -> None:
    for values in ([value], [value] * 100, [b"x", value], [None, value]):
        good, _ = decoded(list(values), entry(key="s"))
        assert [row["n"] for row in good if row["s"] != "k"] == [1] * values.count(value)


def test_two_records_are_not_made_of_one() -> None:
    for values in ([b'{"n": 1} {"n": 2}', b""], [b'{"n":', b'1} {"n": 2}']):
        good, bad = decoded(list(values), entry())
        assert (good, sorted(bad)) == ([], [0, 1])


def test_a_number_that_is_no_time_of_the_years_1_to_9999_is_a_dead_letter() -> None:
    of = entry("n bigint, at bigint", unit="ms")
    seconds = ARRIVED_US // 1_000_000
    good, bad = decoded(
        [b'{"n": %d, "at": %d}' % (n, at) for n, at in enumerate((seconds * 1000, ARRIVED_US, 1 << 62, -(1 << 62)))], of
    )
    assert [row["n"] for row in good] == [0] and sorted(bad) == [1, 2, 3]


class CountingForm(JsonForm):
    def __init__(self) -> None:
        self.read_singly = 0

    def read_row(self, value: bytes | None, key: bytes | None, time_us: int, entry: Entry) -> pa.RecordBatch:
        self.read_singly += 1
        return super().read_row(value, key, time_us, entry)


def test_one_bad_record_among_many_leaves_the_others_to_the_quick_reader() -> None:
    of = entry("n bigint not null, s string, at timestamp")
    values: list[bytes | None] = [GOOD] * 5000
    values[777] = b'{"s": "x"}'
    form = CountingForm()
    batch, bad = decode(values, [b"k"] * 5000, np.full(5000, ARRIVED_US), of, form)
    assert batch.num_rows == 4999 and [each.number for each in bad] == [777]
    assert 0 < form.read_singly <= SINGLY_ROWS


def test_a_header_that_is_no_number_is_none() -> None:
    kafka = pytest.importorskip("confluent_kafka")
    values = (b"12", b"-12", b"", b"x", b"1_0", b"9" * 30)
    is_given, found = _given([kafka.Message(headers=[("headrace-progress", value)]) for value in values])
    assert is_given.tolist() == [True, True, True, False, False, False] and found[:3].tolist() == [12, -12, UNSET]


def test_what_a_reader_keeps_has_a_bound() -> None:
    """However often the end of a topic is read, and whatever several threads read at once."""
    of = entry()
    batch, _ = decode([GOOD], [None], np.array([ARRIVED_US]), of, JsonForm())
    reader = Reader(None, "t", lambda: of, lambda *_: None)  # type: ignore[arg-type]
    one = np.array([ARRIVED_US])
    for offset in range(3 * MARKS_MAX):
        for _ in range(2):  # two threads have read the same
            reader._keep(0, Chunk(offset, Mark(offset + 1, offset), batch, np.array([offset]), one, one, one, one, 1))
    known = reader._known(0)
    assert len(known.chunks) == CHUNKS_MAX and len(known.marks) <= MARKS_MAX
    assert reader._held == CHUNKS_MAX * batch.nbytes
    assert reader.mark_below(0, 3 * MARKS_MAX).progress_us == 3 * MARKS_MAX - 1
    assert reader.mark_below(0, 1) == Mark(1, 0)
