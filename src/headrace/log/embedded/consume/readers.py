"""Flows as readers of topics. A flow keeps its offsets beside its results, and reports them to the log for retention
and lag. Owns the registration of a flow: a group with a reserved name and without members. If the last report is old,
or a power loss took it, more is kept than necessary."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from headrace.log.contract import FLOW_GROUP
from headrace.log.embedded.storage.catalog import TopicState
from headrace.log.embedded.storage.committer import Plain, Tx
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import GROUPS, SHARES, GroupRow, ShareRow
from headrace.log.embedded.storage.retention import paced

__all__ = ["forget", "report"]


def report(engine: Engine, flow: str, offsets: list[tuple[TopicState, Mapping[int, int]]]) -> Future[None]:
    """Enters the flow as a reader of the topics, which needs their records from these offsets on. Not synced."""
    name = FLOW_GROUP + flow

    def apply(tx: Tx) -> None:
        for topic, places in offsets:
            row = tx.topic(topic.id)
            if row is None or row.name is None:
                continue  # deleted: the flow finds out by itself
            if GROUPS.get(tx.db, topic.id, name) is None:
                GROUPS.put(tx.db, GroupRow(topic.id, name, 0))
            for partition, offset in places.items():
                share = SHARES.get(tx.db, topic.id, name, partition)
                share = share or ShareRow(topic.id, name, partition, None, 0, None, None, 0, 0, 0, 0, 0)
                SHARES.put(tx.db, paced(share, offset, tx.now_us)._replace(committed=offset))
            if topic.settings.unread == "keep":  # there may be room for those who wait for it
                tx.touched.add(topic.uid)

    return engine.committer.submit(Plain(apply, synced=False))


def forget(engine: Engine, flow: str) -> None:
    """The flow is no more: nothing is kept for it, in any topic."""
    name = FLOW_GROUP + flow

    def apply(tx: Tx) -> None:
        for group in GROUPS.select(tx.db, "WHERE name = ?", name):
            if (topic := tx.topic(group.topic)) is not None:
                tx.touched.add(topic.uid)  # there may be room for those who wait for it
        GROUPS.delete(tx.db, "WHERE name = ?", name)
        SHARES.delete(tx.db, "WHERE group_name = ?", name)

    engine.committer.run(apply, synced=False)
