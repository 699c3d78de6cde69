"""Upkeep: what keeps a log alive for years. Owns the order of it (retention, compaction, sealing, reclaiming), the lock
that lets one process at a time do it, and what is worth it in the background. Does not know how any of it is done.

Every step is a transaction of its own and begins by looking up what is due: the next run continues an interrupted one,
and readers and writers continue meanwhile. Damage in one partition is reported and does not stop the others."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.errors import Closed, DamagedData, HeadraceError, IndexDamaged, OffsetOutOfRange, TopicReplaced
from headrace.log.contract import Maintained
from headrace.log.embedded.storage import retention
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.committer import SEAL_AT
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import PARTITIONS, PartitionRow
from headrace.log.embedded.upkeep import archiving, compaction, erasing, reclaiming, sealing
from headrace.log.embedded.upkeep.swapping import Changed
from headrace.storage import disk

COMPACT_RECORDS = 10_000
"""In the background a partition is compacted when so many records came since, and as many as it had kept."""

logger = logging.getLogger("headrace.log")


@contextmanager
def alone(engine: Engine, *, wait: bool) -> Iterator[bool]:
    """One at a time, of all processes and threads. False: somebody else is at it, and `wait` is not wanted."""
    if not engine.upkeep_lock.acquire(blocking=wait):
        yield False
        return
    try:
        with engine.turnstile.upkeep(wait=wait) as got:
            yield got
    finally:
        engine.upkeep_lock.release()


def maintain(engine: Engine, catalog: Catalog) -> Maintained:
    """All that can be done now."""
    with alone(engine, wait=True):
        return _run(engine, catalog, None)


def _run(engine: Engine, catalog: Catalog, wanted: Callable[[TopicState, PartitionRow], bool] | None) -> Maintained:
    done = Maintained()
    with _reported("what a mend has left", done):
        catalog.delete_copy()
    topics = catalog.all(system=True)
    for topic in topics:
        with contextlib.suppress(TopicReplaced):  # deleted meanwhile
            _retain(engine, catalog, topic, done)
    if disk.is_low(engine.data):  # what rewrites needs space
        with _reported("disk space", done):
            engine.committer.checkpoint()
        _reclaim(engine, catalog, done)
    for topic in topics:
        with contextlib.suppress(TopicReplaced):
            _rewrite(engine, catalog, topic, wanted, done)
    _reclaim(engine, catalog, done)
    done.incomplete += erasing.wipe_if_due(engine)
    return done


def _retain(engine: Engine, catalog: Catalog, topic: TopicState, done: Maintained) -> None:
    with _reported(topic.name, done):
        if topic.settings.archive is not None:
            done.records_archived += archiving.archive(engine, catalog, topic)
            return
        retained = retention.retain(engine, topic)
        done.records_deleted += retained.records
        done.overtaken += retained.overtaken
        if retained.waits is not None:
            done.postponed.append(f"{topic.name}: {retained.waits}")


def _reclaim(engine: Engine, catalog: Catalog, done: Maintained) -> None:
    with _reported("disk space", done):
        reclaimed = reclaiming.reclaim(engine, catalog)
        done.files_removed += reclaimed.files
        done.bytes_freed += reclaimed.bytes
        done.problems += reclaimed.problems


def _rewrite(
    engine: Engine,
    catalog: Catalog,
    topic: TopicState,
    wanted: Callable[[TopicState, PartitionRow], bool] | None,
    done: Maintained,
) -> None:
    with engine.index.reading() as db:
        states = PARTITIONS.select(db, "WHERE topic = ? ORDER BY partition", topic.id)
    for state in states:
        if wanted is not None and not wanted(topic, state):
            continue
        with _reported(f"{topic.name}/{state.partition}", done):
            if topic.settings.cleanup == "compact":
                age_at_us = _age_at_us(engine)
                done.records_compacted += compaction.compact(engine, catalog, topic, state.partition, age_at_us)
            done.batches_sealed += sealing.seal(engine, catalog, topic, state.partition)
    done.at_risk += retention.at_risk(engine, topic)


@contextmanager
def _reported(what: str, done: Maintained) -> Iterator[None]:
    """What is wrong in one place does not stop the rest."""
    try:
        yield
    except (Changed, OffsetOutOfRange):  # somebody deleted or rewrote it meanwhile: the next run looks again
        return
    except (Closed, TopicReplaced):
        raise
    except (DamagedData, IndexDamaged) as error:
        done.problems.append(f"{what}: {error}")
    except HeadraceError as error:
        done.postponed.append(f"{what}: {error}")


def in_background(engine: Engine, catalog: Catalog, stopping: Callable[[], bool]) -> bool:
    """What is worth doing now, unless somebody else is at it; what users should know is logged. Whether anything was
    done."""

    def wanted(topic: TopicState, state: PartitionRow) -> bool:
        return not stopping() and _worth_it(engine, topic, state)

    with alone(engine, wait=False) as got:
        if not got:
            return False
        done = _run(engine, catalog, wanted)
    for news in (*done.overtaken, *done.at_risk, *done.problems, *done.postponed, *done.incomplete):
        logger.warning("%s", news)
    return bool(done.records_deleted or done.records_compacted or done.batches_sealed or done.files_removed)


def _age_at_us(engine: Engine) -> int:
    with engine.index.reading() as db:
        return retention.age_at_us(engine, db)


def _worth_it(engine: Engine, topic: TopicState, state: PartitionRow) -> bool:
    plain = sum(sealing.plain_bytes(engine, topic, state.partition).values())
    if state.small >= SEAL_AT or plain >= sealing.COMPRESS_BYTES:
        return True
    dirty = state.next - state.cleaned
    over = state.revisit is not None and state.revisit <= _age_at_us(engine)
    return topic.settings.cleanup == "compact" and (over or dirty >= max(COMPACT_RECORDS, state.records // 2))
