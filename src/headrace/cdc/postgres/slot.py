"""A capture's slot and publication in Postgres: made, checked, measured. Owns when what they gave is complete, and when
changes may be missing (CaptureGap): the slot is gone, was made again, was moved by others, belongs to another server;
the publication was changed; the server's log does not have all that is here.

A publication is known by the transactions that wrote its rows in the catalog. So even one that was changed and changed
back is noticed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import psycopg

from headrace.cdc.postgres.catalog import PostgresTable, quoted
from headrace.cdc.postgres.server import Lsn, Server, Stream, lsn_of, lsn_text
from headrace.errors import CaptureGap

__all__ = [
    "Health",
    "Made",
    "Slot",
    "check_publication",
    "check_slot",
    "known",
    "make_publication",
    "make_slot",
    "measure",
    "name_for",
    "publish",
    "remove",
    "slot_of",
]

_SLOT: Final = """
    SELECT plugin::text, active, confirmed_flush_lsn::text, wal_status::text, restart_lsn::text,
           pg_current_wal_lsn() - restart_lsn, safe_wal_size
    FROM pg_replication_slots WHERE slot_name = $1"""
_PUBLICATION: Final = "SELECT oid::text || '@' || xmin::text FROM pg_publication WHERE pubname = $1"
_PUBLISHED: Final = """
    SELECT r.prrelid::text, r.xmin::text FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
    WHERE p.pubname = $1"""
_NOT_OURS: Final = (
    "the server's log does not have all that is here (an older copy was put back, or a replica took over)"
)
ALARM_TIME: Final = timedelta(hours=1)
FREED_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Slot:
    """What is recorded of a slot, to know it again."""

    name: str
    publication: str
    made: str = ""
    published: tuple[tuple[str, str], ...] = ()
    """The publication's tables, by number, and who wrote them there."""
    system: str = ""
    timeline: int = 0


@dataclass(frozen=True)
class Made:
    """A new slot. `at`: from here on it has all changes. `snapshot`: what was there before, while the stream's
    connection does nothing else."""

    at: Lsn
    snapshot: str
    system: str
    timeline: int


@dataclass(frozen=True)
class Health:
    """What a slot costs the database. `slot_bytes`: the log that is kept for it. `safe_wal_size`: so many bytes more
    may be written before the slot is lost; None without `max_slot_wal_keep_size`. `seconds_to_loss`: at the pace since
    the measurement before, if nothing is read."""

    slot_bytes: int
    wal_status: str
    safe_wal_size: int | None
    at: Lsn
    measured_us: int
    seconds_to_loss: float | None = None

    @property
    def alarm(self) -> str | None:
        """What is wrong with it, if anything."""
        if self.wal_status in ("unreserved", "lost"):
            return f"wal_status is {self.wal_status!r}: the server removes what the slot needs"
        if self.seconds_to_loss is not None and self.seconds_to_loss < ALARM_TIME.total_seconds():
            return f"the slot is lost in {timedelta(seconds=round(self.seconds_to_loss))} at this pace"
        return None


def name_for(capture: str, mark: str) -> str:
    """Of slot and publication: `headrace_shop_1f2e3d4c`. The mark keeps two homes apart."""
    return f"headrace_{re.sub(r'[^a-z0-9_]', '_', capture.lower())[:40]}_{mark}"


def make_publication(db: psycopg.Connection[Any], name: str, tables: Iterable[PostgresTable]) -> None:
    """Made anew: whatever was there was nobody's."""
    listed = ", ".join(f"TABLE ONLY {quoted(t.schema, t.name)}" for t in tables if not t.partitioned)
    roots = ", ".join(f"TABLE {quoted(t.schema, t.name)}" for t in tables if t.partitioned)
    everything = ", ".join(part for part in (listed, roots) if part)
    db.execute(f"DROP PUBLICATION IF EXISTS {quoted(name)}")
    which = f" FOR {everything}" if everything else ""
    db.execute(f"CREATE PUBLICATION {quoted(name)}{which} WITH (publish_via_partition_root = true)")


def publish(db: psycopg.Connection[Any], name: str, tables: Iterable[PostgresTable]) -> None:
    """Adds tables to the publication."""
    for table in tables:
        only = "" if table.partitioned else "ONLY "
        db.execute(f"ALTER PUBLICATION {quoted(name)} ADD TABLE {only}{quoted(table.schema, table.name)}")


def known(db: psycopg.Connection[Any], slot: Slot) -> Slot:
    """The slot with its publication as it is now."""
    made = db.execute(_PUBLICATION, (slot.publication,)).fetchone()
    tables = db.execute(_PUBLISHED, (slot.publication,)).fetchall()
    return replace(slot, made="" if made is None else str(made[0]), published=tuple(sorted(map(tuple, tables))))


