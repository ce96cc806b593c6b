"""Event times of streams: which columns hold them, and how far other time columns lag behind.

Every row has one event time, `_time`. At first it is a column of the source; an operator sets another one for its
results, such as the later time of a joined pair. If a time column comes from the event time of an earlier stream, the
operators in between bound how far it lags behind the event time of its row. Windows over such a column close by the
watermark minus that lag, so no row becomes late that was on time before.
"""

from collections.abc import Mapping

from statebed.flow.graph import Edge, Graph, OperatorNode, SourceNode, StepNode, UnionNode
from statebed.flow.steps import EXACT, Explode, Lag, Select, Where
from statebed.flow.table_steps import TableJoin
from statebed.operators import Window, WindowAggregate
from statebed.operators.aggregation import WINDOW_END, WINDOW_START
from statebed.operators.forward import Forward
from statebed.operators.joins import AsOfJoin, IntervalJoin, JoinColumns, JoinKind, LookupJoin, UpdatingJoin, WindowJoin
from statebed.operators.joins.join_type import JoinSide
from statebed.operators.operator import MAIN
from statebed.operators.process import ProcessOperator
from statebed.operators.updating.aggregate import UpdatingAggregate
from statebed.operators.updating.change_events import ChangeEvents
from statebed.operators.updating.deduplicate import Deduplicate
from statebed.operators.updating.top_n import TopN
from statebed.operators.window_definition import WindowShape
from statebed.operators.windows.functions import WindowFunctions
from statebed.operators.windows.sessions import SessionAggregate
from statebed.operators.windows.top_n import WindowTopN

_BEFORE = " (before "
"""Text between the event time and the first step that leaves its column out."""
Lags = Mapping[str, Lag]
"""Lags of the columns of a stream, by name. Columns with an unknown lag are missing."""


def time_lags(graph: Graph, edge: Edge) -> Lags:
    """Return how far the time columns of a stream lag behind the event time of their rows."""
    node = graph.nodes[edge.node]
    match node:
        case SourceNode():
            return {} if node.event_time is None else {node.event_time: EXACT}
        case StepNode():
            return _of_step(node, time_lags(graph, node.inputs[0]))
        case UnionNode():
            return _in_all([time_lags(graph, edge_) for edge_ in node.inputs])
        case OperatorNode():
            return _of_operator(graph, node) if edge.output == MAIN else {}


def event_time_columns(graph: Graph, edge: Edge) -> list[str]:
    """Return the columns that equal the event time of their rows."""
    return [name for name, lag in time_lags(graph, edge).items() if lag == EXACT]


def event_time_text(graph: Graph, edge: Edge) -> str:
    """Describe what the event time of a stream's rows is."""
    columns = event_time_columns(graph, edge)
    if columns:
        return columns[0]
    node = graph.nodes[edge.node]
    match node:
        case SourceNode():
            return "none"
        case StepNode():
            before = event_time_text(graph, node.inputs[0])
            return before if _BEFORE in before else f"{before}{_BEFORE}{node.step.text.split()[0]})"
        case UnionNode():
            return "that of each stream: " + ", ".join(event_time_text(graph, input_) for input_ in node.inputs)
        case OperatorNode():
            return _of_results(graph, node) if edge.output == MAIN else "that of the input"


def _of_results(graph: Graph, node: OperatorNode) -> str:
    operator = node.operator
    match operator:
        case IntervalJoin() | UpdatingJoin():
            return f"the later of {' and '.join(_of_sides(graph, node, operator.columns))}"
        case AsOfJoin() | LookupJoin():
            return _of_sides(graph, node, operator.columns)[0]
        case UpdatingAggregate():
            return f"the latest of the key ({event_time_text(graph, node.inputs[0])})"
        case ProcessOperator():
            return "_time of the process, else the watermark"
        case Deduplicate() | ChangeEvents() | TopN() | Forward():
            return event_time_text(graph, node.inputs[0])
    return "window_end - 1 microsecond"


def _of_sides(graph: Graph, node: OperatorNode, columns: JoinColumns) -> list[str]:
    """Describe the event times of both inputs of a join, with the column names of its results."""
    descriptions = []
    for side, edge in zip((JoinSide.LEFT, JoinSide.RIGHT), node.inputs, strict=True):
        exact = event_time_columns(graph, edge)
        shown = columns.names[side].get(exact[0], exact[0]) if exact and columns.how.gives_pairs else None
        descriptions.append(shown or f"{side.value} {event_time_text(graph, edge)}")
    return descriptions


