"""Plots as SVG: horizontal bars and lines, drawn by hand so that the same results give the same bytes.

Colours follow the reader's light or dark scheme, as in the other pictures of the documentation.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 960
_LABEL = 330
_RIGHT = 130
_BAR = 18
_GAP = 10
_TOP = 64
_COLOURS = ("#2f7d6d", "#b97a12", "#4a6fa5", "#9a4f96", "#6b7280")
_DARK = ("#4cc2a8", "#e0a63c", "#7fa8e0", "#c98bc5", "#9aa4b2")
_STYLE = """  <style>
    .card { fill: #ffffff; stroke: #d0d7de; }
    .axis { stroke: #8c96a3; stroke-width: 1; fill: none; }
    .even { stroke: #57606a; stroke-width: 1.5; stroke-dasharray: 5 4; fill: none; }
    text { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; font-size: 14px; }
    .strong { font-weight: 600; font-size: 16px; }
    .small { font-size: 12.5px; fill: #57606a; }
    .spread { stroke: #1f2328; stroke-width: 1.5; }
%s    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; stroke: #30363d; }
      .axis { stroke: #6e7681; }
      .even { stroke: #9aa4b2; }
      text { fill: #e6edf3; }
      .small { fill: #9aa4b2; }
      .spread { stroke: #e6edf3; }
%s    }
  </style>
"""
_WHOLE_FROM = 100
"""Numbers from here on are shown without decimals."""


def number(value: float) -> str:
    """Return a number with three digits, and with k, M, G or T."""
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            return f"{value / (size if unit != ' k' else 1e3):.3g}{unit}"
    return f"{value:,.0f}" if abs(value) >= _WHOLE_FROM else f"{value:.3g}"


def bars(title: str, subtitle: str, rows: Sequence[tuple[str, float, float, float]], *, even: float | None) -> str:
    """Draw a bar per row (label, value, least, most) on a logarithmic scale; `even` is marked by a dashed line."""
    values = [value for _, value, _, _ in rows] + ([even] if even else [])
    low = math.floor(math.log10(min(*values, *(lowest for _, _, lowest, _ in rows))) - 0.05)
    high = math.ceil(math.log10(max(*values, *(highest for _, _, _, highest in rows))) + 0.01)

    def x(value: float) -> float:
        part = (math.log10(max(value, 10**low)) - low) / max(high - low, 1)
        return _LABEL + part * (WIDTH - _LABEL - _RIGHT)

    height = _TOP + len(rows) * (_BAR + _GAP) + 36
    parts = [_head(title, subtitle, height)]
    bottom = height - 30
    for power in range(low, high + 1):
        at = x(10.0**power)
        parts.append(f'  <path class="axis" d="M{at:.1f} {_TOP - 6} V{bottom}" opacity="0.35"/>\n')
        parts.append(
            f'  <text class="small" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{10.0**power:g}</text>\n'
        )
    for index, (label, value, lowest, highest) in enumerate(rows):
        y = _TOP + index * (_BAR + _GAP)
        middle = y + _BAR / 2
        parts.append(f'  <text x="{_LABEL - 10}" y="{y + 14}" text-anchor="end">{escape(label)}</text>\n')
        parts.append(
            f'  <rect class="c0" x="{_LABEL}" y="{y}" width="{x(value) - _LABEL:.1f}" height="{_BAR}" rx="3"/>\n'
        )
        if highest > lowest:
            parts.append(f'  <path class="spread" d="M{x(lowest):.1f} {middle:.1f} H{x(highest):.1f}"/>\n')
        end = max(x(value), x(highest)) + 8
        parts.append(f'  <text class="small" x="{end:.1f}" y="{y + 14}">{number(value)}</text>\n')
    if even:
        parts.append(f'  <path class="even" d="M{x(even):.1f} {_TOP - 6} V{bottom}"/>\n')
    return "".join([*parts, "</svg>\n"])


def stacked(title: str, subtitle: str, series: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Draw a bar per row (label, one value per series) on a linear scale; a value below zero has no width."""
    longest = max(sum(max(value, 0.0) for value in values) for _, values in rows)
    height = _TOP + len(rows) * (_BAR + _GAP) + 36
    parts = [_head(title, subtitle, height)]
    for index, (label, values) in enumerate(rows):
        y, x = _TOP + index * (_BAR + _GAP), float(_LABEL)
        parts.append(f'  <text x="{_LABEL - 10}" y="{y + 14}" text-anchor="end">{escape(label)}</text>\n')
        for place, value in enumerate(values):
            width = max(value, 0.0) / longest * (WIDTH - _LABEL - _RIGHT)
            parts.append(f'  <rect class="c{place}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}"/>\n')
            x += width
        parts.append(f'  <text class="small" x="{x + 8:.1f}" y="{y + 14}">{number(sum(values))}</text>\n')
    for place, name in enumerate(series):
        at = _LABEL + 120 * place
        parts.append(f'  <rect class="c{place}" x="{at}" y="{height - 26}" width="12" height="12"/>\n')
        parts.append(f'  <text class="small" x="{at + 18}" y="{height - 15}">{escape(name)}</text>\n')
    return "".join([*parts, "</svg>\n"])


def lines(
    title: str, subtitle: str, series: Mapping[str, Sequence[tuple[float, float]]], *, unit: str, height: int = 420
) -> str:
    """Draw lines over logarithmic axes; every series has the same x values."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points if y > 0]
    left, right, top, bottom = 70, 240, _TOP, height - 44
    x_low, x_high = math.log10(min(xs)), math.log10(max(xs))
    y_low, y_high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x_low) / max(x_high - x_low, 1e-9)
        up = (math.log10(max(y, 10.0**y_low)) - y_low) / max(y_high - y_low, 1)
        return left + across * (WIDTH - left - right), bottom - up * (bottom - top)

    parts = [_head(title, subtitle, height)]
    for power in range(y_low, y_high + 1):
        _, y = place(min(xs), 10.0**power)
        parts.append(f'  <path class="axis" d="M{left} {y:.1f} H{WIDTH - right}" opacity="0.35"/>\n')
        label = number(10.0**power)
        parts.append(f'  <text class="small" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>\n')
    for x in sorted(set(xs)):
        at, _ = place(x, 10.0**y_low)
        parts.append(f'  <text class="small" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{number(x)}</text>\n')
    parts.append(f'  <text class="small" x="{left}" y="{height - 8}">subtasks; vertical: {escape(unit)}</text>\n')
    # Labels at the ends of the lines must not overlap.
    ends = sorted((place(*points[-1])[1], index) for index, points in enumerate(series.values()))
    label_at: dict[int, float] = {}
    lowest = -math.inf
    for y, index in ends:
        lowest = label_at[index] = max(y, lowest + 18)
    for index, (name, points) in enumerate(series.items()):
        path = " L".join("{:.1f} {:.1f}".format(*place(x, y)) for x, y in points)
        parts.append(f'  <path class="l{index % len(_COLOURS)}" d="M{path}"/>\n')
        x, _ = place(*points[-1])
        parts.append(f'  <text class="small" x="{x + 8:.1f}" y="{label_at[index] + 4:.1f}">{escape(name)}</text>\n')
    return "".join([*parts, "</svg>\n"])


def _head(title: str, subtitle: str, height: int) -> str:
    light, dark = (
        "".join(
            f"    .c{index} {{ fill: {colour}; }}\n"
            f"    .l{index} {{ stroke: {colour}; stroke-width: 2.5; fill: none; }}\n"
            for index, colour in enumerate(colours)
        )
        for colours in (_COLOURS, _DARK)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">\n'
        f'  <title id="title">{escape(title)}</title>\n'
        + _STYLE
        % (light, dark)
        + f'  <rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>\n'
        f'  <text class="strong" x="20" y="28">{escape(title)}</text>\n'
        f'  <text class="small" x="20" y="48">{escape(subtitle)}</text>\n'
    )
