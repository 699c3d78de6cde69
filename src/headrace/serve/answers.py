"""Answers: values and errors as JSON. Owns which error has which status. An error that is not headrace's own becomes
one sentence without details of the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from headrace.errors import (
    CallCancelled,
    ClockAhead,
    Closed,
    CommitConflict,
    Fenced,
    ForgottenSequence,
    HeadraceError,
    InvalidArgument,
    InvalidQuery,
    InvalidRule,
    InvalidSchema,
    InvalidSearch,
    KafkaFailed,
    LogMissing,
    OffsetOutOfRange,
    OutOfOrderSequence,
    Overloaded,
    QueryTimeout,
    RecordRejected,
    RecordTooLarge,
    RegistryFailed,
    StorageError,
    TopicExists,
    TopicFull,
    TopicReplaced,
    UnknownCapture,
    UnknownGroup,
    UnknownQuery,
    UnknownQueue,
    UnknownRule,
    UnknownSink,
    UnknownTopic,
    UnknownView,
    Unsupported,
    VersionConflict,
    ViewInUse,
    WaitTimeout,
    WatchLost,
)
from headrace.jsonrows import encode_row
from headrace.rows import python_values
from headrace.schema import type_ddl
from headrace.serve.home import Busy

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ERRORS", "EXACT_MAX", "Json", "error_response", "failure", "refusal", "table_json"]

STATUS: list[tuple[int, tuple[type[HeadraceError], ...]]] = [  # the first that fits
    (413, (RecordTooLarge,)),
    (422, (RecordRejected,)),
    (
        404,
        (UnknownTopic, UnknownGroup, UnknownQueue, UnknownView, UnknownCapture, UnknownSink, LogMissing),
    ),
    (404, (UnknownQuery, UnknownRule)),
    (504, (WaitTimeout, QueryTimeout)),  # a CallTimeout, too
    (503, (Busy, TopicFull, ClockAhead, Overloaded, StorageError, Closed)),
    (503, (KafkaFailed, RegistryFailed)),
    (409, (TopicExists, TopicReplaced, VersionConflict, OutOfOrderSequence, ForgottenSequence, Fenced)),
    (409, (CommitConflict, ViewInUse, WatchLost, CallCancelled)),
    (400, (InvalidArgument, InvalidQuery, InvalidRule, InvalidSchema, InvalidSearch, OffsetOutOfRange, Unsupported)),
]
ERRORS = {
    400: "The request is not valid: `error` says why.",
    401: "No token, or another one.",
    403: "The request comes from another site, or uses another host name.",
    404: "There is no such thing.",
    409: "A conflict: the topic or view has changed. Read it again.",
    413: "Too large.",
    422: "A record that the topic cannot hold, or a parameter of the wrong type.",
    503: "Not possible now: the server is at its limit, or the disk or the Kafka cluster has a problem.",
    504: "It took longer than the timeout.",
}
EXACT_MAX = 2**53
"""Larger whole numbers are texts in tables, in lists too: JavaScript would round them."""
FACT_CHARACTERS_MAX = 1_000


class Json(JSONResponse):
    def render(self, content: Mapping[str, Any] | list[Mapping[str, Any]]) -> bytes:
        return b"[%s]" % b",".join(map(encode_row, content)) if isinstance(content, list) else encode_row(content)


def status_of(error: HeadraceError) -> int:
    return next((status for status, kinds in STATUS if isinstance(error, kinds)), 500)


def error_response(error: HeadraceError) -> Json:
    found = fields(error) if is_dataclass(error) else ()
    facts = {field.name: _fact(getattr(error, field.name)) for field in found}
    return refusal(status_of(error), type(error).__name__, str(error), facts)


def _fact(value: Any) -> Any:
    if isinstance(value, list):
        return [_fact(item) for item in value[:100]]
    if value is None or isinstance(value, int | float | bool):
        return value
    text = value if isinstance(value, str) else repr(value)
    return _whole(text[:FACT_CHARACTERS_MAX])


def _whole(text: str) -> str:
    """Without lone surrogates, which are no Unicode."""
    return text.encode("utf-8", "backslashreplace").decode()


def refusal(status: int, kind: str, message: str, facts: Mapping[str, Any] | None = None) -> Json:
    return Json({"error": {"type": kind, "message": _whole(message), "facts": dict(facts or {})}}, status)


def failure() -> Json:
    """For what should not have happened."""
    return refusal(500, "InternalError", "the server failed to answer this; its log says why.")


def table_json(table: pa.Table) -> dict[str, Any]:
    """Columns with their types, and rows as lists."""
    types = [{"name": field.name, "type": type_of(field.type)} for field in table.schema]
    columns = [python_values(column.combine_chunks()) for column in table.columns]
    rows = [[_shown(value) for value in row] for row in zip(*columns, strict=True)]
    return {"columns": types, "rows": rows}


def type_of(arrow: pa.DataType) -> str:
    """As in a schema's DDL; 'void' where there are only nulls."""
    return "void" if str(arrow) == "null" else type_ddl(arrow)


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {name: _shown(item) for name, item in value.items()}
    return str(value) if type(value) is int and not -EXACT_MAX <= value <= EXACT_MAX else value
