"""The options of the Spark data source: their names, what each may be used for, and what their texts mean. Refuses
what it does not know, naming what was probably meant. Knows no Spark and opens no log."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.durations import instant_us
from headrace.errors import InvalidArgument, nearest
from headrace.names import check_name

__all__ = ["OPTIONS", "Door", "ReadOptions", "WriteOptions", "check", "read_options", "write_options"]

Door = str
"""Where an option was given: `read`, `readStream`, `write` or `writeStream`."""

_READ = frozenset({"read", "readStream"})
_WRITE = frozenset({"write", "writeStream"})
_STREAM = frozenset({"readStream"})

OPTIONS: dict[str, frozenset[Door]] = {
    "path": _READ | _WRITE,  # what load() and save() are given: the topic
    "home": _READ | _WRITE,
    "start": _READ,
    "stop": frozenset({"read"}),
    "columns": _READ,
    "partitions": _READ,
    "minPartitions": _READ,
    "maxRowsPerPartition": _READ,
    "maxRowsPerBatch": _STREAM,
    "group": _STREAM,
    "failOnDataLoss": _READ,
    "carryProgress": _WRITE,
    "writer": frozenset({"write"}),
    "batchId": frozenset({"write"}),
    "checkpointLocation": frozenset({"writeStream"}),  # Spark's own, which it passes on
    "queryName": frozenset({"writeStream"}),  # the same
}

ALIASES = {  # what Kafka's source calls them
    "topic": "path",
    "startingOffsets": "start",
    "endingOffsets": "stop",
    "maxOffsetsPerTrigger": "maxRowsPerBatch",
    "maxRecordsPerPartition": "maxRowsPerPartition",
    "kafka.group.id": "group",
}

_INSTEAD = {
    "subscribe": "name the topic in load('clicks')",
    "assign": "name the topic in load('clicks'), and its partitions in 'partitions'",
    "startingtimestamp": "a time goes into 'start', as in 2026-01-31T12:00:00Z",
    "endingtimestamp": "a time goes into 'stop', as in 2026-01-31T12:00:00Z",
    "kafka.bootstrap.servers": "the log is a directory: name it in 'home'",
    "checkpointlocation": "it belongs to writeStream",
}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    home: Path
    topic: str
    start: str = "earliest"
    stop: str = "latest"
    columns: tuple[str, ...] | None = None
    partitions: frozenset[int] | None = None
    partitions_min: int | None = None
    partition_rows_max: int | None = None
    batch_rows_max: int | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    home: Path
    topic: str
    carry_progress: bool = False
    writer: str | None = None
    batch: int | None = None


def check(given: Mapping[str, str], *doors: Door) -> dict[str, str]:
    """The options by their right names; an unknown one, or one that belongs elsewhere, is refused."""
    known = {name.lower(): name for name in (*OPTIONS, *ALIASES)}
    out: dict[str, str] = {}
    for name, value in given.items():
        spelled = known.get(name.lower())
        if spelled is None:
            close = nearest(name.lower(), list(known))
            for lower, right in known.items():
                close = close.replace(f"'{lower}'", f"'{right}'")
            instead = _INSTEAD.get(name.lower())
            raise InvalidArgument(
                name,
                value,
                f"the source has no such option.{f' Instead: {instead}.' if instead else close} There are: "
                f"{', '.join(option for option, at in OPTIONS.items() if at & set(doors))}",
            )
        option = ALIASES.get(spelled, spelled)
        if option in out:
            raise InvalidArgument(name, value, f"is the same as {option!r}, which is given as well")
        if not OPTIONS[option] & set(doors):
            instead = _INSTEAD.get(option.lower(), f"it is for {' and '.join(sorted(OPTIONS[option]))}")
            raise InvalidArgument(spelled, value, f"means nothing here: {instead}")
        out[option] = value
    return out


def read_options(given: Mapping[str, str], *doors: Door) -> ReadOptions:
    options = check(given, *doors)
    if options.get("failOnDataLoss", "true").lower() != "true":
        raise InvalidArgument(
            "failOnDataLoss",
            options["failOnDataLoss"],
            "lost records are never skipped in silence. Begin again with a new checkpoint and start='earliest', "
            "or keep unread records with 'group' and the topic's unread='keep'",
        )
    chosen = options.get("partitions")
    group = options.get("group")
    return ReadOptions(
        _home(options),
        _topic(options),
        _place(options, "start", "earliest"),
        _place(options, "stop", "latest"),
        None if "columns" not in options else _names(options["columns"]),
        None if chosen is None else frozenset(_whole(part, "partitions", 0) for part in chosen.split(",")),
        _count(options, "minPartitions"),
        _count(options, "maxRowsPerPartition"),
        _count(options, "maxRowsPerBatch"),
        None if group is None else check_name(group, argument="group"),
    )


def write_options(given: Mapping[str, str], *doors: Door) -> WriteOptions:
    options = check(given, *doors)
    if ("writer" in options) != ("batchId" in options):
        one, other = ("writer", "batchId") if "writer" in options else ("batchId", "writer")
        raise InvalidArgument(one, options[one], f"needs {other!r} beside it: together they say what is a repetition")
    carry = options.get("carryProgress", "false").lower()
    if carry not in ("true", "false"):
        raise InvalidArgument("carryProgress", options["carryProgress"], "must be true or false")
    return WriteOptions(
        _home(options),
        _topic(options),
        carry == "true",
        check_name(options["writer"], argument="writer") if "writer" in options else None,
        _whole(options["batchId"], "batchId", 0) if "batchId" in options else None,
    )


def offsets_by_partition(text: str, option: str) -> dict[int, int]:
    """`{"0": 120, "1": 90}`, as JSON has it."""
    wrong = 'must be JSON with an offset by partition, as in {"0": 120, "1": 90}'
    try:
        found = json.loads(text)
        offsets = {int(partition): offset for partition, offset in found.items()}
    except (ValueError, AttributeError):
        raise InvalidArgument(option, text, wrong) from None
    if any(isinstance(offset, bool) or not isinstance(offset, int) for offset in offsets.values()):
        raise InvalidArgument(option, text, wrong)
    return offsets


def _home(options: Mapping[str, str]) -> Path:
    # Made absolute where the option is read, on the driver: tasks may run in another directory.
    return Path(options.get("home") or os.environ.get("HEADRACE_HOME") or ".headrace").absolute()


def _topic(options: Mapping[str, str]) -> str:
    if "path" not in options:
        raise InvalidArgument("path", None, "name the topic, as in load('clicks') or save('clicks')")
    return options["path"]


def _place(options: Mapping[str, str], option: str, otherwise: str) -> str:
    text = options.get(option, otherwise).strip()
    if text.startswith("{"):
        offsets_by_partition(text, option)
    elif text not in ("earliest", "latest"):
        try:
            instant_us(text, argument=option)
        except InvalidArgument as error:
            raise InvalidArgument(
                option, text, f'{error.why}; or say "earliest", "latest" or {{"0": 120}} (offsets by partition)'
            ) from None
    return text


def _names(text: str) -> tuple[str, ...]:
    """`a, b`, or JSON where a name has a comma in it."""
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(",") if name.strip())
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidArgument("columns", text, 'must be names with commas between, or JSON as in ["user", "ms"]')
    return tuple(names)


def _count(options: Mapping[str, str], option: str) -> int | None:
    return _whole(options[option], option, 1) if option in options else None


def _whole(text: str, option: str, lowest: int) -> int:
    if not text.strip().isdecimal() or int(text) < lowest:
        raise InvalidArgument(option, text, f"must be a whole number, {lowest} or more")
    return int(text)
