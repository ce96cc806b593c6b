"""`read_state` shows what the operator's own views hold, after each of twenty epochs with spills and merges."""

import uuid
from collections import Counter

import pyarrow as pa
import pytest
from conformance.every_operator import OPERATORS
from conformance.streams import LEFT, RIGHT
from conformance.test_operators_state import flow_of, rows_of

from statebed import diff_state, read_state, testing
from statebed.flow import OperatorNode
from statebed.state import TableManager
from statebed.storage import get_storage_provider

QUICK = {"tumbling", "session", "updating_aggregate"}
"""Tables of all kinds that operators keep; the others have tables alike."""
EPOCHS = 20
SMALL = 1 << 20


def held(manager: TableManager, table: str, kind: str) -> list[pa.Table]:
    """Return the rows of a table in a subtask's own view."""
    if kind == "keyed":
        return list(manager.get_keyed(table).scan())
    return [manager.get_time_keyed(table).read()]


def as_set(tables: list[pa.Table]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for table in tables for row in table.to_pylist())


@pytest.mark.parametrize(
    "operator", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in OPERATORS]
)
def test_p2_read_state_equals_the_operators_own_view_at_each_of_twenty_epochs(operator: str) -> None:
    flow, url = flow_of(OPERATORS[operator]), f"memory://{uuid.uuid4()}"
    (node,) = [node for node in flow.graph.nodes if isinstance(node, OperatorNode)]
    seen: dict[tuple[str, int], Counter[str]] = {}
    store = get_storage_provider(url)
    with testing.run(flow, parallelism=2, memory=SMALL, store=store, retained_epochs=EPOCHS + 9) as t:
        cluster = t._cluster  # the views that the operator writes to
        for number in range(EPOCHS):
            t.feed_all({LEFT: rows_of(number), RIGHT: rows_of(number)})
            t.spill()
            if number % 7 == 6:
                t.compact()
            if number == EPOCHS // 2:
                t.rescale(3)
            for name, config in node.operator.tables.items():
                kind = config.WhichOneof("kind") or ""
                views = [rows for one in cluster.managers("out") for rows in held(one, name, kind)]
                found = read_state(url, table=name)
                assert as_set([found.to_arrow()]) == as_set(views), (name, number)
                seen[name, found.epoch] = as_set(views)
        assert any(seen.values())
    for (name, epoch), rows in seen.items():
        if epoch % 5 == 0:  # later, too, and any of them
            assert as_set([read_state(url, table=name, epoch=epoch).to_arrow()]) == rows
    epochs = sorted({epoch for _, epoch in seen})
    for name in node.operator.tables:
        changes = diff_state(url, table=name, since=epochs[2], until=epochs[-1]).to_arrow()
        gone, come = seen[name, epochs[2]], seen[name, epochs[-1]]
        kinds = changes["change"].to_pylist()
        rows = changes.drop_columns(["change"]).to_pylist()
        found_gone, found_come = Counter[str](), Counter[str]()
        for kind, row in zip(kinds, rows, strict=True):
            side = found_gone if kind in {"delete", "update_before"} else found_come
            side[repr(sorted(row.items()))] += 1
        assert (found_gone, found_come) == (gone - come, come - gone), name
