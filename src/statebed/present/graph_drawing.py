"""Diagrams of graphs as SVG text: boxes in columns from left to right, with arrows between them.

No font is measured: text widths are estimated generously, and long lines are wrapped. An arrow that spans several
columns gets a separate lane in each of them, so that it crosses no box.
"""

import enum
import itertools
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from statebed.present.colours import BOXES

_FONT = 12.5
_LINE = 17.0
_TITLE = 15.0
_MARGIN = 20.0
_PADDING = 12.0
_GAP = 76.0
"""Gap between columns, for arrows."""
_SPACE = 22.0
"""Space between boxes of a column."""
_LANE = 8.0
_WIDEST = 250.0
_MOST_LINES = 4
"""Maximum number of lines of a text; longer ones are clipped."""
_NARROW = frozenset(" .,:;'|!()[]{}ijlftr-/\\\"`")
_BROAD = frozenset("mwMW@%—…")


def _style() -> str:
    """Return the style sheet embedded in the diagram, with the colours of the dashboard."""
    light = [f".sb-{kind} {{ fill: {fill}; stroke: {line}; }}" for kind, (fill, line, _, _) in BOXES.items()]
    dark = [f".sb-{kind} {{ fill: {fill}; stroke: {line}; }}" for kind, (_, _, fill, line) in BOXES.items()]
    return f"""
    .sb-card {{ fill: #ffffff; stroke: #d0d7de; }}
    {" ".join(light)}
    .sb-source, .sb-operator, .sb-sink {{ stroke-width: 1.5; }}
    .sb-line {{ stroke: #57606a; stroke-width: 1.6; fill: none; }}
    .sb-changes {{ stroke-dasharray: 6 4; }}
    .sb-tip {{ fill: #57606a; }}
    .sb-text {{ font: 12.5px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }}
    .sb-name {{ font-size: 15px; font-weight: 600; }}
    .sb-small {{ fill: #57606a; }}
    @media (prefers-color-scheme: dark) {{
      .sb-card {{ fill: #0d1117; stroke: #30363d; }}
      {" ".join(dark)}
      .sb-line {{ stroke: #9aa4af; }}
      .sb-tip {{ fill: #9aa4af; }}
      .sb-text {{ fill: #e6edf3; }}
      .sb-small {{ fill: #a5afba; }}
    }}
"""


class BoxKind(enum.Enum):
    """Kind of a box."""

    SOURCE = "source"
    OPERATOR = "operator"
    SINK = "sink"


@dataclass(frozen=True)
class DrawnBox:
    """A part of a job."""

    name: str
    kind: BoxKind
    column: int
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Arrow:
    """Flow of rows between two boxes, given by their indexes."""

    start: int
    end: int
    label: str = ""
    about: str = ""
    """Description of what happens to the rows, shown as a tooltip."""
    is_changelog: bool = False


@dataclass
class _Cell:
    """A box or a lane of an arrow in its column."""

    column: int
    height: float
    lines: tuple[tuple[str, bool], ...] = ()
    """Lines of text, each with whether it begins a text."""
    box: DrawnBox | None = None
    x: float = 0.0
    y: float = 0.0

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def drawn(title: str, boxes: Sequence[DrawnBox], arrows: Sequence[Arrow]) -> str:
    """Render the diagram as SVG text."""
    cells = [_cell(box) for box in boxes]
    ways = [_way(cells, arrow) for arrow in arrows]
    columns = [[cell for cell in cells if cell.column == one] for one in range(max(box.column for box in boxes) + 1)]
    widths = [max((_width(cell) for cell in column), default=0.0) for column in columns]
    _order(columns, ways)
    top = _MARGIN + _LINE * 2
    tallest = max(_height(column) for column in columns)
    x = _MARGIN
    for column, width in zip(columns, widths, strict=True):
        y = top + (tallest - _height(column)) / 2
        for cell in column:
            cell.x, cell.y = x, y
            y += cell.height + _SPACE
        x += width + _GAP
    width = max(x - _GAP + _MARGIN, _text_width(title, _TITLE) + 2 * _MARGIN)
    has_changelog = any(arrow.is_changelog for arrow in arrows)
    height = top + tallest + _MARGIN + (_LINE if has_changelog else 0.0)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}" style="max-width: 100%; height: auto" role="img" aria-label="{_escaped(title)}">'
        ),
        f"<style>{_style()}</style>",
        (
            '<defs><marker id="sb-tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto"><path class="sb-tip" d="M0 0 L10 5 L0 10 z"/></marker></defs>'
        ),
        f'<rect class="sb-card" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="10"/>',
        _text(title, _MARGIN, _MARGIN + _TITLE, "sb-name"),
    ]
    entries = _entries(arrows, ways)
    for number, (arrow, way) in enumerate(zip(arrows, ways, strict=True)):
        parts += _line(arrow, way, widths, entries[number])
    for cell in cells:
        if cell.box is not None:
            parts += _box(cell, cell.box, widths[cell.column])
    if has_changelog:
        legend = "dashed: a changelog of insertions and retractions"
        parts.append(_text(legend, _MARGIN, height - _MARGIN / 2, "sb-small"))
    return "\n".join([*parts, "</svg>"])


# ---- where things are ------------------------------------------------------------------------------------------------


def _cell(box: DrawnBox) -> _Cell:
    lines = tuple((line, not number) for text in box.texts for number, line in enumerate(_broken(text)))
    starts = sum(first for _, first in lines)
    return _Cell(box.column, 2 * _PADDING + _TITLE + len(lines) * _LINE + starts * 3, lines, box)


