"""The part of `headrace doctor` that looks at other machines: brokers, the database, Spark's executors. Owns what is
asked of each, and what to do about the answers. Changes nothing, unless it is asked to write."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.flows.spark.examine import Executor
    from headrace.log.contract import Log

POSTGRES_MIN = 14
SKEW_WARN_SECONDS, SKEW_FAIL_SECONDS = 1.0, 60.0
DOCTOR = "__doctor"
"""The topic to which `--write` appends."""


class Finding(NamedTuple):
    check: str
    state: str  # ok | warn | fail
    found: str
    do: str | None = None


def skew(check: str, of: str, seconds: float) -> Finding:
    """A clock that is so far from ours, positive if it is ahead."""
    how = f"{of} is {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} this machine's clock"
    if abs(seconds) < SKEW_WARN_SECONDS:
        return Finding(check, "ok", f"within {SKEW_WARN_SECONDS:g} s of this machine's clock")
    state = "warn" if abs(seconds) < SKEW_FAIL_SECONDS else "fail"
    return Finding(check, state, how, "synchronise both with NTP (timedatectl)")


def beyond(clock_us: int, began_us: int, ended_us: int) -> float:
    """How far a clock is off, at least: it was read between two readings of ours."""
    return max(0, clock_us - ended_us) / 1e6 - max(0, began_us - clock_us) / 1e6


def brokers(log: Log, *, write: bool) -> Iterator[Finding]:
    """Of a log that servers keep."""
    from headrace.log.capabilities import Cluster

    if not isinstance(log, Cluster):
        return
    servers = log.servers()
    few = "topics have one copy: a lost broker is lost data" if len(servers) == 1 else None
    yield Finding("brokers", "ok" if few is None else "warn", ", ".join(servers), few and f"{few}; run three")
    if not write:
        yield Finding("broker clock", "ok", "not asked: headrace doctor --write appends a record and compares")
        return
    import pyarrow as pa

    row = pa.table({"at": pa.array([time.time_ns() // 1000], pa.timestamp("us", tz="UTC"))})
    topic = log.own_topic(DOCTOR, row.schema)
    end = topic.offsets()[0].next
    began_us = time.time_ns() // 1000
    topic.append_batch(row)
    ended_us = time.time_ns() // 1000
    yield Finding("broker permissions", "ok", f"may create, write and read topics ({topic.name})")
    arrivals = (batch.column(0)[0].as_py() for batch in topic.batches(0, end, columns=["_arrived_at"]))
    arrived = next(arrivals, None)
    if arrived is not None:  # to the millisecond, and cut off
        arrived_us = round(arrived.timestamp() * 1e6)
        yield skew("broker clock", "the broker's clock", beyond(arrived_us, began_us - 1000, ended_us))


def database(address: str) -> Iterator[Finding]:
    from headrace.views.open import examine_views

    began_us = time.time_ns() // 1000
    found = examine_views(address)
    ended_us = time.time_ns() // 1000
    major = int(found.version.split(".")[0].split()[0])
    old = None if major >= POSTGRES_MIN else f"headrace needs Postgres {POSTGRES_MIN} or newer: upgrade it"
    yield Finding("database", "fail" if old else "ok", f"Postgres {found.version}", old)
    yield skew("database clock", "the database's clock", beyond(found.clock_us, began_us, ended_us))
    where = f"user {found.user}, schema {found.schema}"
    if found.read_only:
        do = "name the primary: this is a standby, or the database is set to read only"
        yield Finding("database permissions", "fail", f"{where}: nothing can be written", do)
    elif not found.may_create:
        grant = f"GRANT USAGE, CREATE ON SCHEMA {found.schema} TO {found.user}"
        do = f"CREATE SCHEMA {found.schema} AUTHORIZATION {found.user}, or {grant}"
        yield Finding("database permissions", "fail", f"{where}: may not create tables", do)
    else:
        yield Finding("database permissions", "ok", f"{where}: may create tables")
    if found.reads_files:
        do = (
            "use a user who only owns the schema: CREATE ROLE … LOGIN, CREATE SCHEMA … AUTHORIZATION … (docs: Views in "
        )
        do += "Postgres). Whoever may query views can read files of the server's machine as this one"
        yield Finding("database user", "warn", f"{found.user} is a superuser, or may read the server's files", do)
    if not found.synced:
        do = "set fsync = on: after a power loss, the database may be damaged"
        yield Finding("database sync", "warn", "fsync is off", do)


def executors(spark: str, log: Log | None, log_in: Path | None, views: str | Path) -> Iterator[Finding]:
    """`log_in`: the directory of the log, if it is in one."""
    from headrace.flows.spark.examine import examine
    from headrace.log.capabilities import Cluster

    addresses: list[str] = log.servers() if isinstance(log, Cluster) else []
    if isinstance(views, str):
        addresses = [*addresses, *_hosts(views)]
    do = "look at the master's and the workers' logs. The workers need the driver's Python, with headrace installed"
    try:
        found = examine(spark, addresses, log_in)
    except HeadraceError:
        raise
    except Exception as error:  # whatever Spark has to say
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        yield Finding("executors", "fail", f"{spark}: {said[:300]}", do)
        return
    hosts = sorted({each.host for each in found.executors})
    yield Finding("executors", "ok", f"Spark {found.version} at {spark}, on {', '.join(hosts)}")
    for each in found.executors:
        yield from _executor(each, found.here)


def _executor(one: Executor, here: Executor) -> Iterator[Finding]:
    name = f"executor {one.host}"
    yield skew(f"{name} clock", "its clock", one.skew_us / 1e6)
    other = [
        f"{what} {there}, here {ours}"
        for what, there, ours in (
            ("Python", _minor(one.python), _minor(here.python)),
            ("headrace", one.headrace, here.headrace),
            ("pyarrow", one.pyarrow.split(".")[0], here.pyarrow.split(".")[0]),
        )
        if there != ours
    ]
    versions = f"Python {one.python}, headrace {one.headrace}, pyarrow {one.pyarrow}"
    do = "install the same versions there, and name that Python with PYSPARK_PYTHON"
    if other:
        yield Finding(f"{name} versions", "fail", "; ".join(other), do)
    else:
        yield Finding(f"{name} versions", "ok", versions)
    for why in one.unreached:
        do = "let the executors reach it: its name must be known there, and no firewall be between. A log in a "
        do += "directory is for executors on its machine"
        yield Finding(f"{name} network", "fail", why, do)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _hosts(address: str) -> list[str]:
    from urllib.parse import urlsplit

    parts = urlsplit(address)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    return [host if ":" in host else f"{host}:5432" for host in hosts if host]
