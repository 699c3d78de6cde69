"""What a condition or a measure says: `"amount > 2 * avg(small.amount)"`, parsed. Owns the closed subset of SQL that
looks at several rows of a match, and what of a text is left to Spark. Pure.

A text is read as SQL: literals, columns, `symbol.column`, comparisons, arithmetic, AND OR NOT, IS NULL, IN, BETWEEN,
and over the rows of a match `first(c, n)`, `last(c, n)`, `prev(c, n)`, `count sum avg min max` and `classifier()`. What
else there is, functions, CASE, LIKE and all the rest, belongs to one row, and Spark computes it: `Computed`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NoReturn

from headrace.errors import InvalidArgument

__all__ = [
    "Arithmetic",
    "Between",
    "Classifier",
    "Column",
    "Comparison",
    "Computed",
    "Expression",
    "In",
    "IsNull",
    "Literal",
    "Logic",
    "Negative",
    "Not",
    "Over",
    "as_sql",
    "children",
    "conjuncts",
    "parse",
    "walk",
]

CHARACTERS_MAX, DEPTH_MAX, OFFSET_MAX = 10_000, 50, 1_000
DIGITS_MAX = 50
LEVELS_MAX = 250
"""Of a tree: a + b + c has two."""
TOKEN = re.compile(
    r"""\s*(?:(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)|(?P<text>'(?:[^'\\]|'')*')|(?P<quoted>`(?:[^`]|``)+`)"""
    r"""|(?P<spark>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|''|\\[\s\S])*'|"(?:[^"\\]|""|\\[\s\S])*")"""
    r"""|(?P<name>[A-Za-z_]\w*)|(?P<sign><=>|<=|>=|<>|!=|==|[-+*/%=<>(),.])|(?P<wrong>\S))"""
)
NAVIGATION, AGGREGATES = ("first", "last", "prev"), ("count", "sum", "avg", "min", "max")
OVER_ROWS = (*NAVIGATION, *AGGREGATES)
WORDS = {"and", "or", "not", "is", "null", "in", "between", "true", "false"}
SIGNS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclass(frozen=True, slots=True)
class Literal:
    value: str | int | float | Decimal | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """`symbol`: whose last row; None: the row that is looked at, or the match's last."""

    name: str
    symbol: str | None = None


@dataclass(frozen=True, slots=True)
class Computed:
    """What Spark computes of one row. `text`: in Spark's SQL."""

    text: str
    symbol: str | None = None


@dataclass(frozen=True, slots=True)
class Over:
    """A function over the rows of a match that have the symbol; None: over all that have one. `of`: None for `*`."""

    function: str
    of: Column | Computed | None
    symbol: str | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Classifier:
    """The symbol of the last row."""


@dataclass(frozen=True, slots=True)
class Comparison:
    sign: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    sign: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Negative:
    of: Expression


@dataclass(frozen=True, slots=True)
class Logic:
    """`sign`: "and" or "or"."""

    sign: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Not:
    of: Expression


@dataclass(frozen=True, slots=True)
class IsNull:
    of: Expression


@dataclass(frozen=True, slots=True)
class In:
    of: Expression
    among: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Between:
    of: Expression
    low: Expression
    high: Expression


Expression = (
    Literal
    | Column
    | Computed
    | Over
    | Classifier
    | Comparison
    | Arithmetic
    | Negative
    | Logic
    | Not
    | IsNull
    | In
    | Between
)


def children(node: Expression) -> tuple[Expression, ...]:
    match node:
        case Comparison(_, left, right) | Arithmetic(_, left, right) | Logic(_, left, right):
            return left, right
        case Negative(of) | Not(of) | IsNull(of):
            return (of,)
        case In(of, among):
            return (of, *among)
        case Between(of, low, high):
            return of, low, high
        case Over(_, Column() | Computed() as of):
            return (of,)
    return ()


def walk(node: Expression) -> Iterator[Expression]:
    yield node
    for each in children(node):
        yield from walk(each)


def conjuncts(node: Expression) -> list[Expression]:
    """What must all be true."""
    if isinstance(node, Logic) and node.sign == "and":
        return [*conjuncts(node.left), *conjuncts(node.right)]
    return [node]


