"""Whether a user's transform may run in a flow, found out once, before it starts.

A transform is `DataFrame -> DataFrame` and must be row-local: its result over two batches is its results over each, put
together, today and on a replay. Owns the question to Spark and the trial on sample rows; the rules are in `plan_rules`,
the reading of plans in `plan_text`. Uses Spark's public API alone. Leaves the session's settings as they were, writes
nothing, and runs Spark jobs only on a few hundred rows."""

from __future__ import annotations

import cProfile
import functools
import io
import itertools
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, PySparkAttributeError, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from headrace.errors import InvalidArgument, InvalidSchema, TransformRefused, UnknownColumn, nearest
from headrace.flows.compiler.outside import asks_outside
from headrace.flows.compiler.plan_rules import (
    Refusal,
    columns_read,
    denied_function,
    denied_operator,
    kept_in_memory,
    undetermined,
)
from headrace.flows.compiler.plan_text import (
    MAPPERS,
    PROBE,
    Node,
    Output,
    analyzed,
    fingerprint,
    optimized,
    outputs,
    sends_batch,
)
from headrace.flows.compiler.probe_rows import edge_rows, plain_rows
from headrace.flows.compiler.sieve_plan import sieve_of
from headrace.kernels.sieve import Sieve
from headrace.log.contract import META
from headrace.schema import quoted_name, schema_from
from headrace.views.contract import CHANGE

__all__ = [
    "Checked",
    "Transform",
    "check_transform",
    "columns_needed",
    "has_exchange",
    "origins",
    "passes",
    "reorders",
    "sample_rows",
]

Transform = Callable[[DataFrame], DataFrame]
Row = tuple[str, ...]

SAMPLE_ROWS_MAX: Final = 1_000
_PART: Final = "headrace: part"
MARK: Final = -4_611_686_018_427_387_847  # no offset is below it; nobody else writes it


@dataclass(frozen=True, slots=True)
class Checked:
    """A transform that may run. `columns_needed`: columns of the batch that can change the result; any other may be
    null in the DataFrame that is passed in, though not absent. `plan`: the analysed plan, for people."""

    schema: StructType
    columns_needed: frozenset[str]
    plan: str
    sample_skipped: str | None
    """Why it could not be tried on sample rows: None, or the error it raised on them. What only chooses is not."""
    notes: tuple[str, ...]
    """What is allowed, but its author may want to know."""
    sieve: Sieve | None = None
    """The same without Spark, if it only chooses."""


def check_transform(
    spark: SparkSession,
    fn: Transform,
    schema: StructType,
    *,
    flow: str,
    step: str,
    sample: pa.Table | None = None,
    needed: Collection[str] | None = None,
    kept: Sequence[str] = META,
) -> Checked:
    """What `fn` makes of a batch of `schema` (metadata columns included), if it is row-local; TransformRefused or
    UnknownColumn if not. `sample`: real rows to try it on; without, rows are made up. `needed`: the columns of the
    result that later steps read; without, all of them. `kept`: the columns that must come through as they are."""

    def refuse(found: Refusal | None) -> None:
        if found:
            raise TransformRefused(flow, step, found.operator, found.why, found.instead)

    if asked := asks_outside(fn):
        why = "asks the world outside, so a replay may get another answer"
        refuse(Refusal(asked, why, "Use .remember(function, key=…, column=…, type=…): each answer is recorded once"))
    trials = _trials(schema, sample)
    probe = _probe(spark, schema, trials[-1] if trials else None)
    with _whole_plans(spark):
        with _calls(probe) as called:
            out, schema_out = _applied(fn, probe, schema, flow, step, refuse)
        refuse(_action_on_batch(called))
        plan, final = _explained(out, schema_out, schema, kept)
        if found := kept_in_memory(final):
            for kept_there in (out, probe):  # plans of other flows over the same columns look the same to Spark
                kept_there.unpersist()
            refuse(found)
        refuse(denied_operator(plan))
        refuse(_columns_refused(schema, schema_out, outputs(plan), kept))
        unstable, unnamed = undetermined(final, str(MARK))
        refuse(denied_function(plan, final, unstable=unstable))
        refuse(unnamed)
        again, schema_again = _applied(fn, probe, schema, flow, step, refuse)
        refuse(_plan_changes(plan, _explained(again, schema_again, schema, kept)[0]))
        if needed is not None:
            wanted = out.select(F.struct(*map(quoted_name, dict.fromkeys([*needed, *kept]))).alias("row"))
            final = optimized(_explain(wanted))
    suspect = _suspect(plan) or ("the function" if called else None)
    sieve = None if suspect else sieve_of(out)
    differs, skipped = _tried(spark, fn, schema, trials, suspect, kept) if sieve is None else (None, None)
    refuse(differs)
    return Checked(
        schema=schema_out,
        columns_needed=columns_read(final, schema.names) | frozenset(kept),
        plan=_drawn(plan),
        sample_skipped=skipped,
        notes=tuple(f"{name}() {_NOTED[name]}" for name in called if name in _NOTED),
        sieve=sieve,
    )


