"""Diagrams of graphs as SVG text that stands alone: boxes with texts, and arrows between them (`graph_layout`).

No font is measured: text widths are estimated generously, and long lines are wrapped.
"""

import enum
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from statebed.present.colours import BOXES
from statebed.present.graph_layout import ArrowRoute, LayoutNode, Rectangle, Spacing, laid_out

_FONT = 12.5
_LINE = 17.0
_TITLE = 15.0
_MARGIN = 20.0
_PADDING = 12.0
_SPACING = Spacing(gap=76.0, space=22.0, left=_MARGIN, top=_MARGIN + _LINE * 2)
_WIDEST = 250.0
_MAX_LINES = 4
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


Line = tuple[str, bool]
"""A line of text, and whether it begins a text."""


def drawn(title: str, boxes: Sequence[DrawnBox], arrows: Sequence[Arrow]) -> str:
    """Render the diagram as SVG text."""
    lines = [tuple(_lines(box)) for box in boxes]
    nodes = [LayoutNode(box.column, _width(box, own), _height(own)) for box, own in zip(boxes, lines, strict=True)]
    layout = laid_out(nodes, [(arrow.start, arrow.end) for arrow in arrows], _SPACING)
    width = max(layout.right + _MARGIN, _text_width(title, _TITLE) + 2 * _MARGIN)
    has_changelog = any(arrow.is_changelog for arrow in arrows)
    height = layout.bottom + _MARGIN + (_LINE if has_changelog else 0.0)
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
    for arrow, route in zip(arrows, layout.routes, strict=True):
        parts += _line(arrow, route)
    for box, own, place in zip(boxes, lines, layout.boxes, strict=True):
        parts += _box(box, own, place)
    if has_changelog:
        legend = "dashed: a changelog of insertions and retractions"
        parts.append(_text(legend, _MARGIN, height - _MARGIN / 2, "sb-small"))
    return "\n".join([*parts, "</svg>"])


def _lines(box: DrawnBox) -> Iterator[Line]:
    return ((line, not number) for text in box.texts for number, line in enumerate(_broken(text)))


def _height(lines: Sequence[Line]) -> float:
    starts = sum(first for _, first in lines)
    return 2 * _PADDING + _TITLE + len(lines) * _LINE + starts * 3


def _width(box: DrawnBox, lines: Sequence[Line]) -> float:
    texts = [_text_width(line, _FONT) for line, _ in lines]
    return max([_text_width(box.name, _TITLE) * 1.06, *texts]) + 2 * _PADDING


def _box(box: DrawnBox, lines: Sequence[Line], place: Rectangle) -> Iterator[str]:
    yield (
        f'<rect class="sb-{box.kind.value}" x="{place.x:.1f}" y="{place.y:.1f}" width="{place.width:.1f}" '
        f'height="{place.height:.1f}" rx="8"/>'
    )
    y = place.y + _PADDING + _TITLE - 2
    yield _text(box.name, place.x + _PADDING, y, "sb-name")
    for line, first in lines:
        y += _LINE + (3 if first else 0)
        yield _text(line, place.x + _PADDING, y, "sb-small")


def _line(arrow: Arrow, route: ArrowRoute) -> Iterator[str]:
    dashed = " sb-changes" if arrow.is_changelog else ""
    about = f"<title>{_escaped(arrow.about)}</title>" if arrow.about else ""
    yield f'<path class="sb-line{dashed}" marker-end="url(#sb-tip)" d="{route.path}">{about}</path>'
    if arrow.label:
        beside = -6 if route.comes_from_below else 15  # where the line does not come from
        yield _text(arrow.label, route.end_x - 12, route.end_y + beside, "sb-small", anchor="end")


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
    if len(lines) > _MAX_LINES:
        lines = [*lines[: _MAX_LINES - 1], f"{lines[_MAX_LINES - 1]} …"]
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
