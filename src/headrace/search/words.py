"""Words: how texts, of records and of queries alike, become the words that are compared. Owns that rule.

A word is a run of letters, digits and underscores, with the marks that belong to them, without case: "Heat-Pump" is the
two words `heat` and `pump`. Forms of one character are equal (NFKC). Each character of Chinese and Japanese is a word.
Words have no spaces, so a text is kept as its words with spaces between. Nearly all texts are ASCII, and these take a
way of their own, of which the result is the same: Arrow and a table of 256 bytes do it for a whole column."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["folded", "spans", "words"]

ALONE = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters that are words by themselves: of texts without spaces."""


_ASCII_WORD = re.compile(r"[a-z0-9_]+")


@cache
def _word() -> re.Pattern[str]:
    codes = range(0x300, min(0x1_0000, sys.maxunicode))
    marks = [code for code in codes if unicodedata.category(chr(code)) in ("Mn", "Mc")]
    ranges: list[list[int]] = []
    for code in marks:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    of_marks = "".join(f"\\u{low:04x}-\\u{high:04x}" for low, high in ranges)
    return re.compile(f"[{ALONE}][{of_marks}]*|(?:[^\\W{ALONE}][{of_marks}]*)+")


def spans(text: str) -> Iterator[tuple[str, int, int]]:
    """Each word of the text, and between which characters it stands."""
    if text.isascii():
        for found in _ASCII_WORD.finditer(text.lower()):
            yield found.group(), found.start(), found.end()
        return
    for found in _word().finditer(text):
        word = _without_case(found.group())
        if word:
            yield word, found.start(), found.end()


def words(text: str) -> list[str]:
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return [word for word, _, _ in spans(text)]


def _without_case(word: str) -> str:
    if word.isascii():
        return word.lower()
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())
    return "".join(folded.split())


def _ascii_table() -> npt.NDArray[np.uint8]:
    kept = [ord(chr(code).lower()) if chr(code).isalnum() or code == ord("_") else ord(" ") for code in range(128)]
    return np.array([*kept, *[ord(" ")] * 128], np.uint8)


_TABLE = _ascii_table()


def folded(texts: pa.Array) -> pa.Array:
    """The words of each text, with one or more spaces between; null for null."""
    texts = texts.cast(pa.large_string()) if texts.type != pa.large_string() else texts
    plain = pc.string_is_ascii(texts)
    if pc.all(plain).as_py() in (True, None):
        return _of_ascii(texts)
    made = [
        None if text is None else " ".join(words(text)) if not ascii_ else ""
        for text, ascii_ in zip(texts.to_pylist(), plain.to_pylist(), strict=True)
    ]
    only = pc.if_else(pc.fill_null(plain, False), texts, pa.scalar(None, pa.large_string()))
    return pc.if_else(pc.fill_null(plain, False), _of_ascii(only), pa.array(made, pa.large_string()))


def _of_ascii(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    if not len(texts):
        return texts
    if texts.offset:
        texts = pa.concat_arrays([texts])
        texts = texts if not texts.offset else pa.array(texts.to_pylist(), pa.large_string())
    valid, offsets, data = texts.buffers()
    made = b"" if data is None else _TABLE[np.frombuffer(data, np.uint8)]
    return pa.LargeStringArray.from_buffers(len(texts), offsets, pa.py_buffer(made), valid)
