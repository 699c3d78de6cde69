"""What a transform may do: operators and functions that give the same rows however a batch is cut, whenever it runs.

Owns the list of operators that are allowed (everything else is refused), the list of functions that are not, and the
words of each refusal. Works on plans as `plan_text` reads them; knows no Spark. What these rules cannot see (a
Python function that counts what it is given) is left to the sample check."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headrace.flows.compiler.plan_text import MAPPERS, Node, attributes, batch_columns, calls, join_type

__all__ = ["Refusal", "columns_read", "denied_function", "denied_operator", "undetermined"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was found, what is wrong with it in a flow, and what does it right."""

    operator: str
    why: str
    instead: str


# -- operators -------------------------------------------------------------------------------------

ROW_LOCAL: Final = {
    "Project": "computes a row from a row",
    "Filter": "keeps a row or not",
    "Generate": "explode and its kin: a row's own elements",
    "Expand": "unpivot, sliding time buckets: a fixed number of rows for each row",
    "MapInArrow": "sees slices of a batch, but may be row-local: the sample check looks",
    "PythonMapInArrow": "what MapInArrow was called before Spark 4",
    "MapInPandas": "as MapInArrow",
    "SubqueryAlias": "a name",
    "View": "a name, from spark.sql",
    "WithCTE": "names, from spark.sql",
    "CTERelationDef": "a name, from spark.sql",
    "CTERelationRef": "the use of such a name",
    "ResolvedHint": "advice on how to join",
    "Repartition": "moves rows, changes none (coalesce too)",
    "RepartitionByExpression": "moves rows, changes none",
    "RebalancePartitions": "moves rows, changes none",
    "CollectMetrics": "observe(): looks, changes nothing",
}
"""Operators that may stand between the batch and the result, each with the reason. Join, LateralJoin and Union are
allowed under conditions; on a side that does not depend on the batch, everything is."""

_CUT: Final = "sees only the rows that happen to be in one batch"
_GROUPS: Final = "Use .window(…).group_by(…).agg(…) on the stream, which adds up over batches"
_DEDUP: Final = (
    "Use .dedup('id', within='1 hour') on the stream, or count each once: .agg(n=hr.count_distinct('id')). Both "
    "remember over batches"
)
_BOTH: Final = (
    "Bring both kinds of records into one stream with .union(other), and put them together by key: "
    ".window(…).group_by('id').agg(left=hr.last('a'), right=hr.last('b')). A static table is joined here: "
    "df.join(table, 'id')"
)
_ORDER: Final = "Sort when you query the view; for first and last use hr.first(…), hr.last(…), hr.top_k(…)"
_LIMIT: Final = "Use hr.top_k(…), hr.collect(…, limit=), or limit when you query the view"

REFUSED: Final[dict[str, tuple[str, str]]] = {
    "Aggregate": (f"(groupBy, agg, pivot, count) {_CUT}", _GROUPS),
    "Pivot": (_CUT, _GROUPS),
    "FlatMapGroupsInPandas": (f"(applyInPandas) {_CUT}", _GROUPS + ", with hr.Aggregate for your own"),
    "FlatMapGroupsInArrow": (f"(applyInArrow) {_CUT}", _GROUPS + ", with hr.Aggregate for your own"),
    "FlatMapCoGroupsInPandas": (f"(cogroup) {_CUT}", _BOTH),
    "FlatMapCoGroupsInArrow": (f"(cogroup) {_CUT}", _BOTH),
    "Window": (
        f"(a window function) {_CUT}",
        "Use .window(hr.sliding(…)).group_by(…).agg(…) on the stream, with hr.first(…), hr.last(…), hr.collect(…)",
    ),
    "Sort": ("orders one batch only, and rows of a flow have no order", _ORDER),
    "Deduplicate": (f"(distinct, dropDuplicates) {_CUT}", _DEDUP),
    "DeduplicateWithinWatermark": (f"(dropDuplicatesWithinWatermark) {_CUT}", _DEDUP),
    "Distinct": (_CUT, _DEDUP),
    "GlobalLimit": ("(limit) takes some rows of each batch", _LIMIT),
    "LocalLimit": ("(limit) takes some rows of each batch", _LIMIT),
    "LimitAndOffset": ("takes some rows of each batch", _LIMIT),
    "Offset": ("leaves out some rows of each batch", _LIMIT),
    "Tail": ("takes some rows of each batch", _LIMIT),
    "Sample": (
        "picks rows by chance, others on a replay",
        "Keep rows by a hash: df.where(F.abs(F.xxhash64('_partition', '_offset')) % 100 < 10)",
    ),
    "Intersect": (_CUT, _DEDUP),
    "Except": (f"(subtract, exceptAll) {_CUT}", "Use a left_anti join with a static table"),
    "EventTimeWatermark": (
        "(withWatermark) has no effect here",
        "Lateness is decided from the log: use .window(…, grace=, late=) on the stream",
    ),
    "AsOfJoin": (_CUT, _BOTH),
}

