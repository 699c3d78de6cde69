"""The options of the data source: known by name, refused with what was probably meant, and all of them documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.errors import InvalidArgument, InvalidName
from headrace.flows.source.source_options import (
    ALIASES,
    OPTIONS,
    ReadOptions,
    WriteOptions,
    read_options,
    write_options,
)

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert read_options({"path": "clicks"}, "read") == ReadOptions(tmp_path / ".headrace", "clicks")
    assert write_options({"path": "clicks"}, "write") == WriteOptions(tmp_path / ".headrace", "clicks")
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "there"))
    assert read_options({"path": "clicks"}, "read").home == tmp_path / "there"


def test_names_are_of_any_case_and_may_be_kafkas() -> None:
    given = {
        "PATH": "clicks",
        "HOME": "/h",
        "startingoffsets": '{"0": 5, "1": 7}',
        "maxOffsetsPerTrigger": "100",
        "minpartitions": "8",
        "maxRecordsPerPartition": "50000",
        "columns": "user, ms",
        "partitions": "1,0",
        "failOnDataLoss": "true",
        "kafka.group.id": "spark",
    }
    assert read_options(given, "readStream") == ReadOptions(
        Path("/h"),
        "clicks",
        start='{"0": 5, "1": 7}',
        columns=("user", "ms"),
        partitions=frozenset({0, 1}),
        partitions_min=8,
        partition_rows_max=50_000,
        batch_rows_max=100,
        group="spark",
    )
    assert read_options({"path": "c", "columns": '["a, b", "c"]'}, "read").columns == ("a, b", "c")


@pytest.mark.parametrize(
    ("options", "door", "said"),
    [
        ({"hoem": "x"}, "read", "no such option. Did you mean 'home'?"),
        ({"maxrowsperbach": "5"}, "readStream", "Did you mean 'maxRowsPerBatch'?"),
        ({"maxRowsPerBatch": "5"}, "read", "it is for readStream"),
        ({"stop": "latest"}, "readStream", "it is for read"),
        ({"subscribe": "clicks"}, "read", "name the topic in load"),
        ({"kafka.bootstrap.servers": "x"}, "read", "name it in 'home'"),
        ({"checkpointLocation": "x"}, "readStream", "it belongs to writeStream"),
        ({"start": "earliest", "startingOffsets": "latest"}, "read", "is the same as 'start'"),
        ({"start": "yesterday"}, "read", 'is not ISO 8601.*"earliest", "latest"'),
        ({"start": "2026-01-01T00:00:00"}, "read", "has no time zone"),
        ({"start": '{"0": "5"}'}, "read", "an offset by partition"),
        ({"start": "{0: 5}"}, "read", "must be JSON"),
        ({"maxRowsPerBatch": "0"}, "readStream", "1 or more"),
        ({"minPartitions": "two"}, "read", "must be a whole number"),
        ({"partitions": "0,x"}, "read", "must be a whole number"),
        ({"columns": "[user]"}, "read", "JSON as in"),
        ({"failOnDataLoss": "false"}, "readStream", "never skipped in silence"),
        ({"writer": "w"}, "write", "needs 'batchId' beside it"),
        ({"batchId": "1"}, "write", "needs 'writer' beside it"),
        ({"writer": "w", "batchId": "1"}, "writeStream", "it is for write"),
        ({"carryProgress": "yes"}, "write", "true or false"),
        ({"start": "latest"}, "write", "it is for read and readStream"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: dict[str, str], door: str, said: str) -> None:
    parse = read_options if door.startswith("read") else write_options
    with pytest.raises(InvalidArgument, match=said) as raised:
        parse({"path": "clicks", **options}, door)
    assert raised.value.argument.lower() in {name.lower() for name in options}


def test_a_topic_and_names_are_needed() -> None:
    with pytest.raises(InvalidArgument, match="name the topic"):
        read_options({}, "read")
    with pytest.raises(InvalidName):
        read_options({"path": "c", "group": "a b"}, "readStream")


def test_every_option_is_in_the_documentation() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in {*OPTIONS, *ALIASES} - {"path", "topic", "checkpointLocation", "queryName"}:
        assert re.search(rf"^\|.*`{re.escape(name)}`", page, re.MULTILINE), f"docs/spark.md has no line for {name!r}"
