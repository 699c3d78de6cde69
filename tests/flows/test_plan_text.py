"""Plans as Spark 4.3 prints them, shortened to a few columns: reading them back, and the rules, without a JVM."""

from __future__ import annotations

import pickle

import pytest

import headrace as hr
from headrace.flows.compiler.plan_rules import REFUSED, columns_read, denied_function, denied_operator, undetermined
from headrace.flows.compiler.plan_text import Node, analyzed, calls, fingerprint, optimized, outputs

BATCH = "MapInArrow headrace_batch(id#0L)#1, [user#2, ms#4, _offset#10L], false"
TOP = "Project [struct(c0, c0#20, c1, c1#21, c2, c2#22L) AS row#30]"


def explained(analysed: str, final: str = "") -> str:
    return (
        f"== Parsed Logical Plan ==\n'Project [unresolvedalias('struct(*))]\n\n== Analyzed Logical Plan ==\n"
        f"row: struct<c0:string,c1:int,c2:bigint>\n{analysed}\n\n== Optimized Logical Plan ==\n{final or analysed}\n\n"
        f"== Physical Plan ==\n*(1) Project [x]\n+- *(1) Range (0, 1, step=1, splits=1)\n"
    )


def plan(*lines: str) -> Node:
    """The plan of these lines, each below the one before, drawn as Spark does."""
    drawn = [TOP, *("   " * depth + "+- " + line for depth, line in enumerate(lines))]
    return analyzed(explained("\n".join(drawn))).children[0]


JOIN = f"""{TOP}
+- Project [user#2, ms#4, _offset#10L, country#17]
   +- Join Inner, (user#2 = user#16)
      :- {BATCH}
      :  +- Range (0, 1, step=1, splits=Some(1))
      +- Aggregate [user#16], [user#16, first(country#15) AS country#17]
         +- LogicalRDD [user#16, country#15], false"""

SUBQUERY = f"""{TOP}
+- Filter cast(ms#4 as bigint) IN (list#606 [])
   :  +- Project [id#607L]
   :     +- Range (0, 5, step=1)
   +- {BATCH}
      +- Range (0, 1, step=1, splits=Some(1))"""


def test_the_tree_is_read_back() -> None:
    top = analyzed(explained(JOIN))
    assert [node.operator for node in top.walk()] == [
        "Project", "Project", "Join", "MapInArrow", "Range", "Aggregate", "LogicalRDD",
    ]  # fmt: skip
    assert [len(node.children) for node in top.walk()] == [1, 1, 2, 1, 0, 1, 0]
    assert [node.is_batch for node in top.walk()].index(True) == 3


def test_subqueries_are_no_children() -> None:
    (filtered,) = analyzed(explained(SUBQUERY)).children
    assert [node.operator for node in filtered.children] == ["MapInArrow"]
    assert [node.operator for node in filtered.subqueries] == ["Project"]
    assert denied_operator(filtered) is None
    over_itself = SUBQUERY.replace("Range (0, 5, step=1)", BATCH)
    found = denied_operator(analyzed(explained(over_itself)).children[0])
    assert found and found.operator == "a subquery over the batch"


def test_a_line_break_in_a_literal_makes_no_operator() -> None:
    for text in ("a\nb", "a\n+- Aggregate [x#1]", "a\n\n   b"):
        top = plan(f"Project [user#2, ms#4, _offset#10L, {text} AS x#40]", BATCH, "Range (0, 1)")
        assert [node.operator for node in top.walk()] == ["Project", "MapInArrow", "Range"]
        assert top.text.endswith(" AS x#40]")


def test_a_join_with_a_static_table_may_aggregate_it() -> None:
    joined = analyzed(explained(JOIN)).children[0]
    assert denied_operator(joined) is None
    for how, fine in [("LeftOuter", True), ("LeftAnti", True), ("RightOuter", False), ("FullOuter", False)]:
        found = denied_operator(analyzed(explained(JOIN.replace("Inner", how))).children[0])
        assert (found is None) is fine


@pytest.mark.parametrize("operator", [*REFUSED, "SomethingNew"])
def test_every_other_operator_is_refused_by_its_name(operator: str) -> None:
    found = denied_operator(plan("Filter (ms#4 > 1)", f"{operator} [ms#4]", BATCH, "Range (0, 1)"))
    assert found and found.operator == operator
    assert found.why and found.instead and not found.instead.endswith(".")


def test_the_operator_nearest_to_the_batch_is_named() -> None:
    found = denied_operator(plan("GlobalLimit 5", "Sort [ms#4 ASC NULLS FIRST], true", BATCH, "Range (0, 1)"))
    assert found and found.operator == "Sort"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Filter (rand(5) < 0.5)", [("rand", "rand(5)")]),
        ("Project [SPARK_PARTITION_ID() AS x#3]", [("spark_partition_id", "SPARK_PARTITION_ID()")]),
        ("Project [shuffle(tags#1, Some(3)) AS tags#2]", [("shuffle", "shuffle(tags#1, Some(3))")]),
        ("Project [rand(5) AS rand(5)#7]", [("rand", "rand(5)")]),
        ("Filter (rand(5)#7 < 0.5)", []),  # a column, or a UDF of that name
        ("Project [rand#5, rand AS x#7, strand(5) AS y#8]", []),
        ("Project [rand( AS x#7]", []),
    ],
)
def test_calls_are_told_from_columns_and_words(text: str, found: list[tuple[str, str]]) -> None:
    assert list(calls(text, frozenset({"rand", "spark_partition_id", "shuffle"}))) == found