# Which side must be the batch, so that each of its rows finds its partners alone.
_LEFT: Final = frozenset({"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti", "LeftSingle"})
_RIGHT: Final = frozenset({"Inner", "Cross", "RightOuter"})


def kept_in_memory(final: Node) -> Refusal | None:
    """Whether Spark would serve the batch from memory: one plan serves many batches, and all would be the first. What
    is kept of a static table may be."""
    kept = any(
        node.operator == "InMemoryRelation" and any(below.is_batch for below in node.walk()) for node in final.walk()
    )
    if not kept:
        return None
    return Refusal(
        "cache",
        "keeps a batch in memory, and later batches would be taken for it",
        "Leave cache() and persist() out: a batch is read once. A static table that is joined may be cached",
    )


def denied_operator(plan: Node) -> Refusal | None:
    """The first operator, from the batch on, that is not row-local."""
    definitions: dict[str, bool] = {}
    depends: dict[int, bool] = {}

    def on_batch(node: Node) -> bool:
        known = depends.get(id(node))
        if known is None:
            # All of them, not until the first: definitions come before their uses.
            found = [on_batch(below) for below in (*node.subqueries, *node.children)]
            known = node.is_batch or any(found)
            if node.operator == "CTERelationDef":
                definitions[_cte(node)] = known
            elif node.operator == "CTERelationRef":
                known = definitions.get(_cte(node), True)
            depends[id(node)] = known
        return known

    def denied(node: Node) -> Refusal | None:
        if node.is_batch or not on_batch(node):
            return None
        for child in node.children:
            found = denied(child)
            if found:
                return found
        if any(on_batch(subquery) for subquery in node.subqueries):
            return Refusal("a subquery over the batch", _CUT, _GROUPS)
        return _denied_itself(node, [on_batch(child) for child in node.children])

    if not on_batch(plan):
        return Refusal(
            "a result that does not come from the batch",
            "is the same for every batch, or was computed outside the plan (createDataFrame, rdd, checkpoint)",
            "Return a DataFrame made from the one that was passed in; for Python code use df.mapInArrow(…)",
        )
    return denied(plan)


def _denied_itself(node: Node, on_batch: list[bool]) -> Refusal | None:
    if node.operator in ROW_LOCAL:
        return None
    if node.operator == "Join":
        return _denied_join(join_type(node), on_batch)
    if node.operator == "LateralJoin":
        return None  # its right side is a subquery, and was seen not to be over the batch
    if node.operator == "Union":
        if all(on_batch):
            return None  # of the batch with itself: each row gives its rows in each branch
        return Refusal(
            "Union",
            "with a static table adds the table's rows to every batch",
            "Append them to the topic once, or use .union(other) on the stream",
        )
    why, instead = REFUSED.get(
        node.operator,
        (
            "is not known to give the same rows however a batch is cut",
            "A transform projects, filters, explodes, maps, and joins static tables; the rest is done on the stream",
        ),
    )
    return Refusal(node.operator, why, instead)


def _denied_join(how: str, on_batch: list[bool]) -> Refusal | None:
    if all(on_batch):
        return Refusal(
            "Join",
            f"of the batch with itself {_CUT}",
            _BOTH,
        )
    if how in (_LEFT if on_batch[0] else _RIGHT):
        return None
    return Refusal(
        f"Join {how}",
        "gives the static table's rows without a match again in every batch",
        "Join from the batch's side: df.join(table, on, 'left'), or 'inner', 'left_semi', 'left_anti'",
    )


def _cte(node: Node) -> str:
    found = re.search(r"\d+", node.text)
    return found.group() if found else ""


# -- functions -------------------------------------------------------------------------------------

_CLOCK: Final = ("reads the clock, so a replay gives another result", "Use the column `_arrived_at` for now")
_CHANCE: Final = (
    "is chance, so a replay gives another result",
    "Use a hash of the record: F.xxhash64('_partition', '_offset')",
)
_PLACE: Final = (
    "depends on how Spark laid the rows out, not on the rows",
    "Use the columns `_partition` and `_offset`: they name a record for ever",
)
_SESSION: Final = ("depends on who runs the flow, and where", "Put the value into the plan: F.lit(…)")

