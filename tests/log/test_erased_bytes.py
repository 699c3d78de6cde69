"""Erasure where there is no record to find any more, and keys that look alike: what must go goes, and nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.upkeep import erasing, swapping
from headrace.log.open import open_log
from tests.searching import files_with


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "log") as log:
        yield log


def keys_of(topic: Any) -> list[Any]:
    return [record.key for record in topic.records()]


def test_a_record_that_retention_has_deleted_is_wiped(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "k string, v string", key="k", retention_bytes=2000)
    topic.append({"k": "gone-key", "v": "gone-value"})
    for _ in range(20):
        topic.append({"k": "x", "v": "y" * 200})
    assert "gone-key" not in keys_of(topic)
    assert files_with(log.home, "gone-")
    done = topic.erase("gone-key")
    assert (done.records, done.incomplete) == (0, [])
    assert not files_with(log.home, "gone-")
    assert not log.usage().wipe_due


def test_what_retention_deletes_under_an_erasure_is_no_obstacle(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.create_topic("t", "k string, v string", key="k", retention_bytes=2000)
    topic.append({"k": "gone-key", "v": "gone-value"})

    def slow(*args: Any) -> None:
        for _ in range(20):  # an append by somebody else, between reading and swapping
            topic.append({"k": "x", "v": "y" * 200})
        submit(*args)

    submit = swapping.submit
    monkeypatch.setattr(erasing.swapping, "submit", slow)
    assert topic.erase("gone-key").incomplete == []
    assert not files_with(log.home, "gone-")


def test_a_frame_holds_its_own_records_only(log: EmbeddedLog) -> None:
    """Arrow writes slices with some bytes of what lies behind them: here, of records of other partitions and keys."""
    topic = log.create_topic("t", "k string", key="k", partitions=2)
    topic.append([{"k": "gone-key"}, {"k": "bob"}, {"k": "cat"}])
    topic.append(pa.table({"k": ["ann", "gone-value"]}).slice(0, 1))
    assert topic.erase("gone-key").records == 1
    assert keys_of(topic) == ["bob", "cat", "ann"]
    assert not files_with(log.home, "gone")


def test_null_is_not_the_empty_text(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "k string, n int", key="k")
    topic.append([{"k": None, "n": 1}, {"k": "", "n": 2}, {"k": "a", "n": 3}])
    assert topic.erase("").records == 1
    assert keys_of(topic) == [None, "a"]
    assert topic.erase(None).records == 1
    assert keys_of(topic) == ["a"]


def test_many_keys_are_one_pass(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log.create_topic("t", "k string, n int", key="k", partitions=3)
    topic.append([{"k": f"gone-{n}" if n % 2 else f"kept-{n}", "n": n} for n in range(20)])
    topic.append([{"k": None, "n": 20}, {"k": "", "n": 21}])
    wiped, wipe = list[Any](), erasing.wipe
    monkeypatch.setattr(erasing, "wipe", lambda engine: wiped.append(engine) or wipe(engine))
    assert topic.erase(*(f"gone-{n}" for n in range(20)), None).records == 11
    assert len(wiped) == 1
    assert sorted(keys_of(topic)) == sorted(["", *(f"kept-{n}" for n in range(0, 20, 2))])
    assert not files_with(log.home, "gone-")


def test_records_are_found_by_another_column(log: EmbeddedLog) -> None:
    """Wherever their keys have put them; of a topic without a key, too."""
    for name, key in (("orders", "id"), ("plain", None)):
        topic = log.create_topic(name, "id int, customer string", key=key, partitions=4)
        topic.append([{"id": n, "customer": "gone-ann" if n % 3 else "bob"} for n in range(12)])
        topic.append([{"id": 12, "customer": None}])
        topic.bury([{"reason": "bad_input", "error": "", "source": "stdin", "raw": b"13;gone-ann"}])
        done = topic.erase("gone-ann", column="customer")
        assert (done.records, done.dead_letters, done.incomplete) == (8, 1, [])
        assert sorted(record.value["id"] for record in topic.records()) == [0, 3, 6, 9, 12]
    assert not files_with(log.home, "gone-")
    assert log.verify().ok


def test_what_names_nothing_is_refused(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "k string, v double", key="k")
    with pytest.raises(hr.InvalidArgument, match="names no key"):
        topic.erase()
    with pytest.raises(hr.InvalidArgument, match=r"not a column.*Columns are k, v"):
        topic.erase("a", column="w")
    with pytest.raises(hr.InvalidSchema, match="a key is string"):
        topic.erase(1.0, column="v")
    with pytest.raises(hr.InvalidArgument, match="Name a column"):
        log.create_topic("plain", "v string").erase("a")


def test_bytes_of_letters_may_have_the_key_as_json_writes_it(log: EmbeddedLog) -> None:
    name = 'Zo\u00eb "\U0001f600" a/b\\c\td'
    topic = log.create_topic("t", "k string, n int", key="k")
    written = [json.dumps({"k": name, "n": "x"}, ensure_ascii=ascii).encode() for ascii in (True, False)]
    written += [written[0].replace(b"eb", b"EB"), written[0].replace(b"/", rb"\/"), written[0][:-5]]
    other = json.dumps({"k": name.replace("d", "e"), "n": "x"}).encode()
    topic.bury([{"reason": "bad_input", "error": "", "source": "x", "raw": raw} for raw in (*written, other)])
    assert topic.erase(name).dead_letters == len(written)
    assert [letter.value for letter in log.dead_letters()] == [other]


def test_bytes_of_letters_may_have_a_binary_key_as_base64(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "k binary, n int", key="k")
    raws = [json.dumps({"k": base64.b64encode(key).decode(), "n": "x"}).encode() for key in (b"\xffann", b"\xffbob")]
    topic.bury([{"reason": "bad_input", "error": "", "source": "x", "raw": raw} for raw in (*raws, b"\xffann;x")])
    assert topic.erase(b"\xffann").dead_letters == 2
    assert [letter.value for letter in log.dead_letters()] == raws[1:]


def test_letters_that_hold_the_key(log: EmbeddedLog) -> None:
    """As a row by its key; as bytes, when all parts of the key are in them; of other topics, never."""
    ahead = datetime.now(UTC) + timedelta(hours=5)
    for name in ("t", "other"):
        topic = log.create_topic(name, "a string, b int, at timestamp", key=("a", "b"), event_time="at")
        topic.append([{"a": "ann", "b": n, "at": ahead} for n in (7, 8)])
        topic.bury(
            [
                {"reason": "bad_input", "error": "", "source": f"stdin:{n}", "raw": raw}
                for n, raw in enumerate([b"ann;7;oops", b"ann;8;oops", b"7"])
            ]
        )
    done = log.topic("t").erase(("ann", 7))
    assert (done.records, done.dead_letters, done.incomplete) == (0, 2, [])
    left = [
        letter.value if isinstance(letter.value, bytes) else letter.value["b"]
        for letter in log.dead_letters()
        if letter.origin.topic == "t"
    ]
    assert left == [8, b"ann;8;oops", b"7"]
    assert len([letter for letter in log.dead_letters() if letter.origin.topic == "other"]) == 5
    assert log.verify().ok