def columns_needed(spark: SparkSession, query: Transform, schema: StructType) -> frozenset[str]:
    """The columns of a batch of `schema` that a query over it reads; all of them when its plan does not tell."""
    with _whole_plans(spark):
        result = query(_probe(spark, schema, None)).select(F.struct("*").alias("row"))  # so that the plan names it all
        return columns_read(optimized(_explain(result)), schema.names)


def passes(
    spark: SparkSession, query: Transform, schema: StructType, as_they_are: Sequence[str], untouched: Sequence[str]
) -> bool:
    """Whether columns of a batch of `schema` come through a query as they are; those of `untouched` also without being
    part of anything else. False where its plan does not tell."""
    try:
        found = origins(spark, query, schema)
    except PySparkException:  # it names all columns that there are
        return False
    if any(found.get(name) != name for name in (*as_they_are, *untouched)):
        return False
    return not columns_needed(spark, lambda df: query(df).drop(*untouched), schema) & {*untouched}


def origins(spark: SparkSession, query: Transform, schema: StructType) -> dict[str, str]:
    """A column of a query's result -> the column of a batch of `schema` that it is, whole and unchanged, as far as the
    plan tells."""
    with _whole_plans(spark):
        out = query(_probe(spark, schema, None))
        traced = outputs(_explained(out, out.schema, schema, ())[0])
    if traced is None or len(traced) != len(out.schema):
        return {}
    found = {field.name: each.origin for field, each in zip(out.schema, traced, strict=True) if not each.opaque}
    kinds = {field.name: field.dataType for field in schema}
    return {name: of for name, of in found.items() if of and kinds.get(of) == out.schema[name].dataType}


def has_exchange(spark: SparkSession, df: DataFrame) -> bool:
    """Whether the query moves records between partitions, or sends a batch to all of them: in an inner join Spark takes
    a batch for small. (A broadcast of a static table does not.)"""
    return _moves(_physical(spark, df))


def reorders(spark: SparkSession, df: DataFrame, sources: int) -> bool:
    """Whether the query leaves the records of so many sources in any order, or those of one partition in several tasks:
    it moves or sorts them, or reads a source twice, as for a union."""
    physical = _physical(spark, df)
    return _moves(physical) or re.search(r"\bSort", physical) is not None or physical.count("MapInArrow ") > sources


def _physical(spark: SparkSession, df: DataFrame) -> str:
    with _whole_plans(spark):
        return _explain(df).split("== Physical Plan ==")[-1]


def _moves(physical: str) -> bool:
    found = re.search(r"(?<!Broadcast)Exchange\b|\bShuffle|\bdynamicpruning", physical)
    return found is not None or sends_batch(physical)


# -- the question to Spark -------------------------------------------------------------------------


def _probe(spark: SparkSession, schema: StructType, rows: pa.Table | None) -> DataFrame:
    """A DataFrame that stands for a batch: opaque to the optimiser, and found in a plan by its function's name. It
    holds a few rows, so that an action on it (`if df.isEmpty(): return df`) comes back, and can be refused."""
    few = [] if rows is None else rows.slice(0, 8).to_batches()

    def headrace_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from few

    assert headrace_batch.__name__ == PROBE
    return spark.range(1, numPartitions=1).mapInArrow(headrace_batch, schema)


