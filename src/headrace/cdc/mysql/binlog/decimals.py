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
    layout = [whole % 9, *repeat(9, whole // 9), *repeat(9, scale // 9), scale % 9]
    bits = [8 * _DIGIT_BYTES[count] for count in layout]
    total = sum(bits)
    length, sign, every, point = total // 8, 1 << total - 1, (1 << total) - 1, 1 + whole // 9
    groups = [
        (total - sum(bits[: at + 1]), (1 << size) - 1, f"0{count}d")
        for at, (size, count) in enumerate(zip(bits, layout, strict=True))
    ]
    left = [each for each in groups[:point] if each[1]]
    right = [each for each in groups[point:] if each[1]]

    def read(data: bytes, at: int) -> tuple[str, int]:
        end = at + length
        if end > len(data):
            raise IndexError("a decimal is longer than its event")
        value = int.from_bytes(data[at:end], "big") ^ sign
        minus = ""
        if value & sign:
            minus, value = "-", value ^ every
        said = "".join([format(value >> shift & mask, form) for shift, mask, form in left]).lstrip("0") or "0"
        if right:
            said += "." + "".join([format(value >> shift & mask, form) for shift, mask, form in right])
        return minus + said, end

    return read