def test_what_spark_folds_was_a_call_and_what_stays_a_literal() -> None:
    used = plan("Project [user#2, ms#4, _offset#10L, now() AS x#3]", BATCH, "Range (0, 1)")
    folded = plan("Project [user#2, ms#4, _offset#10L, 2026-11-16 06:38:42.1 AS x#3]", BATCH, "Range (0, 1)")
    found = denied_function(used, folded, unstable=False)
    assert found and found.operator == "now()" and "`_arrived_at`" in found.instead
    assert denied_function(used, used, unstable=False) is None


def test_chance_is_believed_when_spark_confirms_it() -> None:
    used = plan("Filter (rand(5) < 0.5)", BATCH, "Range (0, 1)")
    found = denied_function(used, used, unstable=True)
    assert found and found.operator == "rand()"
    assert denied_function(used, used, unstable=False) is None  # a literal: the filter went past it


MARK = "-4611686018427387847"
MARKED = f"Filter (_offset#10L > {MARK})"


@pytest.mark.parametrize(
    ("lines", "unstable", "operator"),
    [
        ([MARKED, BATCH], False, None),
        (["Filter pythonUDF0#5", "BatchEvalPython [f(ms#4)#3], [pythonUDF0#5]", MARKED, BATCH], False, None),
        ([MARKED, "Project [f(ms#4) AS x#9]", "BatchEvalPython [f(ms#4)#3], [pythonUDF0#5]", BATCH], True,
         "nondeterministic UDF f"),
        ([MARKED, "Filter (rand(5) < 0.5)", BATCH], True, "a nondeterministic expression"),
        ([MARKED, "MapInArrow f(ms#4)#40, [ms#41], false", BATCH], True, None),
    ],
)  # fmt: skip
def test_where_a_filter_comes_to_rest_tells_what_spark_thinks(
    lines: list[str], unstable: bool, operator: str | None
) -> None:
    found, refusal = undetermined(plan(*lines, "Range (0, 1)"), MARK)
    assert found is unstable
    assert (refusal.operator if refusal else None) == operator


@pytest.mark.parametrize(
    ("project", "origin", "opaque"),
    [
        ("Project [user#2, _offset#10L]", "_offset", False),
        ("Project [user#2, ms#4 AS _offset#12L]", "ms", False),
        ("Project [user#2, _offset#10L AS o#12L]", "_offset", False),
        ("Project [user#2, (_offset#10L + cast(1 as bigint)) AS _offset#12L]", None, False),
    ],
)
def test_a_column_is_followed_to_where_it_comes_from(project: str, origin: str | None, opaque: bool) -> None:
    traced = outputs(plan(project, "Filter (ms#4 > 1)", BATCH, "Range (0, 1)"))
    assert traced and (traced[1].origin, traced[1].opaque) == (origin, opaque)


def test_what_python_makes_is_opaque() -> None:
    traced = outputs(plan("MapInArrow f(user#2, ms#4)#50, [user#51, _offset#52L], false", BATCH, "Range (0, 1)"))
    assert traced and [output.opaque for output in traced] == [True, True]


def test_columns_read_are_those_the_plan_mentions() -> None:
    names = ["user", "ms", "_offset"]
    final = optimized(explained("", f"Project [struct(u, user#2) AS row#9]\n+- {BATCH}\n   +- Range (0, 1)"))
    assert columns_read(final, names) == {"user"}
    assert columns_read(final, ["other", "names"]) == {"other", "names"}  # unsure: all
    cached = optimized(explained("", "Project [struct(u, user#2) AS row#9]\n+- InMemoryRelation [user#2]"))
    assert columns_read(cached, names) == set(names)


def test_two_plans_that_say_the_same_are_the_same() -> None:
    one = plan("Project [user#2 AS u#7]", "SubqueryAlias _pyspark_1", BATCH, "Range (0, 1)")
    two = plan("Project [user#32 AS u#77]", "SubqueryAlias _pyspark_2", BATCH.replace("#2", "#32"), "Range (0, 1)")
    three = plan("Project [user#2 AS u#7, 0.123 AS r#8]", "SubqueryAlias _pyspark_1", BATCH, "Range (0, 1)")
    assert fingerprint(one) == fingerprint(two) != fingerprint(three)


def test_the_errors_say_what_where_and_what_to_do() -> None:
    refused = hr.TransformRefused("views", "transform 1", "Sort", "orders one batch only", "Sort when you query")
    assert str(refused) == "flow 'views', transform 1: Sort orders one batch only. Sort when you query."
    unknown = hr.UnknownColumn("views", "pgae", ["page", "user"])
    assert str(unknown) == "flow 'views': there is no column 'pgae'. Did you mean 'page'? There are: page, user."
    assert isinstance(unknown, LookupError)
    wide = hr.UnknownColumn("views", "pgae", [*(f"c{n}" for n in range(19)), "page"])
    assert str(wide).endswith(f"There are: page, {', '.join(f'c{n}' for n in range(19))}.")  # all, the nearest first
    wider = hr.UnknownColumn("views", "pgae", [f"c{n}" for n in range(100)])
    assert str(wider).endswith("c28, c29, and 70 more.")
    for error in (refused, unknown):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
