"""Diagram of the operators of a job between its sources and sinks, drawn from one record.

The inputs of an operator come from the record. If it names none, the only operator of a job is drawn as reading all
sources.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from markupsafe import Markup

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.operator_names import OperatorNames
from statebed.present import units
from statebed.present.graph_layout import LayoutNode, Rectangle, Spacing, columns_of, laid_out
from statebed.ui import visible_text
from statebed.ui.definitions import kind
from statebed.ui.points import StateTotals

_WIDTH = 230.0
_MARGIN = 2.0
_SPACING = Spacing(gap=46.0, space=18.0, left=_MARGIN, top=_MARGIN)
_LINE = 17.0
_PADDING = 12.0
_LETTERS = 32
"""Number of characters that fit a line of a box."""
_NAME_LETTERS = 26
_BAR = 6.0


@dataclass(frozen=True)
class GraphBox:
    """A source, an operator or a sink."""

    key: str
    style: str
    name: str
    lines: tuple[str, ...]
    link: str = ""
    tiers: tuple[int, int, int] | None = None
    """Bytes in memory, on local disk and in the store."""
    reads: tuple[str, ...] = ()
    """Keys of the boxes that it reads."""

    @property
    def height(self) -> float:
        return 2 * _PADDING + (1 + len(self.lines)) * _LINE + (_BAR + 6 if self.tiers else 0) - 4


@dataclass(frozen=True)
class JobGraph:
    """All boxes of a job."""

    boxes: tuple[GraphBox, ...] = field(default_factory=tuple)

    @property
    def described(self) -> str:
        names = [f"{box.style} {visible_text.clipped(box.name, 60)}" for box in self.boxes]
        return f"Graph of the job: {', '.join(names) or 'nothing yet'}"

    def drawn(self) -> Markup:
        """Render the graph as SVG."""
        return _drawn(self)


def graph_of(
    record: pb.CheckpointMetadata,
    state: Mapping[str, StateTotals],
    link: str,
    *,
    published: pb.CheckpointMetadata | None = None,
) -> JobGraph:
    """Build the graph of a record; `state` maps operators to their state, `link` is the path under which operators are
    linked.

    `published` is the newest record with output and supplies the sinks: records of run starts, stops and tools have
    none.
    """
    names = OperatorNames.of(record)
    operators = [entry for entry in record.operators if not entry.retired]
    ids = {entry.operator_id for entry in operators}
    sources = [_source(source) for source in record.sources]
    known = {box.key for box in sources} | {_operator_key(operator_id) for operator_id in ids}
    boxes: list[GraphBox] = [*sources]
    for entry in operators:
        reads = [*_reads(entry, known)]
        if not reads and len(operators) == 1:
            if not sources:
                boxes += [GraphBox(f"s:{input_.input}", "source", input_.input, ()) for input_ in entry.inputs]
            reads = [box.key for box in boxes if box.style == "source"]
        name = names(entry.operator_id)
        boxes.append(_operator(entry, name, state.get(entry.operator_id), tuple(reads), link))
    published = published or record
    for sink in published.sinks:
        origins = [_operator_key(operator_id) for operator_id in _feeding(published, sink, ids)]
        lines = (f"stream {sink.stream}",) if sink.stream else ()
        boxes.append(GraphBox(f"k:{sink.sink_id}", "sink", sink.sink_id, lines, reads=tuple(origins)))
    return JobGraph(tuple(boxes))


def _feeding(record: pb.CheckpointMetadata, sink: pb.SinkEntry, ids: set[str]) -> list[str]:
    if sink.operator_id:
        return [sink.operator_id] if sink.operator_id in ids else []
    return sorted({file.operator_id for file in record.outbox if file.stream == sink.stream} & ids)


def _operator_key(operator_id: str) -> str:
    return f"o:{operator_id}"


def _reads(entry: pb.OperatorEntry, known: set[str]) -> Iterator[str]:
    for operator_input in entry.inputs:
        for name in operator_input.origins:
            for key in (_operator_key(name), f"s:{name}"):
                if key in known:
                    yield key
                    break


def _source(source: pb.SourceWatermark) -> GraphBox:
    newest = (
        f"newest {units.instant(source.max_event_time_us)}" if source.HasField("max_event_time_us") else "no rows yet"
    )
    mark = f"watermark {units.instant(source.watermark_us)}" if source.HasField("watermark_us") else "no watermark"
    return GraphBox(f"s:{source.source}", "source", source.source, (newest, mark))


def _operator(
    entry: pb.OperatorEntry, name: str, state: StateTotals | None, reads: tuple[str, ...], link: str
) -> GraphBox:
    lines = [kind(entry.definition), f"{units.short(entry.rows_in)} in, {units.short(entry.rows_out)} out"]
    if entry.rows_late:
        lines[-1] += f", {units.short(entry.rows_late)} late"
    tiers = None
    if state is not None:
        lines.append(f"{units.size(state.store_bytes)} in {units.plural(state.files, 'file')}")
        tiers = (state.memory_bytes, state.disk_bytes, state.store_bytes)
    address = f"{link}/{quote(entry.operator_id, safe='')}"
    return GraphBox(_operator_key(entry.operator_id), "operator", name, tuple(lines), address, tiers, reads)


# ---- drawing ---------------------------------------------------------------------------------------------------------


def _drawn(graph: JobGraph) -> Markup:
    boxes = list({box.key: box for box in graph.boxes}.values())
    numbers = {box.key: number for number, box in enumerate(boxes)}
    reads = [[numbers[key] for key in box.reads if key in numbers and key != box.key] for box in boxes]
    columns = columns_of(reads, sources=[number for number, box in enumerate(boxes) if box.style == "source"])
    nodes = [LayoutNode(column, _WIDTH, box.height) for column, box in zip(columns, boxes, strict=True)]
    edges = [(start, end) for end, inputs in enumerate(reads) for start in inputs]
    layout = laid_out(nodes, edges, _SPACING)
    width, height = layout.right + _MARGIN, layout.bottom + _MARGIN
    greatest = max((sum(box.tiers) for box in boxes if box.tiers), default=0)
    arrow = Markup('<path class="arrow" marker-end="url(#arrow-tip)" d="{}"/>')
    frame = Markup(
        '<svg class="graph" viewBox="0 0 {:.0f} {:.0f}" width="{:.0f}" height="{:.0f}" role="group" aria-label="{}">'
        '<defs><marker id="arrow-tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="tip" d="M0 0 L10 5 L0 10 z"/></marker></defs>{}</svg>'
    )
    parts = [
        *(arrow.format(route.path) for route in layout.routes),
        *(_box(box, place, greatest) for box, place in zip(boxes, layout.boxes, strict=True)),
    ]
    return frame.format(width, height, width, height, graph.described, Markup("").join(parts))


def _box(box: GraphBox, place: Rectangle, greatest: int) -> Markup:
    rect = Markup('<rect class="box {}" x="{:.1f}" y="{:.1f}" width="{:.0f}" height="{:.1f}" rx="8"/>')
    text = Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>')
    parts = [rect.format(box.style, place.x, place.y, _WIDTH, box.height)]
    y = place.y + _PADDING + 11
    parts.append(text.format("name", place.x + _PADDING, y, _cut(box.name, _NAME_LETTERS)))
    for line in box.lines:
        y += _LINE
        parts.append(text.format("small", place.x + _PADDING, y, _cut(line, _LETTERS)))
    if box.tiers is not None:
        parts.append(_tier_bar(box.tiers, greatest, place.x + _PADDING, y + 9))
    title = Markup("<title>{}</title>").format("\n".join(visible_text.clipped(text) for text in (box.name, *box.lines)))
    body = Markup("<g>{}{}</g>").format(title, Markup("").join(parts))
    return Markup('<a href="{}">{}</a>').format(box.link, body) if box.link else body


def _tier_bar(tiers: tuple[int, int, int], greatest: int, x: float, y: float) -> Markup:
    """Draw a bar whose length is relative to the largest state, split by tier."""
    whole = _WIDTH - 2 * _PADDING
    bar = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.0f}" rx="2"/>')
    parts = [bar.format("track", x, y, whole, _BAR)]
    for name, held in zip(("memory", "disk", "store"), tiers, strict=True):
        wide = whole * held / greatest if greatest else 0.0
        if wide > 0:
            parts.append(bar.format(f"tier {name}", x, y, max(wide, 1.0), _BAR))
            x += wide
    return Markup("").join(parts)


def _cut(text: str, letters: int) -> str:
    shown = visible_text.plain(text.replace("\n", " "))
    return shown if len(shown) <= letters else f"{shown[: letters - 1]}…"
