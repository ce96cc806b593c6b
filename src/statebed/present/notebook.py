"""HTML fragments for notebooks: tables, and a bar for the phases of an epoch. Everything is escaped.

There is no style sheet and no script, because notebooks strip them. Text keeps the notebook's own colour, which is
readable in light and dark mode.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from statebed.present.colours import DARK, LIGHT, phase_colour, tone_of
from statebed.present.units import NOTHING, duration, instant

_BAR = 480
_CELL = "padding:2px 10px;text-align:right;white-space:nowrap"


def block(title: str, *parts: str) -> str:
    """Render a title with its content."""
    return f"<div><strong>{escape(title)}</strong>{''.join(parts)}</div>"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Render rows of text and numbers as a table."""
    heads = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    # Text of one cell must not change the writing direction of its neighbours.
    return f'<td dir="auto" style="{_CELL}">{escape(str(value))}</td>'


def phase_bar(phases_us: Mapping[str, int]) -> str:
    """Render the time of an epoch by phase, as a bar with a legend."""
    total = sum(phases_us.values())
    if not total:
        return ""
    at, pieces, legend = 0.0, "", ""
    for name, us in phases_us.items():
        colour, width = phase_colour(name), us / total * _BAR
        phase_text = f"{escape(name)} {escape(duration(us))}"
        pieces += (
            f'<rect x="{at:.1f}" width="{width:.1f}" height="14" fill="{colour}"><title>{phase_text}</title></rect>'
        )
        legend += f'<span style="color:{colour}">&#9632;</span> {phase_text} &#160; '
        at += width
    label = escape(", ".join(f"{name} {duration(us)}" for name, us in phases_us.items()), quote=True)
    picture = f'<svg role="img" aria-label="{label}" width="{_BAR}" height="14">{pieces}</svg>'
    return f"<div>{picture}</div><div><small>{legend}</small></div>"


def moment(us: int | None) -> str:
    """Format a time in UTC, to the second."""
    return NOTHING if us is None else f"{instant(us)} UTC"


def state(text: str) -> str:
    """Render a state in the colour of its tone, readable on light and dark pages."""
    return f'<strong style="color:light-dark({LIGHT[tone_of(text)]},{DARK[tone_of(text)]})">{escape(text)}</strong>'