def _of_step(node: StepNode, before: Lags) -> Lags:
    step = node.step
    if isinstance(step, Where):
        return before
    if isinstance(step, Select):
        plain = {name: value.plain_column for name, value in step.values}
        return {name: before[column] for name, column in plain.items() if column is not None and column in before}
    if isinstance(step, Explode):
        return {name: lag for name, lag in before.items() if name not in step.names}
    if isinstance(step, TableJoin):
        shown = step.pairs.names[JoinSide.LEFT] if step.how.gives_pairs else {}
        return {shown.get(name, name): lag for name, lag in before.items()}
    event_time = getattr(step, "event_time", None)
    return {} if event_time is None else {event_time: EXACT}


def _in_all(streams: list[Lags]) -> Lags:
    names = [name for name in streams[0] if all(name in other for other in streams)]
    return {
        name: Lag(min(stream[name].min_us for stream in streams), max(stream[name].max_us for stream in streams))
        for name in names
    }


def _of_operator(graph: Graph, node: OperatorNode) -> Lags:
    operator = node.operator
    before = [time_lags(graph, input_) for input_ in node.inputs]
    match operator:
        case IntervalJoin() | WindowJoin() | AsOfJoin() | LookupJoin():
            return _of_join(operator, *before)
        case WindowAggregate():
            return _of_window(operator.window)
        case SessionAggregate():
            return {WINDOW_END: Lag(-1, -1)}
        case WindowTopN() | WindowFunctions():
            known = before[0] if operator.window.on is None else {operator.window.on: EXACT}
            return _behind(known, Lag(0, operator.window.width_us - 1)) | _of_window(operator.window)
        case Deduplicate() | ChangeEvents() | TopN() | Forward():
            return before[0]
    return {}


def _of_join(join: IntervalJoin | WindowJoin | AsOfJoin | LookupJoin, left: Lags, right: Lags) -> Lags:
    match join:
        case IntervalJoin():
            return _of_interval(join, left, right)
        case WindowJoin():
            width = Lag(0, join.window.width_us - 1)
            sides: dict[JoinSide, Lags] = {JoinSide.LEFT: _behind(left, width), JoinSide.RIGHT: _behind(right, width)}
            return _of_window(join.window) | _shown(join.columns, sides)
        case AsOfJoin():
            tolerance = join.tolerance_us
            versions = {} if tolerance is None else _behind(right, Lag(0, tolerance))
            return _shown(join.columns, {JoinSide.LEFT: left, JoinSide.RIGHT: versions})
        case LookupJoin():
            return _shown(join.columns, {JoinSide.LEFT: left, JoinSide.RIGHT: {}})


def _of_interval(join: IntervalJoin, left: Lags, right: Lags) -> Lags:
    """Return the lags in pairs, whose event time is the later of both rows'; rows without a partner keep their own."""
    if join.how in {JoinKind.SEMI, JoinKind.ANTI}:
        return left
    alone = {side: join.how.gives_unmatched(side) for side in JoinSide}
    bounds = {JoinSide.LEFT: (join.lower_us, join.upper_us), JoinSide.RIGHT: (-join.upper_us, -join.lower_us)}
    waits = {
        side: Lag(0 if alone[side] else max(0, bounds[side][0]), max(0, bounds[side][1]))
        for side in (JoinSide.LEFT, JoinSide.RIGHT)
    }
    return _shown(
        join.columns,
        {JoinSide.LEFT: _behind(left, waits[JoinSide.LEFT]), JoinSide.RIGHT: _behind(right, waits[JoinSide.RIGHT])},
    )


def _of_window(window: Window) -> dict[str, Lag]:
    """Return the lags of the window's edges: results have the window's last microsecond as their event time."""
    shortest = window.slide_us if window.shape is WindowShape.CUMULATIVE else window.width_us
    return {WINDOW_START: Lag(shortest - 1, window.width_us - 1), WINDOW_END: Lag(-1, -1)}


def _behind(lags: Lags, more: Lag) -> dict[str, Lag]:
    return {name: Lag(lag.min_us + more.min_us, lag.max_us + more.max_us) for name, lag in lags.items()}


def _shown(columns: JoinColumns, sides: Mapping[JoinSide, Lags]) -> dict[str, Lag]:
    """Return the lags of both sides under the names of the results; key columns have the lags of the left side."""
    if not columns.how.gives_pairs:
        return dict(sides[JoinSide.LEFT])
    named = {
        columns.names[JoinSide.RIGHT][name]: lag
        for name, lag in sides[JoinSide.RIGHT].items()
        if name not in columns.right.keys
    }
    if not columns.how.gives_unmatched(JoinSide.RIGHT):
        return named | {columns.names[JoinSide.LEFT][name]: lag for name, lag in sides[JoinSide.LEFT].items()}
    # The key of a right row without a partner is in the left side's column.
    left = {name: lag for name, lag in sides[JoinSide.LEFT].items() if name not in columns.left.keys}
    return named | {columns.names[JoinSide.LEFT][name]: lag for name, lag in left.items()}