def _applied(
    fn: Transform,
    df: DataFrame,
    schema: StructType,
    flow: str,
    step: str,
    refuse: Callable[[Refusal | None], None],
) -> tuple[DataFrame, StructType]:
    try:
        out = fn(df)
        if not isinstance(out, DataFrame):
            refuse(
                Refusal(
                    "its return value",
                    f"is {type(out).__name__}, not a DataFrame",
                    "End it with `return df…`" if out is None else "A transform takes a DataFrame and returns one",
                )
            )
        if out.isStreaming:
            refuse(
                Refusal(
                    "readStream",
                    "makes a streaming DataFrame, and a flow's batches are none",
                    "Use .union(…) on the stream, or spark.read for a static table",
                )
            )
        return out, out.schema  # on Spark Connect the plan is analysed only here
    except TransformRefused:
        raise
    except Exception as error:
        unknown = unknown_column(error, flow, schema.names) if isinstance(error, PySparkException) else None
        if unknown:
            raise unknown from error
        error.add_note(f"in {step} of flow {flow!r}")
        raise


def unknown_column(error: PySparkException, flow: str, names: list[str]) -> UnknownColumn | None:
    """Spark's error about a column that is not there, as ours; None for any other error."""
    condition, facts = error.getCondition() or "", error.getMessageParameters() or {}
    if isinstance(error, AnalysisException) and condition.startswith("UNRESOLVED_COLUMN"):
        proposed = [_last_part(name) for name in facts.get("proposal", "").split(", ") if name]
        known = _columns_at(error) or proposed or names
        return UnknownColumn(flow, _last_part(facts.get("objectName", "")), known)
    if isinstance(error, AnalysisException) and condition == "UNRESOLVED_USING_COLUMN_FOR_JOIN":
        suggested = facts.get("suggestion", "").strip("[]").split(", ")
        return UnknownColumn(flow, _last_part(facts.get("colName", "")), [_last_part(name) for name in suggested])
    if isinstance(error, PySparkAttributeError):  # df.pgae: a column or a method?
        name = facts.get("attr_name", "")
        return UnknownColumn(flow, name, names) if name and nearest(name, names) else None
    return None


def _columns_at(error: AnalysisException) -> list[str]:
    """All columns where Spark could not find one: what goes into the lowest operator that is not resolved. Spark itself
    proposes five at most. None where it does not give its plan (Spark Connect)."""
    try:
        node = error._origin.plan().get()  # type: ignore[attr-defined]
        while below := [child for child in _children(node) if not child.resolved()]:
            node = below[0]
        return [column.name() for child in _children(node) for column in _items(child.output())]
    except Exception:
        return []


def _children(node: Any) -> list[Any]:
    return _items(node.children())


def _items(sequence: Any) -> list[Any]:
    """The items of a Scala Seq."""
    return [sequence.apply(number) for number in range(sequence.size())]


def _last_part(name: str) -> str:
    """`page` of "`clicks`.`page`"."""
    return name.removesuffix("`").rsplit("`.`", 1)[-1].removeprefix("`").replace("``", "`")


def _of_records(kept: Sequence[str]) -> bool:
    """Whether the columns that are kept are those of records, or of changes; or of results."""
    return tuple(kept[: len(META)]) == META


def _explained(out: DataFrame, schema_out: StructType, schema: StructType, kept: Sequence[str]) -> tuple[Node, Node]:
    """The analysed plan of `out`, and an optimised plan of all its columns below a filter that holds `MARK`.

    The columns go into one that mentions them all, so that the text opens with a Project that is known. They go by
    number, because a column may be called `now()`."""
    numbered = out.toDF(*(f"c{at}" for at in range(len(schema_out))))
    marks = ("_offset",) if _of_records(kept) else kept
    marked = bool(marks) and all(
        name in schema_out.names and schema_out[name].dataType == schema[name].dataType for name in marks
    )
    if marked:
        columns = [F.col(f"c{schema_out.names.index(name)}") for name in marks]
        numbered = numbered.where((columns[0] if _of_records(kept) else F.xxhash64(*columns)) > F.lit(MARK))
    text = _explain(numbered.select(F.struct("*").alias("row")))
    plan = analyzed(text)
    for _ in range(3 if marked else 2):  # the one column, the mark, the numbers
        plan = plan.children[0]
    return plan, optimized(text)


