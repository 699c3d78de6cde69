"""Character sets of MySQL as encodings of Python. Pure."""

from __future__ import annotations

import codecs
from typing import Final

__all__ = ["encoding_of"]

_OTHERS: Final = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    "latin1": "cp1252",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "sjis": "shift-jis",
    "ujis": "euc-jp",
    "eucjpms": "euc-jp",
    "euckr": "cp949",
    "macroman": "mac-roman",
    "macce": "mac-latin2",
}


def encoding_of(charset: str) -> str:
    """LookupError for one that Python does not have."""
    return codecs.lookup(_OTHERS.get(charset, charset)).name
