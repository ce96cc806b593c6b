"""An operator that would continue with the state of another one is refused before a run opens."""

import contextlib
from typing import Any

import pytest

import statebed as sb
from statebed.checkpoint.objects import store_subtask
from statebed.errors import InputError
from statebed.flow import Flow, Stream
from statebed.flow.clocks import SourceClock, source_entry
from statebed.format import checkpoint_pb2 as pb
from statebed.spark.plan.state_match import RemovedStatePolicy, check_continues
from statebed.storage import MemoryStore

ROWS = "k string, n bigint"


def flow_of(*names: str) -> tuple[Flow, dict[str, Stream]]:
    flow = Flow("shop")
    return flow, {name: flow.source(name, ROWS) for name in names}


def record_of(flow: Flow) -> pb.CheckpointMetadata:
    """Return a record as an epoch of the flow leaves it."""
    graph = flow.graph
    return pb.CheckpointMetadata(
        operators=[
            pb.OperatorEntry(
                operator_id=name,
                fingerprint=operator.definition.fingerprint,
                definition=operator.definition.described,
                inputs=[
                    pb.InputWatermark(input=input_.name, origins=origins)
                    for input_, origins in zip(operator.inputs, graph.origins(name), strict=True)
                ],
            )
            for name, operator in graph.operators.items()
        ],
        sources=[source_entry(name, SourceClock(), graph) for name in graph.sources],
    )


def check(flow: Flow, record: pb.CheckpointMetadata, store: MemoryStore | None = None) -> None:
    graph = flow.graph
    check_continues(
        record,
        operators=graph.operators,
        graph=graph,
        store=store or MemoryStore(),
        job_id="shop",
        removed=RemovedStatePolicy.REFUSE,
    )


def two_deduplications(first: str, second: str, *more: str) -> Flow:
    flow, sources = flow_of("a", "b", *more)
    one = sources[first].deduplicate("k", name="deduplicate")
    one.union(sources[second].where("n > 0").deduplicate("k", name="deduplicate_2"))
    return flow


def test_operators_that_exchange_their_names_are_refused() -> None:
    record = record_of(two_deduplications("a", "b"))
    check(two_deduplications("a", "b"), record)
    with pytest.raises(InputError, match=r"'deduplicate' has the state of rows from a, but reads b now") as caught:
        check(two_deduplications("b", "a"), record)
    assert "name them" in caught.value.fix
    with pytest.raises(InputError, match=r"'deduplicate' has the state of rows from a, but reads c now"):
        check(two_deduplications("c", "a", "c"), record)


def test_sides_of_a_join_that_are_exchanged_are_refused() -> None:
    def joined(left: str, right: str) -> Flow:
        flow, sources = flow_of("a", "b")
        sources[left].join(sources[right], on="k", name="pairs")
        return flow

    check(joined("a", "b"), record_of(joined("a", "b")))
    with pytest.raises(InputError, match="'pairs' has the state of rows from a, but reads b now"):
        check(joined("b", "a"), record_of(joined("a", "b")))


def counts(stream: Any) -> None:
    stream.key_by("k", name="counts").agg(n=sb.count())


def test_sources_and_operators_before_an_operator_may_be_added_and_removed() -> None:
    def changed(kind: str) -> Flow:
        flow, sources = flow_of("a", "b")
        counts(
            {
                "plain": lambda: sources["a"],
                "filtered": lambda: sources["a"].where("n > 1"),
                "united": lambda: sources["a"].union(sources["b"]),
                "after another": lambda: sources["a"].deduplicate("k", "n", name="once"),
            }[kind]()
        )
        return flow

    for before in ("plain", "filtered", "united"):
        for after in ("plain", "filtered", "united", "after another"):
            check(changed(after), record_of(changed(before)))


def test_records_that_do_not_name_what_operators_read_still_open() -> None:
    record = record_of(two_deduplications("a", "b"))
    for entry in record.operators:
        for input_ in entry.inputs:
            del input_.origins[:]
    check(two_deduplications("b", "a"), record)


@pytest.mark.parametrize(
    ("heads", "moved"),
    [
        ({"a": "large", "b": "small"}, ""),
        ({"a": "larger", "b": "small"}, ""),
        ({"a": "small", "b": "large"}, "the source 'a' reads what the source 'b' read"),
        ({"a": "new", "b": "large"}, "the source 'b' reads what the source 'a' read"),
    ],
)
def test_parts_of_a_query_that_change_places_are_refused(heads: dict[str, str], moved: str) -> None:
    """A query that reads one table twice has the sources `orders` and `orders_2`, by their order."""
    before, after = two_deduplications("a", "b"), two_deduplications("a", "b")
    before.graph.heads.update({"a": "large", "b": "small"})
    after.graph.heads.update(heads)
    with pytest.raises(InputError, match=moved) if moved else contextlib.nullcontext():
        check(after, record_of(before))


RULE = "rule_id string, kind string, threshold float, gone boolean"


class Judge(sb.Process):
    output = "k string, n bigint"

    def on_batch(self, rows: Any, ctx: Any) -> Any:
        return None


def with_rules(columns: str, *, key: str = "rule_id", as_process: bool = False) -> Flow:
    flow, sources = flow_of("a")
    table = flow.source("rules", columns).broadcast(key, deleted="gone")
    if as_process:
        sources["a"].key_by("k").process(Judge(), tables=[table], name="match")
    else:
        sources["a"].lookup(table, condition="k = kind", name="match")
    return flow


@pytest.mark.parametrize("as_process", [False, True], ids=["lookup", "process"])
def test_a_broadcast_table_may_get_columns_and_wider_types_and_lose_columns(as_process: bool) -> None:
    store, record = MemoryStore(), record_of(with_rules(RULE, as_process=as_process))
    (entry,) = record.operators
    # As a subtask stores it: a global keyed table has no columns of its own.
    tables = with_rules(RULE, as_process=as_process).graph.operators["match"].tables
    metadata = pb.OperatorCheckpointMetadata(format_version=1, job_id="shop", operator_id="match", epoch=2)
    for name, config in tables.items():
        metadata.tables[name].config.CopyFrom(config)
    entry.subtasks.append(store_subtask(store, metadata))
    for columns in (RULE + ", note string", RULE.replace("float", "double"), RULE + ", at date"):
        check(with_rules(columns, as_process=as_process), record, store)
    check(with_rules("rule_id string, kind string, gone boolean", as_process=as_process), record, store)
    with pytest.raises(InputError, match=r"broadcast table.* differs .*threshold was float, is string") as caught:
        check(with_rules(RULE.replace("float", "string"), as_process=as_process), record, store)
    assert "keep the key and the types" in caught.value.fix
    with pytest.raises(InputError, match=r"keys?\b.*rule_id.*kind"):
        check(with_rules(RULE, key="kind", as_process=as_process), record, store)
