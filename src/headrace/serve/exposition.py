"""Numbers for Prometheus: topics, groups, queues, views, dead letters, and the flows of this process. Owns the names of
the metrics that need no Spark; `flows.metrics` owns those of flows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.flows import metrics

if TYPE_CHECKING:
    from headrace.flows.status import FlowStatus

__all__ = ["METRICS", "exposition"]

Facts = dict[str, Any]

METRICS: dict[str, tuple[str, str, str, tuple[str, ...], Callable[[Facts], float | None]]] = {
    # name: kind, what it is, the list in the overview (or `kept`, of all flows), labels, the value
    "headrace_topic_records": ("gauge", "Records held.", "topics", ("name",), lambda topic: topic["records"]),
    "headrace_topic_bytes": ("gauge", "Bytes held.", "topics", ("name",), lambda topic: topic["bytes"]),
    "headrace_topic_appended_total": (
        "counter",
        "Records ever appended.",
        "topics",
        ("name",),
        lambda topic: sum(part["next"] for part in topic["partitions"]),
    ),
    "headrace_group_lag_records": (
        "gauge",
        "Records a group has not read.",
        "groups",
        ("topic", "group"),
        lambda group: group["lag"],
    ),
    "headrace_group_lag_seconds": (
        "gauge",
        "How long the oldest record that a group has not read has waited.",
        "groups",
        ("topic", "group"),
        lambda group: group["lag_seconds"],
    ),
    "headrace_group_members": (
        "gauge",
        "Live members of a group.",
        "groups",
        ("topic", "group"),
        lambda group: group["members"],
    ),
    "headrace_group_time_to_loss_seconds": (
        "gauge",
        "Time until retention deletes records that a group has not read; absent if that does not happen at its pace.",
        "groups",
        ("topic", "group"),
        lambda group: group["time_to_loss_seconds"],
    ),
    "headrace_queue_ready": (
        "gauge",
        "Messages not delivered yet.",
        "queues",
        ("topic", "queue"),
        lambda queue: queue["ready"],
    ),
    "headrace_queue_in_flight": (
        "gauge",
        "Messages with a consumer.",
        "queues",
        ("topic", "queue"),
        lambda queue: queue["in_flight"],
    ),
    "headrace_queue_redelivered_total": (
        "counter",
        "Deliveries that were not the first.",
        "queues",
        ("topic", "queue"),
        lambda queue: queue["redelivered"],
    ),
    "headrace_queue_dead": (
        "gauge",
        "Messages that are dead letters now.",
        "queues",
        ("topic", "queue"),
        lambda queue: queue["dead"],
    ),
    "headrace_view_rows": ("gauge", "Rows of a view.", "views", ("name",), lambda view: view["rows"]),
    "headrace_view_commits_total": (
        "counter",
        "Committed batches of a view or a flow's topic.",
        "flows",
        ("name",),
        lambda flow: flow["commits"],
    ),
    "headrace_view_lag_records": (
        "gauge",
        "Records in the log that a view does not have yet.",
        "flows",
        ("name",),
        lambda flow: flow["lag"],
    ),
    "headrace_view_frontier_seconds": (
        "gauge",
        "Event time up to which a view is complete, in seconds since 1970.",
        "flows",
        ("name",),
        lambda flow: _epoch(flow["frontier"]),
    ),
    "headrace_join_rows": (
        "gauge",
        "Rows that a join, or a table's history, keeps of one input.",
        "kept",
        ("name", "side"),
        lambda kept: kept["rows"],
    ),
    "headrace_join_bytes": (
        "gauge",
        "About how many bytes these rows have.",
        "kept",
        ("name", "side"),
        lambda kept: kept["bytes"],
    ),
    "headrace_capture_up": (
        "gauge",
        "1 while a process captures the database; absent if that is not known.",
        "captures",
        ("name",),
        lambda capture: _up(capture["state"]),
    ),
    "headrace_capture_lag_bytes": (
        "gauge",
        "How far the database's log was ahead of a capture when that was measured.",
        "captures",
        ("name",),
        lambda capture: capture["lag_bytes"],
    ),
    "headrace_capture_lag_seconds": (
        "gauge",
        "From the commit of the last transaction to the log here.",
        "captures",
        ("name",),
        lambda capture: None if capture["lag_ms"] is None else capture["lag_ms"] / 1e3,
    ),
    "headrace_capture_slot_bytes": (
        "gauge",
        "Log that the database keeps for a capture.",
        "captures",
        ("name",),
        lambda capture: capture["slot_bytes"],
    ),
    "headrace_capture_time_to_loss_seconds": (
        "gauge",
        "Time until the database removes what a capture has not read; absent if it does not at its pace.",
        "captures",
        ("name",),
        lambda capture: capture["time_to_loss_seconds"],
    ),
    "headrace_capture_tables_stopped": (
        "gauge",
        "Tables of a capture that were stopped.",
        "captures",
        ("name",),
        lambda capture: sum(table["state"] == "stopped" for table in capture["tables"]),
    ),
    "headrace_index_rows": (
        "gauge",
        "Rows of a full-text index.",
        "indexes",
        ("name",),
        lambda index: index["rows"],
    ),
    "headrace_index_lag_records": (
        "gauge",
        "Records of its topic that a full-text index does not have yet.",
        "indexes",
        ("name",),
        lambda index: index["lag_records"],
    ),
    "headrace_dead_letters": (
        "gauge",
        "Dead letters that were neither replayed nor dropped.",
        "dead_letters",
        (),
        lambda letters: letters["count"],
    ),
}


def exposition(overview: Facts, statuses: list[FlowStatus] | None) -> str:
    """In Prometheus's text format. Names have no quotes: names.py."""
    lines: list[str] = []
    kept = [{"name": flow["name"], **each} for flow in overview["flows"] for each in flow["kept"]]
    overview = {**overview, "kept": kept}
    for name, (kind, text, where, labels, value) in METRICS.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        found = overview[where]
        for each in found if isinstance(found, list) else [found]:
            lines += _sample(name, ((label, each[label]) for label in labels), value(each))
    return "\n".join(lines) + "\n" + ("" if statuses is None else metrics.exposition(statuses))


def _sample(name: str, labels: Iterable[tuple[str, str]], value: float | None) -> list[str]:
    if value is None:
        return []
    said = ",".join(f'{label}="{text}"' for label, text in labels)
    return [f"{name}{f'{{{said}}}' if said else ''} {value:.16g}"]


def _up(state: str) -> float | None:
    return {"running": 1.0, "unknown": None}.get(state, 0.0)


def _epoch(when: datetime | None) -> float | None:
    return None if when is None else when.timestamp()
