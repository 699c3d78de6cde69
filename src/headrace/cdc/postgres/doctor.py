"""Whether a Postgres can be captured, and what it would cost: settings, rights, slots, tables. Changes nothing."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from headrace.cdc.choice import Choice
from headrace.cdc.postgres.catalog import tables_of
from headrace.cdc.postgres.server import Server
from headrace.cdc.source import Finding

__all__ = ["findings"]

VERSIONS: Final = range(14, 19)


def findings(capture: str, url: str, choice: Choice) -> list[Finding]:
    server = Server(capture, url)
    db = server.connect()
    try:
        with server.translated():
            return [*_settings(db), *_rights(db), *_slots(db), *_tables(db, choice)]
    finally:
        db.close()


def _one(db: psycopg.Connection[Any], sql: str) -> tuple[Any, ...]:
    found = db.execute(sql).fetchone()
    assert found is not None
    return tuple(found)


def _settings(db: psycopg.Connection[Any]) -> list[Finding]:
    version = db.info.server_version // 10_000
    level, slots, senders, keep, standby = _one(
        db,
        "SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int, "
        "current_setting('max_wal_senders')::int, current_setting('max_slot_wal_keep_size'), pg_is_in_recovery()",
    )
    taken, sending = _one(
        db, "SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_stat_replication)"
    )
    unlimited = keep == "-1"
    return [
        Finding("version", version in VERSIONS, f"Postgres {version}; 14 to 18 are known to work"),
        Finding("primary", not standby, "a standby: capture its primary" if standby else "a primary"),
        Finding("wal_level", level == "logical", f"{level}; must be logical: ALTER SYSTEM SET wal_level, and restart"),
        Finding("slots", taken < slots, f"{taken} of max_replication_slots = {slots} are in use"),
        Finding("senders", sending < senders, f"{sending} of max_wal_senders = {senders} are in use"),
        Finding(
            "max_slot_wal_keep_size",
            None if unlimited else True,
            "without a limit: a capture that does not run fills the disk" if unlimited else keep,
        ),
    ]


def _rights(db: psycopg.Connection[Any]) -> list[Finding]:
    replicates, creates, emits = _one(
        db,
        "SELECT (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user), "
        "has_database_privilege(current_database(), 'CREATE'), "
        "has_function_privilege('pg_logical_emit_message(boolean, text, text)', 'EXECUTE')",
    )
    return [
        Finding("replication", bool(replicates), "the user must have it: ALTER ROLE … REPLICATION"),
        Finding("create", bool(creates), "for the publication: GRANT CREATE ON DATABASE … (and own the tables)"),
        Finding(
            "heartbeat", bool(emits), "GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text) TO …"
        ),
    ]


def _slots(db: psycopg.Connection[Any]) -> list[Finding]:
    found = db.execute(
        "SELECT slot_name::text, active, wal_status::text, "
        "coalesce((CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END) "
        "- restart_lsn, 0)::int8 FROM pg_replication_slots ORDER BY 1"
    )
    return [
        Finding(
            f"slot {name}",
            False if status in ("lost", "unreserved") else None,
            f"{'in use' if active else 'not in use'}, keeps {kept:,} bytes, wal_status {status}",
        )
        for name, active, status, kept in found
    ]


def _tables(db: psycopg.Connection[Any], choice: Choice) -> list[Finding]:
    found = tables_of(db, choice)
    if not found:
        return [Finding("tables", False, f"no table is chosen by {', '.join(choice.tables)}")]
    return [
        Finding(f"table {each.full_name}", each.refused is None, each.refused or f"key ({', '.join(each.key)})")
        for each in found
    ]