# Spark replaces these by a literal when it optimises: none is left in an optimised plan.
REPLACED: Final = {
    **dict.fromkeys(("current_timestamp", "now", "localtimestamp", "current_date", "curdate", "current_time"), _CLOCK),
    **dict.fromkeys(
        ("current_user", "session_user", "current_database", "current_schema", "current_catalog"), _SESSION
    ),
}
# Spark itself calls these nondeterministic: it moves no filter past them.
UNSTABLE: Final = {
    **dict.fromkeys(("rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle"), _CHANCE),
    **dict.fromkeys(
        (
            "monotonically_increasing_id",
            "spark_partition_id",
            "input_file_name",
            "input_file_block_start",
            "input_file_block_length",
        ),
        _PLACE,
    ),
    **dict.fromkeys(
        ("reflect", "java_method", "try_reflect"),
        ("calls what Spark knows nothing about", "Use a Python UDF that depends on its arguments alone"),
    ),
}
_REPLACED_NAMES: Final = frozenset(REPLACED)
_UNSTABLE_NAMES: Final = frozenset(UNSTABLE)
_CAST_WORD: Final = re.compile(r"\bcast\((now|today|yesterday|tomorrow) as (date|timestamp\w*)\)", re.IGNORECASE)


def denied_function(plan: Node, final: Node, *, unstable: bool) -> Refusal | None:
    """The first function in the analysed `plan` that reads a clock, a session or chance.

    A literal may look like a call. A call of `REPLACED` is gone from the optimised plan `final`, a literal is not. A
    call of `UNSTABLE` counts when Spark may have found something nondeterministic between the batch and the result
    (`unstable`), or when it is elsewhere."""
    after = [found for node in final.walk() for found in calls(node.text, _REPLACED_NAMES)]
    for node in plan.walk():
        for name, call in calls(node.text, _REPLACED_NAMES):
            if (name, call) in after:
                after.remove((name, call))
            else:
                return Refusal(f"{name}()", *REPLACED[name])
        word = _CAST_WORD.search(node.text)
        if word:
            return Refusal(f"cast('{word.group(1)}' as {word.group(2)})", *_CLOCK)
        if unstable or not any(below.is_batch for below in node.walk()):
            for name, _ in calls(node.text, _UNSTABLE_NAMES):
                return Refusal(f"{name}()", *UNSTABLE[name])
    return None


def undetermined(final: Node, mark: str) -> tuple[bool, Refusal | None]:
    """What Spark thinks of the expressions between the batch and a filter that holds the literal `mark`, put on top.

    Spark moves a filter down to the batch, past everything but what it calls nondeterministic, and past no
    mapInArrow. Returns whether that may have been met, and a refusal if it is certain and has no better name."""
    marked = [node for node in final.walk() if node.operator == "Filter" and mark in node.text]
    unstable = not marked
    for node in marked:
        seen: list[Node] = []
        below = node.children
        while len(below) == 1 and below[0].operator in ("Project", "Filter"):
            seen.append(below[0])
            below = below[0].children
        if len(below) == 1 and below[0].is_batch and not seen:
            continue
        unstable = True
        if len(below) == 1 and below[0].operator.endswith("EvalPython"):
            names = re.findall(r"[\[ ]([^\s\[\]()]+)\(", below[0].text)
            return True, Refusal(
                f"nondeterministic UDF {names[0]}" if names else "a nondeterministic UDF",
                "may give another result on a replay: it was marked so with asNondeterministic()",
                "Let it depend on its arguments alone, and leave the mark out",
            )
        if len(below) == 1 and below[0].is_batch:
            return True, Refusal(
                "a nondeterministic expression",
                "is in the plan by Spark's own account, so a replay may give another result",
                "Use functions of the row's columns alone",
            )
    return unstable, None


# -- columns ---------------------------------------------------------------------------------------


def columns_read(final: Node, names: list[str]) -> frozenset[str]:
    """The columns of the batch that an optimised plan mentions; all of them if the text does not tell."""
    everything = frozenset(names)
    batches = [node for node in final.walk() if node.is_batch]
    if not batches or any("more fields" in node.text for node in final.walk()):
        return everything
    mentioned: set[str] = set()
    for node in final.walk():
        if not node.is_batch:
            mentioned |= attributes(node.text)
    needed: set[str] = set()
    for node in batches:
        listed = batch_columns(node)
        if [name for name, _ in listed] != names:
            return everything
        needed.update(name for name, number in listed if number in mentioned)
    return frozenset(needed)


assert not set(ROW_LOCAL) & set(REFUSED) and set(ROW_LOCAL) >= MAPPERS
