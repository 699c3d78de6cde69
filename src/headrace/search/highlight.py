"""Where a record has what a query asked for: between which characters of which column. As JSON text, so that any store
and topic can hold it: `{"title":[[0,9]]}`. The ends are outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from headrace.search.tree import And, Node, Or, Phrase
from headrace.search.words import spans

__all__ = ["Highlighter", "asked_for"]

SPANS_MAX = 100
"""Of a hit."""


def asked_for(node: Node) -> tuple[Phrase, ...]:
    """The phrases that a record may be found by: not those that it must not have."""
    match node:
        case Phrase():
            return (node,)
        case And(parts) | Or(parts):
            return tuple(phrase for each in parts for phrase in asked_for(each))
    return ()


class Highlighter:
    """Of one record: its words are looked up once, however many queries have found it. `texts`: by column."""

    def __init__(self, texts: Mapping[str, str | None]) -> None:
        self._texts = texts
        self._known: dict[str, _Places] = {}

    def of(self, phrases: Sequence[Phrase]) -> str:
        """Where the phrases are, as JSON."""
        out: dict[str, list[tuple[int, int]]] = {}
        for name, text in self._texts.items():
            mine = [each for each in phrases if each.field is None or each.field == name]
            if text and mine:
                if name not in self._known:
                    self._known[name] = _Places(text)
                if found := self._known[name].of(mine):
                    out[name] = found
        return orjson.dumps(out).decode()


class _Places:
    """The words of a text, and where each stands."""

    def __init__(self, text: str) -> None:
        self._words = [*spans(text)]
        self._first: dict[str, list[int]] = {}
        for at, (word, _, _) in enumerate(self._words):
            self._first.setdefault(word, []).append(at)

    def of(self, phrases: Sequence[Phrase]) -> list[tuple[int, int]]:
        found = set()
        for phrase in phrases:
            first, more = phrase.words[0], len(phrase.words) - 1
            begins = range(len(self._words)) if phrase.prefix and not more else self._first.get(first, ())
            for at in begins:
                if (not more and not phrase.prefix) or self._is_there(phrase, at):
                    found.add((self._words[at][1], self._words[at + more][2]))
        return sorted(found)[:SPANS_MAX]

    def _is_there(self, phrase: Phrase, at: int) -> bool:
        if at + len(phrase.words) > len(self._words):
            return False
        *whole, last = phrase.words
        if any(self._words[at + step][0] != word for step, word in enumerate(whole)):
            return False
        there = self._words[at + len(whole)][0]
        return there.startswith(last) if phrase.prefix else there == last