def as_sql(node: Expression) -> str:
    """What looks at one row, as Spark's SQL has it."""
    match node:
        case Literal(value):
            return _literal(value)
        case Column(name):
            return f"`{name.replace('`', '``')}`"
        case Computed(text):
            return f"({text})"
        case Comparison(sign, left, right) | Arithmetic(sign, left, right) | Logic(sign, left, right):
            return f"({as_sql(left)} {sign.upper()} {as_sql(right)})"
        case Negative(of):
            return f"(- {as_sql(of)})"
        case Not(of):
            return f"(NOT {as_sql(of)})"
        case IsNull(of):
            return f"({as_sql(of)} IS NULL)"
        case In(of, among):
            return f"({as_sql(of)} IN ({', '.join(map(as_sql, among))}))"
        case Between(of, low, high):
            return f"({as_sql(of)} BETWEEN {as_sql(low)} AND {as_sql(high)})"
    raise AssertionError(f"{node} looks at several rows")


def _literal(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case float():
            return f"{value!r}D"
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value)


def parse(text: str, symbols: Sequence[str], *, argument: str, of: str | None = None) -> Expression:
    """The tree of a text. `symbols`: those of the pattern; `of`: the one that it is the condition of, whose own columns
    are those of the row that is looked at; None for a measure."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument(argument, text, "must be a text of SQL")
    if len(text) > CHARACTERS_MAX:
        raise InvalidArgument(argument, f"{text[:40]}…", f"is longer than {CHARACTERS_MAX:,} characters")
    return _Parser(text, symbols, argument, of).whole()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    begin: int
    end: int

    @property
    def word(self) -> str:
        return self.text.lower() if self.kind == "name" else ""


class _NotOurs(Exception):
    """What is not in the subset: Spark's, if it belongs to one row."""


