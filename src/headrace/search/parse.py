"""From the text of a stored query to what it says, before anybody knows the columns. Owns the syntax, its limits, and
the places that errors name.

    title:"heat pump" AND (price < 500 OR in_stock:true) AND NOT used
    query = all ("OR" all)*      all = one (["AND"] one)*      one = ("NOT" | "-") one | "(" query ")" | what
    what  = word | word* | "a phrase" | column:word | column:(query) | column:[low TO high} | column < value"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from headrace.errors import InvalidSearch

__all__ = ["CLAUSES_MAX", "DEPTH_MAX", "LENGTH_MAX", "Between", "Group", "Negation", "Parsed", "Value", "parse"]

LENGTH_MAX, CLAUSES_MAX, DEPTH_MAX = 8_192, 256, 32
"""Of a query: characters, words and conditions, brackets in brackets."""
OPERATORS = ("AND", "OR", "NOT")

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | "(?P<quoted>(?:[^"\\]|\\.)*)"
      | (?P<compare><=|>=|!=|<|>|=)
      | (?P<mark>[()\[\]{}:*])
      | (?P<minus>-(?=[^\s)\]}:*]))
      | (?P<word>(?:[^\s()\[\]{}:"<>=!*\\]|\\.|!(?!=))+)
      | (?P<nothing>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Value:
    """A word, a phrase or a value, of `field` or anywhere. What it means depends on the column. `star`: it is a
    beginning; without text: anything."""

    field: str | None
    text: str
    star: bool
    at: int


@dataclass(frozen=True, slots=True)
class Between:
    """A column between two values: texts, None where there is no end. `differs`: it is not that value."""

    field: str
    low: str | None
    high: str | None
    over: bool
    under: bool
    at: int
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Negation:
    of: Parsed
    at: int


@dataclass(frozen=True, slots=True)
class Group:
    """All of them, or one of them."""

    all: bool
    parts: tuple[Parsed, ...]
    at: int


Parsed = Value | Between | Negation | Group


class _Token(NamedTuple):
    kind: str
    text: str
    at: int
    end: int


def parse(text: str) -> Parsed:
    """InvalidSearch says where it is wrong."""
    if not isinstance(text, str):
        raise InvalidSearch(repr(text), 0, "a query is a text, as in 'title:\"heat pump\" AND price < 500'")
    if len(text) > LENGTH_MAX:
        why = f"the query has {len(text):,} characters, and may have {LENGTH_MAX:,}"
        raise InvalidSearch(text, LENGTH_MAX, f"{why}. Make several queries of it")
    if "\x00" in text:
        raise InvalidSearch(text, text.index("\x00"), "the character NUL is in no text")
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth, self._clauses = text, 0, 0, 0
        self._tokens = self._read()
        self._now = self._tokens[0]

    def _read(self) -> list[_Token]:
        out, text = list[_Token](), self._text
        for found in _TOKEN.finditer(text):
            kind = found.lastgroup or ""
            if kind == "space":
                continue
            said, at = found[kind], found.start()
            if kind == "nothing":
                what = "the quotation mark is not closed" if said == '"' else f"{said!r} means nothing here"
                raise self._wrong(at, f"{what}. Put a backslash before it if it belongs to a word")
            if "\\" in said:
                said = _ESCAPED.sub(r"\1", said)
                kind = "escaped" if said in OPERATORS and kind == "word" else kind
            out.append(_Token(kind, said, at, found.end()))
        end = _Token("end", "", len(text), len(text))
        return [*out, end, end]

    def _wrong(self, at: int, why: str) -> InvalidSearch:
        return InvalidSearch(self._text, at, why)

    @property
    def _then(self) -> _Token:
        return self._tokens[self._at + 1]

    def _take(self) -> _Token:
        token = self._now
        if token.kind != "end":
            self._at += 1
            self._now = self._tokens[self._at]
        return token

    def _is_mark(self, text: str) -> bool:
        return self._now.text == text and self._now.kind == "mark"

    def _is_word(self, text: str) -> bool:
        return self._now.text == text and self._now.kind == "word"

    # -- the grammar -----------------------------------------------------------------------------------

    def whole(self) -> Parsed:
        if self._now.kind == "end":
            raise self._wrong(0, "the query is empty: say what a record must have")
        found = self._any_of(None)
        if self._now.kind != "end":
            raise self._wrong(self._now.at, f"{self._now.text!r} closes nothing")
        return found

    def _any_of(self, field: str | None) -> Parsed:
        at, parts = self._now.at, [self._all_of(field)]
        while self._is_word("OR"):
            self._take()
            parts.append(self._all_of(field))
        return parts[0] if len(parts) == 1 else Group(False, tuple(parts), at)

    def _all_of(self, field: str | None) -> Parsed:
        at, parts = self._now.at, [self._one(field)]
        while not (self._now.kind == "end" or self._is_mark(")") or self._is_word("OR")):
            if self._is_word("AND"):
                self._take()
            parts.append(self._one(field))
        return parts[0] if len(parts) == 1 else Group(True, tuple(parts), at)

    def _one(self, field: str | None) -> Parsed:
        token = self._now
        if self._is_word("NOT") or token.kind == "minus":
            self._take()
            self._go_deeper(token.at)
            found: Parsed = Negation(self._one(field), token.at)
        elif self._is_mark("("):
            self._take()
            self._go_deeper(token.at)
            found = self._any_of(field)
            if not self._is_mark(")"):
                raise self._wrong(token.at, "the bracket is not closed")
            self._take()
        else:
            self._clauses += 1
            if self._clauses > CLAUSES_MAX:
                why = f"the query has more than {CLAUSES_MAX} words and conditions. Make several queries of it"
                raise self._wrong(token.at, why)
            return self._what(field)
        self._depth -= 1
        return found

    def _go_deeper(self, at: int) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._wrong(at, f"brackets and NOT may be {DEPTH_MAX} deep. Write it with fewer")

    def _what(self, field: str | None) -> Parsed:
        token = self._now
        if (
            token.kind == "word"
            and token.text not in OPERATORS
            and self._then.text == ":"
            and self._then.kind == "mark"
        ):
            self._refuse_field(field, token)
            self._take()
            self._take()
            return self._of_field(token.text, token.at)
        if token.kind == "word" and token.text not in OPERATORS and self._then.kind == "compare":
            self._refuse_field(field, token)
            self._take()
            return self._compared(token.text, token.at)
        if field is not None:
            return self._of_field(field, token.at)
        return self._value(None, token.at)

    def _refuse_field(self, field: str | None, token: _Token) -> None:
        if field is not None:
            raise self._wrong(token.at, f"column {token.text!r} is named inside the brackets of column {field!r}")

    def _of_field(self, field: str, at: int) -> Parsed:
        token = self._now
        if self._is_mark("("):
            self._clauses -= 1
            return self._one(field)
        if token.kind == "compare":
            return self._compared(field, at)
        if self._is_mark("[") or self._is_mark("{"):
            return self._between(field, at)
        if self._is_mark("*"):
            self._take()
            return Value(field, "", True, at)
        return self._value(field, at)

    def _compared(self, field: str, at: int) -> Parsed:
        sign, (text, star) = self._take().text, self._text_of_value("a value, as in price < 500")
        if star:
            raise self._wrong(at, "'*' is for beginnings of words, and not for values that are compared")
        if sign in ("=", "!="):
            return Between(field, text, text, False, False, at, sign == "!=")
        low, high = (text, None) if sign[0] == ">" else (None, text)
        return Between(field, low, high, sign == ">", sign == "<", at)

    def _between(self, field: str, at: int) -> Parsed:
        begin, what = self._take(), "a value or *, as in price:[10 TO 500]"
        low = self._end_of_range(what)
        if not self._is_word("TO"):
            raise self._wrong(self._now.at, "a range has TO between its ends, as in price:[10 TO 500]")
        self._take()
        high = self._end_of_range(what)
        if not (self._is_mark("]") or self._is_mark("}")):
            raise self._wrong(begin.at, "the range is not closed: [10 TO 500], or {10 TO 500} without its ends")
        return Between(field, low, high, begin.text == "{", self._take().text == "}", at)

    def _end_of_range(self, what: str) -> str | None:
        if self._is_mark("*"):
            self._take()
            return None
        return self._text_of_value(what)[0]

    def _value(self, field: str | None, at: int) -> Parsed:
        text, star = self._text_of_value("a word, a phrase, or a condition")
        return Value(field, text, star, at)

    def _text_of_value(self, what: str) -> tuple[str, bool]:
        """A word or a quoted text; one that is a time has colons in it, and a number may begin with a minus."""
        token = self._take()
        sign = ""
        if token.kind == "minus":
            sign, token = "-", self._take()
        if token.kind not in ("word", "escaped", "quoted") or (token.kind == "word" and token.text in OPERATORS):
            there = "the end" if token.kind == "end" else repr(token.text)
            raise self._wrong(token.at, f"expected {what}, and found {there}")
        text, end = sign + token.text, token.end
        while token.kind != "quoted" and self._is_mark(":") and self._now.at == end and self._then.at == end + 1:
            self._take()
            more = self._take()
            if more.kind != "word":
                raise self._wrong(more.at, "a value with a colon is best quoted")
            text, end = f"{text}:{more.text}", more.end
        star = self._is_mark("*") and self._now.at == end
        if star:
            self._take()
            if self._now.kind in ("word", "quoted") and self._now.at == end + 1:
                raise self._wrong(end, "'*' is at the end of a word only: wildcards inside are not searched for")
        return text, star
