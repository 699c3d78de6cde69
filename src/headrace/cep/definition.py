"""Patterns as values: what `hr.pattern(…)` and `hr.match_recognize(…)` make. Owns what is refused where the pieces do
not fit together. Pure; the columns of the events are known later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

from headrace.cep import expressions, shape
from headrace.cep.expressions import Classifier, Column, Computed, Expression, Logic, Over, as_sql, conjuncts, walk
from headrace.durations import Duration, duration_us, format_duration
from headrace.errors import InvalidArgument, nearest

if TYPE_CHECKING:
    from headrace.cep.conditions import RowCondition
    from headrace.cep.program import Program

__all__ = ["Parts", "Pattern", "parts_of", "pattern"]

Skip = str
RowsPerMatch = Literal["one", "all"]
CONDITIONS_MAX = 200
LONGEST_US = 365_250 * 86_400_000_000


@dataclass(frozen=True)
class Condition:
    """Of a symbol. `row`: what looks at one row and is decided without Spark; `spark`: what Spark decides of one row;
    `history`: what looks at earlier rows of the match, too."""

    symbol: str
    text: str
    row: tuple[Expression, ...] = ()
    spark: str | None = None
    history: Expression | None = None


@dataclass(frozen=True)
class Pattern:
    """What to look for in the events of each key; made by `hr.pattern(…)`. `by`, `order_by`: as a text of SQL says.
    `closed`: what looks at one row is not left to Spark as long as it is in the subset of SQL (`expressions`)."""

    text: str
    define: tuple[tuple[str, str], ...]
    within_us: int
    measures: tuple[tuple[str, str], ...] = ()
    skip: Skip = "past_last"
    timed_out: bool = False
    rows: RowsPerMatch = "one"
    by: tuple[str, ...] = ()
    order_by: str | None = None
    closed: bool = False
    symbols: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        tree = shape.parse(self.text)
        symbols = tuple(shape.symbols_of(tree))
        object.__setattr__(self, "symbols", symbols)
        for name, _ in self.define:
            if _known(symbols, name) is None:
                why = f"is no symbol of the pattern {self.text!r}.{nearest(name, list(symbols))}"
                raise InvalidArgument("define", name, why)
        if self.rows not in ("one", "all"):
            raise InvalidArgument(
                "rows", self.rows, "must be 'one' or 'all': a row for each match, or for each event in it"
            )
        self._check_skip(tree)
        for argument, given in (("define", self.define), ("measures", self.measures)):
            names = [str(name).lower() for name, _ in given]
            for name in {each for each in names if names.count(each) > 1}:
                raise InvalidArgument(argument, name, "is there twice, in upper or lower case: leave one out")
        parts = parts_of(self)
        assert parts.program and parts.conditions is not None
        for name, _ in parts.measure_trees:
            if not isinstance(name, str) or not name or name.startswith(("_", "/")):
                raise InvalidArgument("measures", name, "must be the name of a column, and not begin with '_'")
            if name.lower() in TAKEN:
                raise InvalidArgument("measures", name, "is a column of every match: give the measure another name")

    def __str__(self) -> str:
        """As it is written, to be compared with what ran before."""
        said = [repr(self.text), f"define={dict(self.define)}", f"within={format_duration(self.within_us)!r}"]
        said += [f"measures={dict(self.measures)}"] if self.measures else []
        said += [f"skip={self.skip!r}"] if self.skip != "past_last" else []
        said += ["timed_out=True"] if self.timed_out else []
        said += [f"rows={self.rows!r}"] if self.rows != "one" else []
        return f"pattern({', '.join(said)})"

    def _check_skip(self, tree: shape.Shape) -> None:
        how, _, name = self.skip.partition(":") if isinstance(self.skip, str) else ("", "", "")
        if how in ("past_last", "to_next") and not name:
            return
        symbol = _known(self.symbols, name.strip())
        if how not in ("to_first", "to_last") or symbol is None:
            why = "must be 'past_last', 'to_next', or 'to_first:x' or 'to_last:x' of a symbol x of the pattern"
            raise InvalidArgument("skip", self.skip, why)
        if symbol not in shape.always(tree):
            why = f"a match may have no row that is {symbol}, and then there is nothing to skip to"
            raise InvalidArgument("skip", self.skip, why)
        if how == "to_first" and symbol in shape.first_of(tree):
            why = f"{symbol} may be the first row of a match, and it would be found again and again. Use 'to_next'"
            raise InvalidArgument("skip", self.skip, why)


@dataclass(frozen=True)
class Parts:
    """What a pattern comes to: its program, conditions and measures."""

    pattern: Pattern

    @property
    def skip_to(self) -> tuple[str, int]:
        how, _, name = self.pattern.skip.partition(":")
        symbol = _known(self.pattern.symbols, name.strip())
        return how, -1 if symbol is None else self.pattern.symbols.index(symbol)

    @cached_property
    def program(self) -> Program:
        from headrace.cep.program import compiled

        return compiled(shape.parse(self.pattern.text), self.pattern.symbols, self.pattern.text)

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        from headrace.cep.conditions import is_closed, is_plain
        from headrace.cep.evaluate import is_of_one_row

        out = []
        for name, text in self.pattern.define:
            symbol = _known(self.pattern.symbols, name)
            assert symbol is not None
            tree = expressions.parse(text, self.pattern.symbols, argument=f"define[{name!r}]", of=symbol)
            if any(isinstance(each, Classifier) for each in walk(tree)):
                raise InvalidArgument(f"define[{name!r}]", text, "classifier() is for measures")
            parts = conjuncts(tree)
            if len(parts) > CONDITIONS_MAX:
                raise InvalidArgument(
                    f"define[{name!r}]", f"{text[:40]}…", f"has more than {CONDITIONS_MAX} conditions"
                )
            single = [each for each in parts if is_of_one_row(each)]
            plain = tuple(each for each in single if is_plain(each) or (self.pattern.closed and is_closed(each)))
            spark = [as_sql(each) for each in single if each not in plain]
            several = [each for each in parts if not is_of_one_row(each)]
            history = None if not several else several[0]
            for each in several[1:]:
                assert history is not None
                history = Logic("and", history, each)
            out.append(Condition(symbol, text, plain, " AND ".join(spark) or None, history))
        return tuple(out)

    @cached_property
    def is_one_row(self) -> bool:
        """Whether a match is one row, and follows from that alone."""
        alone = isinstance(shape.parse(self.pattern.text), shape.Row)
        return alone and all(each.history is None for each in self.conditions)

    @cached_property
    def measure_trees(self) -> tuple[tuple[str, Expression], ...]:
        return tuple(
            (name, expressions.parse(text, self.pattern.symbols, argument=f"measures[{name!r}]"))
            for name, text in self.pattern.measures
        )

    @cached_property
    def row_conditions(self) -> tuple[RowCondition, ...]:
        """What is decided of one row without Spark, and what Spark has decided."""
        from headrace.cep.conditions import RowCondition
        from headrace.cep.evaluate import computed_name

        out = [RowCondition(each.symbol, of, each.text) for each in self.conditions for of in each.row]
        return (
            *out,
            *(
                RowCondition(each.symbol, Column(computed_name(each.spark)), each.text)
                for each in self.conditions
                if each.spark is not None
            ),
        )

    @cached_property
    def computed(self) -> Mapping[str, str]:
        """The columns that Spark computes, in the job that reads the events, by name."""
        from headrace.cep.evaluate import computed_name

        trees = [each.history for each in self.conditions if each.history is not None]
        trees += [tree for _, tree in self.measure_trees]
        texts = [each.spark for each in self.conditions if each.spark is not None]
        for tree in trees:
            for node in walk(tree):
                if isinstance(node, Computed):
                    texts.append(node.text)
                elif isinstance(node, Over) and isinstance(node.of, Computed):
                    texts.append(node.of.text)
        return {computed_name(text): text for text in texts}

    def transform(self, df: Any) -> Any:
        """A DataFrame with the columns that Spark computes."""
        return df.selectExpr("*", *(f"{text} AS `{name}`" for name, text in self.computed.items()))


@lru_cache(maxsize=4_096)
def parts_of(pattern: Pattern) -> Parts:
    return Parts(pattern)


def _known(symbols: tuple[str, ...], name: object) -> str | None:
    return next((each for each in symbols if isinstance(name, str) and each.lower() == name.lower()), None)


TAKEN = {"match_start", "match_end", "outcome", "symbol"}


def pattern(
    text: str,
    *,
    define: Mapping[str, str] | None = None,
    within: Duration,
    measures: Mapping[str, str] | None = None,
    skip: Skip = "past_last",
    timed_out: bool = False,
    rows: RowsPerMatch = "one",
) -> Pattern:
    """A pattern of events: `hr.pattern("small+ big", define={"small": "amount < 10", "big": "amount > 500"},
    within="10 minutes")`.

    Symbols follow each other without an event between. `+ * ? {n,m}` repeat, as often as possible, or with `?` behind
    as seldom as possible; `|` chooses, `( )` groups; `!x` is a run of events, none of them x: up to what follows it, or
    at the end until `within` is over. `define`: when an event has a symbol, a condition of Spark SQL over its columns;
    with `first(c)`, `last(c)`, `prev(c)`, `count sum avg min max` also over the events before it in the match,
    `small.amount` for those of one symbol. A symbol without one is any event.

    `within`: from the first event of a match to its last at most. `measures`: columns of a match. `skip`: where to look
    on behind a match: "past_last", "to_next", "to_first:x" or "to_last:x". `timed_out`: whether partial matches, whose
    time is over while the next event could still have gone on, are rows, too; a column `outcome` is 'match' or
    'timed_out'. `rows`: "one" for each match, or "all" its events, each with its columns and its `symbol`."""
    for argument, given in (("define", define), ("measures", measures)):
        if given is not None and not isinstance(given, Mapping):
            raise InvalidArgument(argument, given, "must be a mapping: {'small': 'amount < 10'}")
    within_us = duration_us(within, argument="within")
    if within_us > LONGEST_US:
        raise InvalidArgument("within", within, "must be at most 1000 years")
    return Pattern(
        text,
        tuple((define or {}).items()),
        within_us,
        tuple((measures or {}).items()),
        skip,
        bool(timed_out),
        rows,
    )
