"""A small line plot as SVG, written by hand: no plotting library for two pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 380, 80, 50, 50, 20
COLOURS = ("#1f6feb", "#d1242f", "#8250df")
Line = tuple[str, Sequence[float]]


def write(path: Path, title: str, x_label: str, y_label: str, xs: Sequence[float], lines: Sequence[Line]) -> None:
    """One line per series over the common `xs`; both axes start at zero."""
    x_max, y_max = max(xs), 1.15 * max(max(ys) for _, ys in lines)

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = x / x_max * (WIDTH - LEFT - RIGHT), y / y_max * (HEIGHT - TOP - BOTTOM)
        return round(LEFT + across, 1), round(HEIGHT - BOTTOM - up, 1)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{title}</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">{x_label}</text>',
        f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{y_label}</text>',
    ]
    for step in range(6):
        x, y = at(x_max * step / 5, 0)
        out.append(f'<text x="{x}" y="{y + 16}" text-anchor="middle">{x_max * step / 5:,.0f}</text>')
        x, y = at(0, y_max * step / 5)
        out.append(f'<line x1="{x}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        out.append(f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{y_max * step / 5:.3g}</text>')
    for number, (name, ys) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join("{},{}".format(*at(x, y)) for x, y in zip(xs, ys, strict=True))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out.append(f'<text x="{LEFT + 10 + 160 * number}" y="{TOP - 8}" fill="{colour}">{name}</text>')
    path.write_text("\n".join([*out, "</svg>\n"]), encoding="utf-8")
