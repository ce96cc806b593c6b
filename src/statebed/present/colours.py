"""Colours of states, phases of an epoch and boxes in diagrams, shared by the terminal, pages and notebooks.

The palette is the one of Okabe and Ito, which is safe for colour-blind readers. The style sheet of the dashboard
contains the same values as variables; a test compares them.
"""

import enum

PALETTE = ("#8a94a3", "#56b4e9", "#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#b9c0ca")
"""Palette for light pages; index n is `cn` in the style sheet."""
PALETTE_DARK = ("#8a94a3", "#56b4e9", "#3d9fe0", "#1fbf92", "#e69f00", "#d55e00", "#cc79a7", "#59636f")
PHASE_COLOURS = {
    "planning": 0,
    "read": 1,
    "shuffle": 2,
    "merge": 3,
    "write": 4,
    "commit": 5,
    "publish": 6,
    "other": 7,
}
"""Palette index of each phase of an epoch."""


class Tone(enum.Enum):
    """Severity of a state."""

    GOOD = "good"
    NEUTRAL = "neutral"
    WARN = "warn"
    BAD = "bad"


_TONES = {
    Tone.GOOD: ("running", "active", "published", "current"),
    Tone.WARN: ("abandoned", "given up", "not yet", "superseded"),
    Tone.BAD: ("failed", "fenced", "exited", "vanished", "damaged", "missing", "newer format"),
}
_BY_STATE = {state: tone for tone, states in _TONES.items() for state in states}
TERMINAL_STYLES = {Tone.GOOD: "green", Tone.NEUTRAL: "", Tone.WARN: "yellow", Tone.BAD: "bold red"}
"""Styles of the rich library."""
LIGHT = {Tone.GOOD: "#0b6e4f", Tone.NEUTRAL: "#5a6472", Tone.WARN: "#8f5300", Tone.BAD: "#a8201a"}
"""Text colours on light pages."""
DARK = {Tone.GOOD: "#56d6a8", Tone.NEUTRAL: "#9ba7b5", Tone.WARN: "#f2b84b", Tone.BAD: "#ff8f86"}
BOXES = {
    "source": ("#f1f4f8", "#c9ced6", "#1d242d", "#3d4754"),
    "operator": ("#eaf5ef", "#009e73", "#14291f", "#1fbf92"),
    "sink": ("#fff4e0", "#e69f00", "#31270f", "#e69f00"),
}
"""Fill and stroke of boxes in diagrams of a job: light, then dark."""


def tone_of(state: str) -> Tone:
    """Return the tone of a state of a job, run, record or sink.

    >>> tone_of("failed").value, tone_of("stopped").value
    ('bad', 'neutral')
    """
    return _BY_STATE.get(state, Tone.NEUTRAL)


def phase_colour(phase: str) -> str:
    """Return the colour of a phase, for light and dark pages."""
    return PALETTE[PHASE_COLOURS.get(phase, PHASE_COLOURS["other"])]
