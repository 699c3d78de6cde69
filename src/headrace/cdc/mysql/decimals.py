"""MySQL's binary decimals as text: nine digits in four bytes, big-endian; the first bit is the sign, and negative ones
are inverted. Pure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Final

__all__ = ["decimal_reader"]

_DIGIT_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_reader(precision: int, scale: int) -> Callable[[bytes, int], tuple[str, int]]:
    """Reads a value that begins there; where it ends."""
    whole = precision - scale
    parts = [(_DIGIT_BYTES[whole % 9], whole % 9), *repeat((4, 9), whole // 9)]
    small = [*repeat((4, 9), scale // 9), (_DIGIT_BYTES[scale % 9], scale % 9)]
    length = sum(size for size, _ in (*parts, *small))

    def digits(data: bytes, at: int, layout: list[tuple[int, int]]) -> tuple[str, int]:
        said = ""
        for size, count in layout:
            if count:
                said += f"{int.from_bytes(data[at : at + size], 'big'):0{count}d}"
                at += size
        return said, at

    def read(data: bytes, at: int) -> tuple[str, int]:
        raw = bytearray(data[at : at + length])
        negative = not raw[0] & 0x80
        raw[0] ^= 0x80
        if negative:
            raw = bytearray(byte ^ 0xFF for byte in raw)
        left, middle = digits(bytes(raw), 0, parts)
        right, _ = digits(bytes(raw), middle, small)
        return ("-" if negative else "") + (left.lstrip("0") or "0") + (f".{right}" if scale else ""), at + length

    return read