def _suspect(plan: Node) -> str | None:
    """What there is in the plan that Spark cannot look into: mapInArrow, or a UDF, which is written `name(…)#id`."""
    mine = [node for node in plan.walk() if not node.is_batch]
    mapper = next((node.operator for node in mine if node.operator in MAPPERS), None)
    if mapper:
        return "mapInPandas" if mapper == "MapInPandas" else "mapInArrow"
    return "a UDF" if any(")#" in node.text for node in mine) else None


_CAPTURE: Final = threading.Lock()


class _OwnThread(io.StringIO):
    """Keeps what its own thread prints; passes on what others print meanwhile."""

    def __init__(self, passing: Any) -> None:
        super().__init__()
        self._owner, self._passing = threading.get_ident(), passing

    def write(self, text: str) -> int:
        if threading.get_ident() == self._owner:
            return super().write(text)
        return int(self._passing.write(text) or 0)


def _explain(df: DataFrame) -> str:
    """The four plans. Spark has no public way to get them but to print them."""
    with _CAPTURE:
        printed = _OwnThread(sys.stdout)
        with redirect_stdout(printed):
            df.explain(mode="extended")
        return printed.getvalue()


@contextmanager
def _whole_plans(spark: SparkSession) -> Iterator[None]:
    """Plans are printed in full, whatever the session's settings, which are put back."""
    wide = {"spark.sql.debug.maxToStringFields": "1000000", "spark.sql.maxPlanStringLength": str(2**31 - 16)}
    before = {key: spark.conf.get(key, None) for key in wide}
    try:
        for key, value in wide.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, was in before.items():
            if was is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, was)


_ACTIONS: Final = (
    "count", "collect", "toPandas", "toArrow", "first", "head", "take", "tail", "show", "isEmpty", "foreach",
    "foreachPartition", "toLocalIterator", "checkpoint", "localCheckpoint", "write", "writeTo", "rdd",
)  # fmt: skip
_NOTED: Final = {
    "withWatermark": "has no effect in a flow: lateness is decided from the log, see .window(…, grace=, late=)",
}
Called = dict[str, list[DataFrame]]
"""Methods of DataFrames that a transform called, and on which DataFrames."""


def _action_on_batch(called: Called) -> Refusal | None:
    """An action on the batch. One on a static table is allowed: its result is the same for every batch."""
    for name in _ACTIONS:
        if any(PROBE in _explain(df) for df in called.get(name, ())):
            return Refusal(
                name if name in ("write", "rdd") else f"{name}()",
                "is an action: it runs when the plan is made, and one plan serves many batches",
                "Compute each row from that row alone; what takes many rows is for the stream: .window(…).agg(…). "
                "Actions on a static table are allowed",
            )
    return None


def _code(method: Any) -> Any:
    """Of a method or a property."""
    return getattr(getattr(method, "fget", None) or getattr(method, "func", None) or method, "__code__", None)


@contextmanager
def _calls(df: DataFrame) -> Iterator[Called]:
    """Actions, and methods worth a note, that are called inside the block, by anybody but Spark itself."""
    methods = {_code(getattr(type(df), name, None)): name for name in (*_ACTIONS, *_NOTED)}
    seen: Called = {}

    def watch(frame: FrameType, event: str, _: object) -> None:
        name = methods.get(frame.f_code) if event == "call" else None
        caller = frame.f_back.f_globals.get("__name__", "") if frame.f_back else ""
        if name and not caller.startswith("pyspark."):
            seen.setdefault(name, []).append(frame.f_locals["self"])

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield seen
    finally:
        sys.setprofile(before if callable(before) else None)
        if isinstance(before, cProfile.Profile):  # whoever measures the program goes on
            before.enable()


# -- what the plan must keep -----------------------------------------------------------------------


