"""Cells of sessions: one session each, and no session that a span of time touches is in another one."""

import numpy as np
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.operators.windows.session_grid import cells_of, level_bits, touched_cells

GAPS = st.integers(1, 50) | st.just(30 * 86_400_000_000)


@st.composite
def open_sessions(draw: st.DrawFn) -> tuple[int, np.ndarray, np.ndarray]:
    """Draw a gap, and the starts and ends of sessions that neither overlap nor touch."""
    gap = draw(GAPS)
    parts = draw(st.lists(st.tuples(st.integers(1, 3 * gap), st.integers(0, 40 * gap)), min_size=1, max_size=40))
    time, starts, ends = draw(st.integers(-(1 << 50), 1 << 50)), [], []
    for pause, longer in parts:
        starts.append(time + pause)
        time = starts[-1] + gap + longer
        ends.append(time)
    return gap, np.array(starts), np.array(ends)


@settings(max_examples=examples(200), deadline=None)
@given(open_sessions(), st.data())
def test_a_cell_has_one_session_and_a_span_finds_all_that_it_touches(
    drawn: tuple[int, np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    gap, starts, ends = drawn
    at = cells_of(np.zeros(len(starts), dtype=np.int64), starts, ends, gap)
    places = list(zip(at.levels.tolist(), at.cells.tolist(), strict=True))
    assert len(set(places)) == len(places)
    first = data.draw(st.integers(int(starts[0]) - 3 * gap, int(ends[-1]) + 3 * gap))
    last = first + gap + data.draw(st.integers(0, 5 * gap))
    levels = np.bitwise_or.reduce(level_bits(at.levels))
    asked = touched_cells(np.array([7]), np.array([first]), np.array([last]), np.array([levels]), gap)
    found = set(zip(asked.levels.tolist(), asked.cells.tolist(), strict=True))
    touching = (starts <= last) & (first <= ends)
    assert found >= {place for place, touches in zip(places, touching.tolist(), strict=True) if touches}
    assert set(asked.key_index.tolist()) <= {7}
    assert len(asked) <= (4 + 7) * int(levels).bit_length(), "few cells, however many sessions there are"


def test_only_levels_of_the_key_of_a_span_are_asked() -> None:
    spans = np.array([0, 100])
    asked = touched_cells(np.array([0, 1]), spans, spans + 10, np.array([0b1, 0b100]), 10)
    assert sorted(set(zip(asked.key_index.tolist(), asked.levels.tolist(), strict=True))) == [(0, 0), (1, 2)]
    none = touched_cells(np.array([0]), spans[:1], spans[:1] + 10, np.array([0]), 10)
    assert len(none) == 0
