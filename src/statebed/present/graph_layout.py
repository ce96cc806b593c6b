"""Layout of graphs: boxes in columns from left to right, with an arrow for each edge.

An arrow that spans several columns gets a separate lane in each of them, so that it crosses no box. Arrows of one box
leave and enter it at different heights. Renderers decide how boxes and arrows look.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

_LANE = 8.0
_APART = 16.0
"""Distance between arrows that leave or enter the same box."""


@dataclass(frozen=True)
class LayoutNode:
    """Size of a box, and its column."""

    column: int
    width: float
    height: float


@dataclass(frozen=True)
class Spacing:
    """Distances between boxes."""

    gap: float
    """Distance between columns, for arrows."""
    space: float
    """Distance between the boxes of a column."""
    left: float = 0.0
    top: float = 0.0


@dataclass(frozen=True)
class Rectangle:
    """Place of a box; all boxes of a column have its width."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class ArrowRoute:
    """Course of an arrow."""

    path: str
    """Commands of an SVG path."""
    end_x: float
    end_y: float
    comes_from_below: bool


@dataclass(frozen=True)
class GraphLayout:
    """Places of all boxes and courses of all arrows, in the order in which they were given."""

    boxes: tuple[Rectangle, ...]
    routes: tuple[ArrowRoute, ...]

    @property
    def right(self) -> float:
        return max((box.x + box.width for box in self.boxes), default=0.0)

    @property
    def bottom(self) -> float:
        return max((box.y + box.height for box in self.boxes), default=0.0)


@dataclass
class _Cell:
    """A box or a lane of an arrow in its column."""

    column: int
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def columns_of(reads: Sequence[Collection[int]], *, sources: Collection[int]) -> list[int]:
    """Return the column of each box: sources in the first, the others to the right of what they read.

    `reads` has, for each box, the boxes that it reads. Boxes that read each other share a column.
    """
    columns = [0] * len(reads)
    for _ in reads:  # the longest chain has at most this many boxes
        for box, inputs in enumerate(reads):
            before = [columns[input_key] for input_key in inputs if input_key != box]
            columns[box] = 0 if box in sources else min(1 + max(before, default=0), len(reads))
    places = {column: place for place, column in enumerate(sorted(set(columns)))}
    return [places[column] for column in columns]


def laid_out(nodes: Sequence[LayoutNode], edges: Sequence[tuple[int, int]], spacing: Spacing) -> GraphLayout:
    """Place boxes and arrows; `edges` are pairs of positions in `nodes`."""
    cells = [_Cell(node.column, node.width, node.height) for node in nodes]
    ways = [_way(cells, *edge) for edge in edges]
    columns = [
        [cell for cell in cells if cell.column == number]
        for number in range(max((n.column for n in nodes), default=-1) + 1)
    ]
    widths = [max((cell.width for cell in column), default=0.0) for column in columns]
    _order(columns, ways)
    tallest = max((_height(column, spacing) for column in columns), default=0.0)
    x = spacing.left
    for column, width in zip(columns, widths, strict=True):
        y = spacing.top + (tallest - _height(column, spacing)) / 2
        for cell in column:
            cell.x, cell.y = x, y
            y += cell.height + spacing.space
        x += width + spacing.gap
    boxes = [Rectangle(cell.x, cell.y, widths[cell.column], cell.height) for cell in cells[: len(nodes)]]
    leaving = _spread([start for start, _ in edges], [way[1].middle for way in ways])
    entering = _spread([end for _, end in edges], [way[-2].middle for way in ways])
    routes = [_route(way, widths, *offsets) for way, *offsets in zip(ways, leaving, entering, strict=True)]
    return GraphLayout(tuple(boxes), tuple(routes))


def _way(cells: list[_Cell], start: int, end: int) -> list[_Cell]:
    """Return the cells of an arrow from box to box, with a new lane in each column in between."""
    lanes = [_Cell(column, 0.0, _LANE) for column in range(cells[start].column + 1, cells[end].column)]
    cells.extend(lanes)
    return [cells[start], *lanes, cells[end]]


def _order(columns: Sequence[list[_Cell]], ways: Sequence[Sequence[_Cell]]) -> None:
    """Sort each column by its predecessors, so that few arrows cross."""
    before: dict[int, list[_Cell]] = {}
    for way in ways:
        for start, end in itertools.pairwise(way):
            before.setdefault(id(end), []).append(start)
    for column in columns:
        places = {id(cell): number for cells in columns for number, cell in enumerate(cells)}

        def weight(cell: _Cell, places: Mapping[int, int] = places) -> float:
            inputs = [places[id(input_cell)] for input_cell in before.get(id(cell), [])]
            return sum(inputs) / len(inputs) if inputs else float(places[id(cell)])

        column.sort(key=weight)


def _height(column: Sequence[_Cell], spacing: Spacing) -> float:
    return sum(cell.height for cell in column) + spacing.space * max(len(column) - 1, 0)


def _spread(boxes: Sequence[int], heights: Sequence[float]) -> list[float]:
    """Return the vertical offset of each arrow at its box, so that arrows of one box do not overlap."""
    offsets = [0.0] * len(boxes)
    for box in set(boxes):
        arrows = sorted(
            (number for number, other in enumerate(boxes) if other == box), key=lambda number: heights[number]
        )
        for place, number in enumerate(arrows):
            offsets[number] = (place - (len(arrows) - 1) / 2) * _APART
    return offsets


def _route(way: Sequence[_Cell], widths: Sequence[float], leaving: float, entering: float) -> ArrowRoute:
    start, *lanes, end = way
    x, y = start.x + widths[start.column], start.middle + leaving
    path = [f"M{x:.1f} {y:.1f}"]
    for cell in [*lanes, end]:
        target = cell.middle + (entering if cell is end else 0.0)
        bend = (cell.x - x) / 2
        path.append(f"C{x + bend:.1f} {y:.1f} {cell.x - bend:.1f} {target:.1f} {cell.x:.1f} {target:.1f}")
        x, y = cell.x, target
        if cell is not end:
            x += widths[cell.column]
            path.append(f"L{x:.1f} {y:.1f}")
    return ArrowRoute(" ".join(path), end.x, y, comes_from_below=way[-2].middle >= end.middle)