def _columns_refused(
    schema: StructType, out: StructType, traced: list[Output] | None, kept: Sequence[str]
) -> Refusal | None:
    names = [name.lower() for name in out.names]
    twice = next((name for name in out.names if names.count(name.lower()) > 1), None)
    if twice:
        return Refusal(
            f"column {twice!r}",
            "is there twice, so nobody can name it",
            "Rename or drop one; after a join, pass the names: df.join(table, 'id')",
        )
    missing = [name for name in kept if name not in out.names]
    if missing:
        records = "*hr.META, *hr.CHANGE" if CHANGE[0] in kept else "*hr.META"
        them = records if _of_records(kept) else ", ".join(map(repr, kept))
        return Refusal("select", f"drops {', '.join(missing)}, which {_says(kept)}", f"Keep them: df.select(…, {them})")
    for name in kept:
        origin = traced[out.names.index(name)] if traced and len(traced) == len(out.names) else Output("", opaque=True)
        if out[name].dataType != schema[name].dataType or (not origin.opaque and origin.origin != name):
            return _changed(name, kept)
    return None


def _says(kept: Sequence[str]) -> str:
    return "say where a record is in the log and in time" if _of_records(kept) else "say which result a row is of"


def _changed(name: str, kept: Sequence[str]) -> Refusal:
    time = "; for another event time use .window(…, time='your_column')" if _of_records(kept) else ""
    return Refusal(
        f"column {name!r}",
        f"is changed, and it must come through as it is: such columns {_says(kept)}",
        f"Give what you compute another name{time}",
    )


def _plan_changes(one: Node, two: Node) -> Refusal | None:
    texts, others = fingerprint(one), fingerprint(two)
    if texts == others:
        return None
    differing = [pair for pair in zip(texts, others, strict=False) if pair[0] != pair[1]]
    what = f" ({_short(differing[0][0])} | {_short(differing[0][1])})" if differing else ""
    return Refusal(
        "a plan that differs from call to call",
        f"comes of a clock, a random number or a changing variable in Python, or of a missing seed{what}",
        "Let it depend on the DataFrame alone: `_arrived_at` for now, F.xxhash64('_partition', '_offset') for chance",
    )


def _drawn(node: Node, depth: int = 0) -> str:
    lines = ["  " * depth + node.text]
    lines += [_drawn(below, depth + 1) for below in (*node.subqueries, *node.children)]
    return "\n".join(lines)


def _short(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# -- the trial on sample rows ----------------------------------------------------------------------


def _trials(schema: StructType, sample: pa.Table | None) -> list[pa.Table]:
    """Tables to try it on, the most telling first. The next is tried when a transform cannot stand the one before."""
    if sample is not None:
        missing = [name for name in schema.names if name not in sample.schema.names]
        if missing:
            raise InvalidArgument("sample", sample.schema.names, f"has no column {missing[0]!r}")
        if sample.num_rows >= 2:
            return [sample.select(schema.names).slice(0, SAMPLE_ROWS_MAX)]
    return sample_rows(schema)


def sample_rows(schema: StructType) -> list[pa.Table]:
    """Rows that are made up: of edges, and plain ones; none if the log has no such types."""
    try:
        # By number: metadata columns are part of a batch, though no topic may name a column so.
        numbered = [StructField(f"c{i}", field.dataType, field.nullable) for i, field in enumerate(schema)]
        arrow = schema_from(StructType(numbered))
    except InvalidSchema:
        return []  # a type that an earlier transform made
    renamed = pa.schema([arrow.field(i).with_name(name) for i, name in enumerate(schema.names)])
    return [edge_rows(renamed), plain_rows(renamed)]


def _tried(
    spark: SparkSession,
    fn: Transform,
    schema: StructType,
    trials: list[pa.Table],
    suspect: str | None,
    kept: Sequence[str],
) -> tuple[Refusal | None, str | None]:
    """(the refusal, if any; why there was no trial, if there was none). `suspect`: what may depend on the cut."""
    skipped = "no rows could be made up for this schema"
    for table in trials:
        try:
            return _compared(spark, fn, schema, table, suspect, kept), None
        except Exception as error:  # the user's function on these rows: the data may never look so
            skipped = _reason(error)
    return None, skipped


def _reason(error: Exception) -> str:
    """One line; of a Python worker's error, the line that names the exception."""
    lines = str(error).strip().splitlines() or [""]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)]
    return _short(named[-1] if named else f"{type(error).__name__}: {lines[0]}", 300)


