"""What a topic is: its settings and its description. Apart from the rest of the contract because listing topics needs
no more, and should cost no more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What a topic is, apart from its schema. Durations in microseconds."""

    key: tuple[str, ...] = ()
    event_time: str | None = None
    partitions: int = 1
    retention_us: int | None = None
    retention_bytes: int | None = None
    cleanup: str = "delete"
    unread: str = "delete"
    """What retention does with records that a registered group or queue has not read: "delete" or "keep" them."""
    tombstone_grace_us: int = 86_400_000_000
    """How long compaction keeps a tombstone at least."""
    durability: str = "fsync"
    compression: str = "zstd"
    """Of batches that upkeep has rewritten; what was just appended is plain."""
    versioned: bool = False
    max_ahead_us: int = 3_600_000_000
    forget_us: int = 604_800_000_000
    extra: str = "forbid"
    extra_kept: bool = False
    """Whether unknown fields ever were kept: then old records have some, whatever `extra` is now."""
    partitions_added: bool = False
    """Whether there once were fewer: then a key's records may lie in several partitions."""
    changes: bool = False
    """Whether its records are changes of rows: `op` says of each whether the row came, '+', or went, '-'."""
    made_by: str = ""
    """The flow that made the topic, and gives it the columns that its records get."""
    mended_from: tuple[str, ...] = ()
    """The ids of the topics in whose place a mend has put this one: dead letters know theirs by them."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as `describe()` tells it; made without Arrow."""

    name: str
    topic_id: str
    schema: str
    schema_version: int
    settings: TopicSettings
    records: int
    bytes: int
