"""Pieces of HTML for notebooks: tables, and one bar for the phases of an epoch. Everything is escaped.

No style sheet and no script: notebooks strip them, and colours that a notebook chooses for text stay readable in light
and dark.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from statebed.config import show_size
from statebed.inspect.figures import PHASES

_COLOURS = dict(zip(PHASES, ("#8d99ae", "#2a9d8f", "#e9c46a", "#e76f51", "#457b9d", "#7b2cbf", "#588157"), strict=True))
_OTHER = "#999999"
_BAR = 480
_CELL = "padding:2px 10px;text-align:right;white-space:nowrap"
_SECOND = 1_000_000
NOTHING = "-"


def block(title: str, *parts: str) -> str:
    """A title and what is below it."""
    return f"<div><strong>{escape(title)}</strong>{''.join(parts)}</div>"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows of text and numbers."""
    heads = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    # Text of one row must not turn the direction of what stands beside it.
    return f'<td dir="auto" style="{_CELL}">{escape(str(value))}</td>'


def phase_bar(phases_us: Mapping[str, int]) -> str:
    """How the time of an epoch was divided, as a bar with its legend."""
    total = sum(phases_us.values())
    if not total:
        return ""
    at, pieces, legend = 0.0, "", ""
    for name, us in phases_us.items():
        colour, width = _COLOURS.get(name, _OTHER), us / total * _BAR
        told = f"{escape(name)} {escape(milliseconds(us))}"
        pieces += f'<rect x="{at:.1f}" width="{width:.1f}" height="14" fill="{colour}"><title>{told}</title></rect>'
        legend += f'<span style="color:{colour}">&#9632;</span> {told} &#160; '
        at += width
    label = escape(", ".join(f"{name} {milliseconds(us)}" for name, us in phases_us.items()), quote=True)
    picture = f'<svg role="img" aria-label="{label}" width="{_BAR}" height="14">{pieces}</svg>'
    return f"<div>{picture}</div><div><small>{legend}</small></div>"


def milliseconds(us: int) -> str:
    """A duration, short.

    >>> milliseconds(2_345_678), milliseconds(12_345)
    ('2.35 s', '12 ms')
    """
    return f"{us / 1e6:.2f} s" if us >= _SECOND else f"{us / 1e3:.0f} ms"


def moment(us: int | None) -> str:
    """A time, to the second."""
    if us is None:
        return NOTHING
    return f"{dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us):%Y-%m-%d %H:%M:%S} UTC"


def size(nbytes: int) -> str:
    """A number of bytes."""
    return show_size(nbytes)