def _compared(
    spark: SparkSession, fn: Transform, schema: StructType, table: pa.Table, suspect: str | None, kept: Sequence[str]
) -> Refusal | None:
    cuts = _cuts(table, thorough=suspect is not None)
    whole, *cut = _run(spark, fn, schema, [table, *itertools.chain(*cuts)], kept)
    moved = _moved(table, whole, kept)
    if moved:
        return _changed(moved, kept)
    # In a job of its own: within one, Spark computes what is the same only once.
    if suspect and _run(spark, fn, schema, [table], kept) != [whole]:
        return Refusal(
            suspect,
            "gave two different results for the same rows",
            "Let it depend on its arguments alone: no clock, no chance, nothing kept from call to call",
        )
    results = iter(cut)
    for parts in cuts:
        together = sum((next(results) for _ in parts), Counter[Row]())
        if together != whole:
            first = min((whole - together) or (together - whole))
            return Refusal(
                suspect or "the function",
                f"depends on where a batch is cut: {table.num_rows} rows at once and in {len(parts)} parts gave "
                f"different rows, the first {_where(first, kept)}",
                "Compute each row from that row alone; counting, numbering and comparing rows is for the stream: "
                ".window(…).agg(…)",
            )
    return None


def _where(row: Row, kept: Sequence[str]) -> str:
    if _of_records(kept):
        return f"at partition {row[0]}, offset {row[1]}"
    return "of " + (", ".join(f"{name} {value}" for name, value in zip(kept, row, strict=False)) or _short(str(row)))


def _run(
    spark: SparkSession, fn: Transform, schema: StructType, parts: list[pa.Table], kept: Sequence[str]
) -> list[Counter[Row]]:
    """The results for each part, called one by one, computed in one job."""
    outs = [
        fn(spark.createDataFrame(part, schema)).select(F.lit(at).alias(_PART), "*") for at, part in enumerate(parts)
    ]
    table = functools.reduce(DataFrame.union, outs).toArrow()
    numbers = table.column(_PART)
    return [_rows(table.filter(pc.equal(numbers, at)).drop_columns([_PART]), kept) for at in range(len(parts))]


def _cuts(table: pa.Table, *, thorough: bool) -> list[list[pa.Table]]:
    """Ways to cut it. Where the plan holds nothing but Spark's own row-local operators, one is enough."""
    rows = table.num_rows
    even, odd = table.take(list(range(0, rows, 2))), table.take(list(range(1, rows, 2)))
    if not thorough:
        return [[even, odd]]
    return [[table.slice(0, rows // 3), table.slice(rows // 3)], [even, odd.slice(0, 1), odd.slice(1), odd.slice(rows)]]


def _moved(table: pa.Table, result: Counter[Row], kept: Sequence[str]) -> str | None:
    """The kept column that some row of the result has from nowhere."""
    if not kept:
        return None
    many = 2 if _of_records(kept) else len(kept)  # so many name the row
    before = {row[:many]: row for row in _rows(table.select(list(kept)), kept)}
    came = {row[: len(kept)] for row in result}
    if any(row[:many] not in before for row in came):
        return kept[many - 1]
    differing = (zip(kept, before[row[:many]], row, strict=True) for row in sorted(came))
    return next((name for row in differing for name, old, new in row if old != new), None)


def _rows(table: pa.Table, kept: Sequence[str]) -> Counter[Row]:
    """The rows as a multiset, kept columns first. As text: NaN equals itself there, and -0.0 not 0.0."""
    rest = [name for name in table.schema.names if name not in kept]
    columns = []
    for name in (*kept, *rest):
        column = table.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())  # any year at all
        elif pa.types.is_date(column.type):
            column = column.cast(pa.date32()).cast(pa.int32())
        columns.append([repr(value) for value in column.to_pylist()])
    return Counter(zip(*columns, strict=True))