def _way(cells: list[_Cell], arrow: Arrow) -> list[_Cell]:
    """Return the cells of an arrow from box to box, with a new lane in each column in between."""
    start, end = cells[arrow.start], cells[arrow.end]
    lanes = [_Cell(column, _LANE) for column in range(start.column + 1, end.column)]
    cells.extend(lanes)
    return [start, *lanes, end]


def _order(columns: Sequence[list[_Cell]], ways: Sequence[Sequence[_Cell]]) -> None:
    """Sort each column by its predecessors, so that few arrows cross."""
    before: dict[int, list[_Cell]] = {}
    for way in ways:
        for one, other in itertools.pairwise(way):
            before.setdefault(id(other), []).append(one)
    for column in columns:
        places = {id(cell): number for some in columns for number, cell in enumerate(some)}

        def weight(cell: _Cell, places: Mapping[int, int] = places) -> float:
            found = [places[id(one)] for one in before.get(id(cell), [])]
            return sum(found) / len(found) if found else float(places[id(cell)])

        column.sort(key=weight)


def _height(column: Sequence[_Cell]) -> float:
    return sum(cell.height for cell in column) + _SPACE * max(len(column) - 1, 0)


def _width(cell: _Cell) -> float:
    if cell.box is None:
        return 0.0
    texts = [_text_width(line, _FONT) for line, _ in cell.lines]
    return max([_text_width(cell.box.name, _TITLE) * 1.06, *texts]) + 2 * _PADDING


def _entries(arrows: Sequence[Arrow], ways: Sequence[Sequence[_Cell]]) -> list[tuple[float, float]]:
    """Return the vertical offsets at which each arrow leaves and enters its boxes, so that arrows of one box do not
    overlap.
    """
    leaving = _spread([arrow.start for arrow in arrows], [way[1].middle for way in ways])
    entering = _spread([arrow.end for arrow in arrows], [way[-2].middle for way in ways])
    return list(zip(leaving, entering, strict=True))


def _spread(boxes: Sequence[int], heights: Sequence[float]) -> list[float]:
    found = [0.0] * len(boxes)
    for box in set(boxes):
        mine = sorted((number for number, one in enumerate(boxes) if one == box), key=lambda one: heights[one])
        for place, number in enumerate(mine):
            found[number] = (place - (len(mine) - 1) / 2) * 16
    return found


# ---- how they look ---------------------------------------------------------------------------------------------------


def _box(cell: _Cell, box: DrawnBox, width: float) -> Iterator[str]:
    yield (
        f'<rect class="sb-{box.kind.value}" x="{cell.x:.1f}" y="{cell.y:.1f}" width="{width:.1f}" '
        f'height="{cell.height:.1f}" rx="8"/>'
    )
    y = cell.y + _PADDING + _TITLE - 2
    yield _text(box.name, cell.x + _PADDING, y, "sb-name")
    for line, first in cell.lines:
        y += _LINE + (3 if first else 0)
        yield _text(line, cell.x + _PADDING, y, "sb-small")


def _line(arrow: Arrow, way: Sequence[_Cell], widths: Sequence[float], entry: tuple[float, float]) -> Iterator[str]:
    start, *lanes, end = way
    x, y = start.x + widths[start.column], start.middle + entry[0]
    path = [f"M{x:.1f} {y:.1f}"]
    for cell in [*lanes, end]:
        target = cell.middle + (entry[1] if cell is end else 0.0)
        bend = (cell.x - x) / 2
        path.append(f"C{x + bend:.1f} {y:.1f} {cell.x - bend:.1f} {target:.1f} {cell.x:.1f} {target:.1f}")
        x, y = cell.x, target
        if cell is not end:
            x += widths[cell.column]
            path.append(f"L{x:.1f} {y:.1f}")
    dashed = " sb-changes" if arrow.is_changelog else ""
    about = f"<title>{_escaped(arrow.about)}</title>" if arrow.about else ""
    yield f'<path class="sb-line{dashed}" marker-end="url(#sb-tip)" d="{" ".join(path)}">{about}</path>'
    if arrow.label:
        beside = -6 if way[-2].middle >= end.middle else 15  # where the line does not come from
        yield _text(arrow.label, end.x - 12, y + beside, "sb-small", anchor="end")


def _text(text: str, x: float, y: float, style: str, *, anchor: str = "start") -> str:
    return f'<text class="sb-text {style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    """Escape text for XML and replace unprintable characters, some of which XML does not allow."""
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))


def _broken(text: str) -> list[str]:
    """Wrap a text to lines that fit a box; clip the last one if there are too many."""
    lines = [""]
    for word in _words(text):
        if lines[-1] and _text_width(f"{lines[-1]} {word}", _FONT) > _WIDEST:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], f"{lines[_MOST_LINES - 1]} …"]
    return lines


def _words(text: str) -> Iterator[str]:
    """Yield the words of a text, splitting those that are wider than a box."""
    for word in text.split():
        piece = ""
        for letter in word:
            if _text_width(piece + letter, _FONT) > _WIDEST:
                yield piece
                piece = ""
            piece += letter
        yield piece


def _text_width(text: str, size: float) -> float:
    return sum(map(_letter_width, text)) * size


def _letter_width(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.05
    if letter in _NARROW:
        return 0.38
    if letter in _BROAD:
        return 0.95
    return 0.72 if letter.isupper() else 0.6
