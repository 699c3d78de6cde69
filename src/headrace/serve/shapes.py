"""The responses of the routes, for the OpenAPI document. Owns the names and types of every response's fields; a test
compares responses with them, and neither a missing nor an extra field passes. Nothing is checked or converted here when
the server answers: `api` and `overview` make the values."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ANSWERS", "Refusal"]

Ledger = Literal["on_time", "corrected", "dropped", "untimed"]
Span = Annotated[list[int], Field(min_length=2, max_length=2)]
RunState = Literal["running", "retrying", "stopped", "failed", "unknown"]


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Fault(Shape):
    type: str = Field(description="The error's name in Python.")
    message: str
    facts: dict[str, Any]


class Refusal(Shape):
    error: Fault


class Health(Shape):
    status: Literal["ok"]


# -- topics ----------------------------------------------------------------------------------------------


class Partition(Shape):
    partition: int
    earliest: int
    next: int
    progress: datetime | None
    arrived_at: datetime | None


class _Topic(Shape):
    name: str
    records: int
    bytes: int
    key: list[str]
    event_time: str | None
    retention: str | None
    cleanup: str
    durability: str
    schema_: str = Field(alias="schema")


class Topic(_Topic):
    partitions: int


class Group(Shape):
    group: str
    topic: str
    members: int | None = Field(description="null: a flow, which has none.")
    lag_records: int
    lag_seconds: float
    time_to_loss_seconds: float | None


class Queue(Shape):
    queue: str
    topic: str
    order: Literal["none", "key"]
    visibility_seconds: float
    max_deliveries: int
    ready: int
    in_flight: int
    waiting: int
    due: int
    delivered: int
    redelivered: int
    acked: int
    dead: int
    dead_open: int
    lost: int
    oldest_seconds: float | None


class TopicInFull(_Topic):
    topic_id: str
    partitions: list[Partition]
    retention_bytes: int | None
    unread: str
    versioned: bool
    max_ahead: str | None
    extra: str
    position: str
    groups: list[Group]
    queues: list[Queue]


class Record(Shape):
    partition: int
    offset: int
    arrived_at: datetime
    key: Any
    value: dict[str, Any] | None


class Records(Shape):
    records: list[Record]
    next: dict[str, int] = Field(description="By partition, the offset to continue from.")


class Appended(Shape):
    position: str = Field(description="For `wait_for`.")
    ranges: dict[str, Span] = Field(description="By partition: the first offset, and the one behind the last.")
    quarantined: int


class Replied(Shape):
    id: str
    value: dict[str, Any] = Field(description="The reply's columns.")
    position: str = Field(description="Behind the reply, for `wait_for`.")


class Cancelled(Shape):
    id: str
    cancelled: bool = Field(description="false: it was answered first.")


# -- dead letters ----------------------------------------------------------------------------------------


class Letter(Shape):
    id: str
    reason: str
    kind: Literal["queue", "row", "bytes"]
    topic: str
    partition: int | None
    offset: int | None
    source: str | None
    at: datetime
    error: str
    deliveries: int | None


class LetterInFull(Letter):
    value: Any


class Letters(Shape):
    count: int
    dead_letters: list[LetterInFull]


class Replayed(Shape):
    id: str
    position: str


class Dropped(Shape):
    id: str


# -- views -----------------------------------------------------------------------------------------------


class Column(Shape):
    name: str
    type: str


class Source(Shape):
    topic: str
    partition: int
    offset: int | None
    next: int | None
    lag_records: int | None
    progress: datetime | None


class Holder(Shape):
    topic: str
    partition: int | None = Field(description="null: a flow writes the topic, and how far it is, is not known.")
    progress: datetime | None = Field(description="null: the partition has none yet.")


class Kept(Shape):
    side: Literal["facts", "versions", "windows", "left", "right", "history", "events", "partials"]
    topics: list[str]
    rows: int
    bytes: int = Field(description="About so many.")
    held_by: Holder | None = Field(description="The partition until which moves on nothing goes.")


class View(Shape):
    view: str
    app: str
    columns: list[Column]
    groups: list[str]
    window: str | None
    grace: str | None
    within: str | None
    aggregates: dict[str, str]
    keep: str | None
    rows: int
    commits: int
    frontier: datetime | None
    position: str
    running: bool | None
    started_at: datetime | None
    committed_at: datetime | None
    lag_records: int | None
    sources: list[Source]
    kept: list[Kept] = Field(description="What a join keeps of each input.")


class Table(Shape):
    columns: list[Column]
    rows: list[list[Any]]


class Rows(Table):
    after: str | None
    position: str


class Result(Table):
    truncated: bool


class Origin(Shape):
    source: str = Field(description="What the program calls the topic, which may be one of headrace's own.")
    topic: str
    partition: int
    offset: int
    arrived_at: datetime | None
    record: dict[str, Any] | None = Field(description="null: the log does not have it any more.")


class Why(Shape):
    view: str
    row: dict[str, Any]
    origins: list[Origin] = Field(description="The records that the row was made of.")
    waits_for: str | None = Field(description="What makes the row final; null if it is.")
    note: str | None = Field(description="Why its records are not named; null if they are.")


class TableFacts(Shape):
    table: str
    app: str
    key: list[str]
    history: Literal["latest", "versions", "bitemporal"]
    rows: int
    versions: int | None = Field(description="null: the table keeps its latest rows only.")
    lag_records: int | None
    committed_at: datetime | None
    columns: list[Column]


class Totals(Shape):
    rows_in: int
    on_time: int
    corrected: int
    dropped: int
    untimed: int


class LedgerRows(Result):
    totals: Totals


# -- patterns and stored queries -----------------------------------------------------------------------------


class Pattern(Result):
    key: list[str] = Field(description="The columns that tell the pattern's keys apart.")


class Searched(Shape):
    flow: str
    topic: str | None = Field(description="Of the records; null: another flow makes them.")
    text: list[str] = Field(description="The columns that are searched for words.")
    into: str = Field(description="The topic or view that has the hits.")


class Queries(Shape):
    queries: str
    tenant: str | None = Field(description="The column that says whose a query is; null: they have no tenants.")
    count: int
    searches: list[Searched]


class StoredQuery(Shape):
    query: str
    tenant: str | None
    text: str | None
    version: str = Field(description="Partition and offset of its record.")
    effective: datetime = Field(description="It finds the records that arrive after that.")


class StoredQueries(Shape):
    queries: list[StoredQuery]
    more: bool


class Explanation(Shape):
    query: str
    version: str
    effective: datetime
    text: str
    meaning: str | None = Field(description="As it was understood; null: no stream is known, or it is wrong.")
    terms: list[str] = Field(description="It is looked at when a record has one of these.")
    seen: list[int] = Field(description="In how many of the records each of them was.")
    records: int = Field(description="The newest of the stream.")
    candidates: int = Field(description="In so many of them it was looked at.")
    hits: int
    error: str | None


# -- captures and indexes ----------------------------------------------------------------------------------


class CapturedTable(Shape):
    table: str
    topic: str
    state: str
    copied: int
    epoch: int
    why: str | None
    command: str | None = Field(description="By which it goes on, if it was stopped.")


class Capture(Shape):
    name: str
    database: str
    state: Literal["running", "reconnecting", "stopped", "failed", "unknown"]
    error: str | None
    place: str
    committed_at: datetime | None
    lag_bytes: int | None = Field(description="How far the database's log was ahead, when that was measured.")
    lag_ms: float | None = Field(description="From the last transaction's commit to the log here.")
    slot: str | None
    slot_bytes: int | None
    wal_status: str | None
    safe_bytes: int | None
    time_to_loss_seconds: float | None
    measured_at: datetime | None
    tables: list[CapturedTable]


class Index(Shape):
    name: str
    topic: str
    text: list[str]
    key: list[str]
    tokenizer: str
    state: Literal["serving", "building", "waiting"]
    runs: Literal["running", "retrying", "stopped", "failed", "unknown"] = Field(description="Who keeps it up.")
    rows: int
    rebuilding: int | None = Field(description="Rows of the one that is built beside it.")
    lag_records: int | None
    bytes: int
    problem: str | None


class Piece(Shape):
    text: str
    marked: bool


class Hit(Shape):
    key: list[Any]
    row: dict[str, Any]
    marks: dict[str, list[Piece]]


class Hits(Shape):
    hits: list[Hit]
    count: int
    more: bool = Field(description="There are at least so many.")
    why: str | None = Field(description="Why there can be none.")


# -- the overview ----------------------------------------------------------------------------------------


class Runner(Shape):
    state: RunState
    pid: int | None
    host: str | None
    app: str | None
    started_at: datetime | None


class LivePartition(Partition):
    rate: float | None


class LiveTopic(Shape):
    name: str
    records: int
    bytes: int
    rate: float | None
    retention: str | None
    cleanup: str
    key: list[str]
    event_time: str | None
    internal: bool
    partitions: list[LivePartition]


class LivePlace(Shape):
    offset: int | None
    progress: datetime | None
    lag: int | None
    idle: bool


class LiveSource(Shape):
    kind: Literal["topic", "view"]
    name: str


class LiveFlow(Shape):
    name: str
    app: str
    helps: str | None
    sources: list[str]
    reads: list[LiveSource]
    target: str | None
    view: str | None
    window: str | None
    operator: str | None = Field(description="What its records go through, as it is written: a join, a table, dedup.")
    grace_seconds: float
    within_seconds: float
    aggregates: dict[str, str]
    groups: list[str]
    state: RunState
    lag: int | None
    rate: float | None
    batch_seconds: float | None
    spark_jobs: int | None
    spark_tasks: int | None
    spark_seconds: float | None
    driver_batches: int | None
    frontier: datetime | None
    closes_at: datetime | None
    commits: int
    committed_at: datetime | None
    dead: int
    restarts: int
    error: str | None
    places: dict[str, dict[str, LivePlace]]
    ledger: dict[Ledger, int]
    kept: list[Kept]


class LiveTable(Shape):
    key: list[str]
    history: Literal["latest", "versions", "bitemporal"]
    versions: int | None


class LiveView(Shape):
    name: str
    rows: int
    windowed: bool
    table: LiveTable | None = Field(description="null: it is no table.")
    columns: list[Column]


class LiveGroup(Shape):
    topic: str
    group: str
    internal: bool
    members: int | None
    lag: int
    lag_seconds: float
    rate: float | None
    time_to_loss_seconds: float | None


class LiveQueue(Shape):
    topic: str
    queue: str
    ready: int
    in_flight: int
    waiting: int
    due: int
    redelivered: int
    dead: int


class LiveLetters(Shape):
    count: int
    latest: list[Letter]


class Glance(Shape):
    at: datetime
    home: str
    version: str
    runner: Runner
    topics: list[LiveTopic]
    flows: list[LiveFlow]
    views: list[LiveView]
    groups: list[LiveGroup]
    captures: list[Capture]
    indexes: list[Index]
    queues: list[LiveQueue]
    dead_letters: LiveLetters
    problems: list[str]


ANSWERS: dict[tuple[str, str], Any] = {
    ("GET", "/api/health"): Health,
    ("GET", "/api/overview"): Glance,
    ("GET", "/api/topics"): list[Topic],
    ("GET", "/api/topics/{topic}"): TopicInFull,
    ("GET", "/api/topics/{topic}/records"): Records,
    ("POST", "/api/topics/{topic}/records"): Appended,
    ("POST", "/api/topics/{topic}/calls"): Replied,
    ("GET", "/api/topics/{topic}/calls"): Replied,
    ("DELETE", "/api/topics/{topic}/calls"): Cancelled,
    ("GET", "/api/groups"): list[Group],
    ("GET", "/api/queues"): list[Queue],
    ("GET", "/api/dead-letters"): Letters,
    ("POST", "/api/dead-letters/{id}/replay"): Replayed,
    ("POST", "/api/dead-letters/{id}/drop"): Dropped,
    ("GET", "/api/views"): list[View],
    ("GET", "/api/views/{view}"): View,
    ("GET", "/api/views/{view}/rows"): Rows,
    ("GET", "/api/views/{view}/ledger"): LedgerRows,
    ("GET", "/api/views/{view}/why"): Why,
    ("GET", "/api/views/{view}/partials"): Pattern,
    ("GET", "/api/views/{view}/matches"): Pattern,
    ("GET", "/api/queries"): list[Queries],
    ("GET", "/api/queries/{queries}"): StoredQueries,
    ("GET", "/api/queries/{queries}/explain"): Explanation,
    ("GET", "/api/tables"): list[TableFacts],
    ("GET", "/api/tables/{table}"): TableFacts,
    ("GET", "/api/tables/{table}/rows"): Result,
    ("GET", "/api/tables/{table}/history"): Result,
    ("POST", "/api/query"): Result,
    ("GET", "/api/captures"): list[Capture],
    ("GET", "/api/indexes"): list[Index],
    ("GET", "/api/indexes/{index}/search"): Hits,
}
"""By method and path; what is not here is text: events, and numbers for Prometheus."""