def make_slot(stream: Stream, name: str, version: int) -> Made:
    """The slot, with the snapshot of the moment from which on it keeps changes."""
    system = stream.command("IDENTIFY_SYSTEM")
    options = "(SNAPSHOT 'export'" + (", FAILOVER)" if version >= 170_000 else ")")
    how = options if version >= 150_000 else "EXPORT_SNAPSHOT"
    made = stream.command(f'CREATE_REPLICATION_SLOT "{name}" LOGICAL pgoutput {how}')
    at, snapshot = made["consistent_point"], made["snapshot_name"]
    assert at is not None and snapshot is not None
    return Made(lsn_of(at), snapshot, system["systemid"] or "", int(system["timeline"] or 0))


def remove(db: psycopg.Connection[Any], slot: Slot) -> None:
    """Slot and publication, if they are there."""
    _is_freed(db, slot)  # else Postgres says who uses it
    db.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", (slot.name,)
    )
    db.execute(f"DROP PUBLICATION IF EXISTS {quoted(slot.publication)}")


def check_slot(server: Server, db: psycopg.Connection[Any], stream: Stream, slot: Slot, ours: Lsn) -> Slot:
    """CaptureGap if the slot does not go on where we are; CaptureFailed (passing) while another uses it. The slot as it
    is to be recorded: a failover to a server that has all that is here began another timeline."""

    def gap(why: str) -> CaptureGap:
        return CaptureGap(server.capture, server.shown, why, slot=slot.name)

    said = stream.command("IDENTIFY_SYSTEM")
    system, timeline = said["systemid"], int(said["timeline"] or 0)
    if system != slot.system:
        raise gap(f"this is another server (system {system}, not {slot.system}), whose log is another one")
    if timeline != slot.timeline and (left := _left_at(stream, timeline, slot.timeline)) < ours:
        raise gap(f"{_NOT_OURS}: timeline {timeline} leaves {slot.timeline} at {lsn_text(left)}")
    end = db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    if end is not None and lsn_of(end[0]) < ours:
        raise gap(f"{_NOT_OURS}: it ends at {end[0]}")
    found = db.execute(_SLOT, (slot.name,)).fetchone()
    if found is None:
        raise gap(f"the slot {slot.name!r} is gone: it was dropped, or the server is a replica that did not have it")
    plugin, active, confirmed, status, restart = found[:5]
    if status == "lost" or restart is None:
        raise gap(f"the slot {slot.name!r} is lost: the server has removed the log that it needs")
    if plugin != "pgoutput":
        raise gap(f"the slot {slot.name!r} was made again, with the plugin {plugin!r}")
    if confirmed is not None and lsn_of(confirmed) > ours:
        raise gap(f"the slot {slot.name!r} is further than the changes here: it was made again, or read by another")
    check_publication(server, db, slot)
    if active and not _is_freed(db, slot):
        raise server.failed(f"the slot {slot.name!r} is in use", passing=True)
    return replace(slot, timeline=timeline)


def _left_at(stream: Stream, timeline: int, ours: int) -> Lsn:
    """Where the server's log left our timeline; 0 if that is none of its earlier ones."""
    history = stream.command(f"TIMELINE_HISTORY {timeline}")["content"] or "" if timeline > 1 else ""
    rows = [line.split() for line in history.splitlines()]
    return next((lsn_of(row[1]) for row in rows if len(row) > 1 and row[0] == str(ours)), 0)


def _is_freed(db: psycopg.Connection[Any], slot: Slot) -> bool:
    """Whoever used it before may just be ending: it is worth a short wait."""
    until = time.monotonic() + FREED_SECONDS
    while time.monotonic() < until:
        found = db.execute(_SLOT, (slot.name,)).fetchone()
        if found is None or not found[1]:
            return True
        time.sleep(0.02)
    return False


def check_publication(server: Server, db: psycopg.Connection[Any], slot: Slot) -> None:
    """CaptureGap if others have changed the publication. Tables that they add are none of the capture's, and one that
    was dropped is in no publication."""
    now = known(db, slot)
    changed = {oid for oid, _ in {*slot.published} - {*now.published}}
    there = {str(row[0]) for row in db.execute("SELECT oid FROM pg_class WHERE oid = any($1::oid[])", ([*changed],))}
    if now.made != slot.made or changed & there:
        what = "was changed" if now.made else "is gone"
        why = f"the publication {slot.publication!r} {what}"
        raise CaptureGap(server.capture, server.shown, why, slot=slot.name)


def measure(db: psycopg.Connection[Any], slot: Slot, before: Health | None, now_us: int) -> Health | None:
    found = db.execute(_SLOT + " AND restart_lsn IS NOT NULL", (slot.name,)).fetchone()
    if found is None:
        return None
    status, restart, kept, safe = found[3], lsn_of(found[4]), int(found[5]), found[6]
    end = restart + kept
    left = None
    if before is not None and safe is not None and now_us > before.measured_us and end > before.at:
        pace = (end - before.at) / (now_us - before.measured_us) * 1e6
        left = max(0.0, float(safe) / pace)
    return Health(kept, str(status), None if safe is None else int(safe), end, now_us, left)


def slot_of(value: dict[str, Any]) -> Slot:
    """As it was recorded: `asdict`, by way of JSON."""
    return Slot(**{**value, "published": tuple(map(tuple, value["published"]))})