class _Parser:
    def __init__(self, text: str, symbols: Sequence[str], argument: str, of: str | None) -> None:
        self._text, self._argument, self._at, self._depth = text, argument, 0, 0
        self._symbols = {name.lower(): name for name in symbols}
        self._of = of
        self._tokens = [
            _Token(found.lastgroup or "", found[found.lastgroup or 0], *found.span(found.lastgroup or 0))
            for found in TOKEN.finditer(text.rstrip())
        ]

    def whole(self) -> Expression:
        found = self._or()
        if self._at < len(self._tokens):
            self._refuse(f"{self._peek().text!r} at character {self._peek().begin} is not expected")
        level = [found]
        for _ in range(LEVELS_MAX):
            level = [inner for each in level for inner in children(each)]
        if level:
            raise InvalidArgument(
                self._argument, f"{self._text[:40]}…", f"has more than {LEVELS_MAX} operators, one over the other"
            )
        return found

    def _refuse(self, why: str) -> NoReturn:
        raise InvalidArgument(self._argument, self._text, why)

    # -- tokens ----------------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> _Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _Token("", "", len(self._text), len(self._text))

    def _is(self, text: str) -> bool:
        token = self._peek()
        if (token.kind == "sign" and token.text == text) or (token.word and token.word == text):
            self._at += 1
            return True
        return False

    def _must(self, text: str) -> None:
        if not self._is(text):
            raise _NotOurs

    def _symbol_at(self, at: int) -> str | None:
        """The symbol, if it is `symbol.column` that stands there."""
        if at + 2 >= len(self._tokens) or self._tokens[at].kind != "name":
            return None
        if self._tokens[at + 1].text != "." or self._tokens[at + 2].kind not in ("name", "quoted"):
            return None
        return self._symbols.get(self._tokens[at].word)

    def _computed(self, begin: int, end: int) -> Computed:
        """The text between two tokens, for Spark. It belongs to one row: of one symbol, or of none."""
        tokens, pieces, symbols = self._tokens, list[str](), set[str | None]()
        at, place = begin, tokens[begin].begin
        while at < end:
            token = tokens[at]
            follows = tokens[at + 1].text if at + 1 < len(tokens) else ""
            if token.word in (*OVER_ROWS, "classifier") and follows == "(":
                why = (
                    f"{token.text}(…) looks at several rows, and stands beside what only Spark can compute of one. Use"
                )
                self._refuse(f"{why} comparisons, arithmetic, AND, OR, NOT, IS NULL, IN and BETWEEN there")
            symbol = self._symbol_at(at)
            before = tokens[at - 1].text if at else ""
            if symbol is not None and before != ".":
                pieces.append(self._text[place : token.begin])
                place = tokens[at + 2].begin
                symbols.add(None if symbol == self._of else symbol)
                at += 2
            at += 1
        pieces.append(self._text[place : tokens[end - 1].end])
        if len(symbols) > 1:
            self._refuse("computes with rows of several symbols what only Spark can compute, of one row")
        symbol = next(iter(symbols), None)
        if symbol is not None and self._of is not None:
            why = f"looks at rows of {symbol!r} with what only Spark can compute, of one row"
            self._refuse(f"{why}. Write last(…) around it")
        return Computed("".join(pieces).strip(), symbol)

    # -- the grammar -----------------------------------------------------------------------------------

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._refuse(f"has more than {DEPTH_MAX} parts one in the other")

    def _or(self) -> Expression:
        self._deeper()
        left = self._and()
        while self._is("or"):
            left = Logic("or", left, self._and())
        self._depth -= 1
        return left

    def _and(self) -> Expression:
        left = self._term()
        while self._is("and"):
            left = Logic("and", left, self._term())
        return left

    def _term(self) -> Expression:
        """What stands between AND and OR: of the subset, or all of it for Spark."""
        begin, depth = self._at, self._depth
        try:
            found = self._not()
            if not self._ends():
                raise _NotOurs
        except _NotOurs:
            self._at, self._depth = begin, depth
            inside = cases = betweens = 0
            while self._at < len(self._tokens) and (inside or cases or betweens or not self._ends()):
                token = self._peek()
                inside += {"(": 1, ")": -1}.get(token.text, 0) if token.kind == "sign" else 0
                cases += {"case": 1, "end": -1}.get(token.word, 0)
                betweens += {"between": 1, "and": -1 if betweens else 0}.get(token.word, 0) if not inside else 0
                self._at += 1
            if self._at == begin:
                self._refuse("ends where something is expected" if begin else "is no condition of SQL")
            found = self._computed(begin, self._at)
        return found

    def _ends(self) -> bool:
        token = self._peek()
        return not token.kind or token.word in ("and", "or") or (token.kind == "sign" and token.text in (")", ","))

    def _not(self) -> Expression:
        if self._is("not"):
            self._deeper()
            found = Not(self._not())
            self._depth -= 1
            return found
        return self._compared()

    def _compared(self) -> Expression:
        left = self._sum()
        token = self._peek()
        if token.kind == "sign" and token.text in SIGNS:
            self._at += 1
            return Comparison(SIGNS[token.text], left, self._sum())
        if self._is("is"):
            negated = self._is("not")
            self._must("null")
            return Not(IsNull(left)) if negated else IsNull(left)
        negated = self._is("not")
        if self._is("between"):
            low = self._sum()
            self._must("and")
            found: Expression = Between(left, low, self._sum())
        elif self._is("in"):
            self._must("(")
            among = [self._sum()]
            while self._is(","):
                among.append(self._sum())
            self._must(")")
            found = In(left, tuple(among))
        elif negated:
            raise _NotOurs
        else:
            return left
        return Not(found) if negated else found

    def _sum(self) -> Expression:
        left = self._product()
        while (token := self._peek()).kind == "sign" and token.text in ("+", "-"):
            self._at += 1
            left = Arithmetic(token.text, left, self._product())
        return left

    def _product(self) -> Expression:
        left = self._signed()
        while (token := self._peek()).kind == "sign" and token.text in ("*", "/", "%"):
            self._at += 1
            left = Arithmetic(token.text, left, self._signed())
        return left

    def _signed(self) -> Expression:
        if self._is("-"):
            self._deeper()
            of = self._signed()
            self._depth -= 1
            if isinstance(of, Literal) and isinstance(of.value, int | float | Decimal):
                return Literal(-of.value)
            return Negative(of)
        return self._primary()

    def _primary(self) -> Expression:
        token = self._peek()
        if self._is("("):
            found = self._or()
            self._must(")")
            return found
        if token.kind == "number":
            self._at += 1
            if len(token.text) > DIGITS_MAX:
                self._refuse(f"has a number of more than {DIGITS_MAX} characters")
            if "e" in token.text.lower():
                return Literal(float(token.text))
            return Literal(Decimal(token.text) if "." in token.text else int(token.text))
        if token.kind == "text":
            self._at += 1
            return Literal(token.text[1:-1].replace("''", "'"))
        if token.word in ("true", "false", "null"):
            self._at += 1
            return Literal({"true": True, "false": False, "null": None}[token.word])
        if token.kind == "quoted" or (token.kind == "name" and token.word not in WORDS):
            if self._peek(1).text == "(":
                return self._call()
            return self._column()
        raise _NotOurs

    def _column(self) -> Column:
        symbol = self._symbol_at(self._at)
        if symbol is not None:
            self._at += 2
        elif self._peek(1).text == ".":
            raise _NotOurs
        name = self._name()
        return Column(name, None if symbol == self._of else symbol)

    def _name(self) -> str:
        token = self._peek()
        self._at += 1
        return token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text

    def _call(self) -> Expression:
        begin, token = self._at, self._peek()
        if token.word == "classifier" and self._peek(2).text == ")":
            self._at += 3
            return Classifier()
        if token.word not in OVER_ROWS:
            self._skip_call()
            return self._computed(begin, self._at)
        self._at += 2
        function = token.word
        if function == "count" and self._is("*"):
            self._must(")")
            return Over("count", None)
        symbol = self._symbols.get(self._peek().word)
        if function == "count" and symbol and (self._peek(1).text, self._peek(2).text) == (".", "*"):
            self._at += 3
            self._must(")")
            return Over("count", None, symbol)
        return self._over(function, token)

    def _over(self, function: str, token: _Token) -> Expression:
        """`function(x)`, `first(x, 2)`: x is a column, or what Spark computes of one row."""
        begin, depth, comma = self._at, 0, None
        while self._at < len(self._tokens):
            sign = self._peek().text if self._peek().kind == "sign" else ""
            if sign == ")" and depth == 0:
                break
            if sign == "," and depth == 0:
                comma = self._at
            depth += {"(": 1, ")": -1}.get(sign, 0)
            self._at += 1
        end = self._at
        self._must(")")
        offset = {"prev": 1}.get(function, 0)
        if function in NAVIGATION and comma is not None and comma == end - 2:
            number = self._tokens[comma + 1]
            digits = number.text if number.kind == "number" and len(number.text) <= DIGITS_MAX else ""
            if not digits.isdigit() or int(digits) > OFFSET_MAX:
                self._refuse(f"{function}(c, n): n is a whole number, at most {OFFSET_MAX:,}")
            offset, end = int(digits), comma
        if begin == end:
            self._refuse(f"{token.text}() says of no column what it looks at")
        for at in range(begin, end):
            if self._tokens[at].word in OVER_ROWS and self._tokens[at + 1].text == "(":
                self._refuse(f"{token.text}(…) has {self._tokens[at].text}(…) in it: both look at several rows")
        of: Column | Computed
        named = self._symbol_at(begin) if end - begin == 3 else None
        if named is not None or (end - begin == 1 and self._tokens[begin].kind in ("name", "quoted")):
            name = self._tokens[end - 1]
            of = Column(name.text[1:-1].replace("``", "`") if name.kind == "quoted" else name.text)
            symbol = named
        else:
            kept, self._of = self._of, None
            try:
                made = self._computed(begin, end)
            finally:
                self._of = kept
            of, symbol = Computed(made.text), made.symbol
        if function == "prev":
            if symbol is not None and symbol != self._of:
                self._refuse("prev(c) is of the row before this one: leave the symbol out")
            return Over("last", of, None, offset) if offset else of
        return Over(function, of, symbol, offset)

    def _skip_call(self) -> None:
        """Passes over `name(…)`."""
        self._at += 1
        depth = 0
        while self._at < len(self._tokens):
            token = self._peek()
            self._at += 1
            if token.kind == "sign":
                depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth == 0:
                return
        self._refuse("has a '(' without its ')'")
