"""Whether a MySQL or MariaDB can be captured: settings, rights, what its binlog keeps, tables. Changes nothing."""

from __future__ import annotations

import contextlib
import re
from typing import Final

from headrace.cdc.choice import Choice
from headrace.cdc.mysql.address import Address
from headrace.cdc.mysql.catalog import cascades_of, tables_of
from headrace.cdc.mysql.server import Server, Session
from headrace.cdc.source import Finding

__all__ = ["findings"]

_WANTED: Final = (
    ("binlog_format", "ROW", "SET GLOBAL binlog_format = ROW"),
    ("binlog_row_image", "FULL", "SET GLOBAL binlog_row_image = FULL"),
    ("binlog_row_metadata", "FULL", "SET GLOBAL binlog_row_metadata = FULL, which names columns in the log"),
    ("binlog_row_value_options", "", "SET GLOBAL binlog_row_value_options = ''"),
    ("binlog_transaction_compression", "OFF", "SET GLOBAL binlog_transaction_compression = OFF"),
)


def findings(capture: str, url: str, choice: Choice) -> list[Finding]:
    server = Server(capture, Address.of(url))
    with server.translated(), contextlib.closing(server.connect()) as db:
        return [*_settings(db), *_rights(db), *_kept(db), *_tables(db, choice)]


def _settings(db: Session) -> list[Finding]:
    parts = re.search(r"(\d+)\.(\d+)", db.version.replace("5.5.5-", ""))
    version = (int(parts[1]), int(parts[2])) if parts else (0, 0)
    title, least = ("MariaDB", (10, 5)) if db.is_mariadb else ("MySQL", (8, 0))
    log_bin, server_id = db.variable("log_bin"), db.variable("server_id") or "0"
    found = [
        Finding("version", version >= least, f"{title} {db.version}; {least[0]}.{least[1]} or later is needed"),
        Finding("log_bin", log_bin == "ON", f"{log_bin}; must be ON: log_bin in the server's settings, and restart"),
        Finding("server_id", server_id != "0", f"{server_id}; must not be 0"),
    ]
    for name, wanted, how in _WANTED:
        value = db.variable(name)
        if value is not None:
            found.append(
                Finding(name, value.upper() == wanted, f"{value or 'none'}; must be {wanted or 'none'}: {how}")
            )
        elif name == "binlog_row_metadata":
            found.append(Finding(name, False, "the server does not have it: it is too old"))
    sync = db.variable("sync_binlog")
    safe = (
        "each commit is durable"
        if sync == "1"
        else "after a crash the log may end before what was captured: set it to 1"
    )
    return [*found, Finding("sync_binlog", True if sync == "1" else None, f"{sync}; {safe}")]


def _rights(db: Session) -> list[Finding]:
    said = "\n".join(str(row[0]) for row in db.rows("SHOW GRANTS")).upper()
    found = [_right(said, "REPLICATION SLAVE", "to read the binlog", "REPLICATION SLAVE", "REPLICATION REPLICA")]
    names = ("REPLICATION CLIENT", "BINLOG MONITOR")
    found.append(_right(said, "REPLICATION CLIENT", "to know where the binlog ends", *names))
    if not db.is_mariadb:
        found.append(_right(said, "RELOAD", "to begin a snapshot while nobody writes", "RELOAD", "FLUSH_TABLES"))
    return found


def _right(said: str, name: str, why: str, *names: str) -> Finding:
    has = any(f"{each}" in said for each in (*names, "GRANT ALL PRIVILEGES ON *.*"))
    return Finding(name.lower(), has, f"{why}: GRANT {name} ON *.* TO …")


def _kept(db: Session) -> list[Finding]:
    seconds = db.variable("binlog_expire_logs_seconds") or str(86400 * float(db.variable("expire_logs_days") or 0))
    days = float(seconds) / 86400
    says = f"{days:g} days; a capture that stands still for longer reads its tables again" if days else "for ever"
    return [Finding("binlog_expire", None, f"binlogs are kept {says}")]


def _tables(db: Session, choice: Choice) -> list[Finding]:
    found = tables_of(db, choice)
    if not found:
        return [Finding("tables", False, f"no table is chosen by {', '.join(choice.tables)}")]
    cascades = {each.child: parent for parent, children in cascades_of(db).items() for each in children}
    return [
        Finding(f"table {each.full_name}", each.refused is None, each.refused or f"key ({', '.join(each.key)})")
        for each in found
    ] + [
        Finding(
            f"cascade {each.full_name}",
            None,
            f"is read again whenever rows of {cascades[each.full_name]} go, or their keys change: its foreign key "
            "cascades, and such changes are in no binlog",
        )
        for each in found
        if each.full_name in cascades
    ]
