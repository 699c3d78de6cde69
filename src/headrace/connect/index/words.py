"""What people type into a search box, as a query of FTS5. Owns the small language, in which every text means something:
no text is a syntax error, and none reaches FTS5 but as quoted words. Pure.

    heat pump          both words                    "heat pump"   one behind the other
    pum*               words that begin so           heat -oil     without the word
    heat OR stove      one of them                   title:pump    in that column"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.errors import InvalidArgument

__all__ = ["CHARACTERS_MAX", "Words", "parse"]

CHARACTERS_MAX: Final = 500
TERMS_MAX: Final = 32
PREFIX_MIN: Final = 2
"""Shorter beginnings of words would be half of an index: they are taken as words."""
_TERM: Final = re.compile(r'(-?)(?:([^\s":]+):(?=[^\s]))?("[^"]*"?|[^\s"]+)(\*?)')


@dataclass(frozen=True, slots=True)
class Words:
    """`match`: for FTS5; None if nothing can be found, and `why` not."""

    match: str | None
    why: str = ""


def parse(text: str, columns: Mapping[str, str]) -> Words:
    """`columns`: those that may be named, with what they are called in the index. InvalidArgument if the text is too
    long."""
    if len(text) > CHARACTERS_MAX:
        raise InvalidArgument("query", text[:40] + "…", f"is longer than {CHARACTERS_MAX} characters")
    found = list(_TERM.finditer("".join(each if each.isprintable() else " " for each in text)))
    if len(found) > TERMS_MAX:
        raise InvalidArgument("query", text[:40] + "…", f"has more than {TERMS_MAX} words")
    sides: list[str] = []
    wanted: list[str] = []
    not_wanted: list[str] = []
    for term in found:
        if term[0] == "OR":
            sides += _side(wanted, not_wanted)
            wanted, not_wanted = [], []
            continue
        said = _term(term, columns)
        if said is not None:
            (not_wanted if term[1] else wanted).append(said)
    without = bool(not_wanted) and not wanted
    sides += _side(wanted, not_wanted)
    if sides:
        return Words(" OR ".join(sides))
    if without:
        return Words(None, "every word has a '-': add one that has to be there")
    return Words(None, "there is no word in it" if text.strip() else "type a word")


def _side(wanted: list[str], not_wanted: list[str]) -> list[str]:
    if not wanted:
        return []
    both = " AND ".join(wanted)
    return [f"(({both}) NOT ({' OR '.join(not_wanted)}))" if not_wanted else f"({both})"]


def _term(term: re.Match[str], columns: Mapping[str, str]) -> str | None:
    column, word, star = term[2], term[3], term[4]
    if column is not None and column not in columns:
        column, word = None, f"{column}:{word}"
    if not word.startswith('"') and word.endswith("*"):
        word, star = word.rstrip("*"), "*"
    word = word.replace('"', " ").strip()
    if not any(map(_is_letter, word)):
        return None
    begins = star if sum(map(_is_letter, word)) >= PREFIX_MIN else ""
    return f'{columns[column]} : "{word}"{begins}' if column is not None else f'"{word}"{begins}'


def _is_letter(character: str) -> bool:
    """What the tokenizers take as part of a word: letters, numbers, private use."""
    return character.isalnum() or unicodedata.category(character) == "Co"
