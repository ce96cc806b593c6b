"""Checks, before a run opens, whether the state of a record matches the job that continues from it.

Operators are matched by name. A new one starts without state. If one is gone, the start is refused until the user
chooses whether its state is kept or dropped, because it may have been renamed. A changed one continues if its state
means the same or can be read in the new form; otherwise it is refused with the difference.
"""

import enum
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa

from statebed.checkpoint.objects import fetch_subtask
from statebed.errors import IncompatibleSchemaError, InputError
from statebed.flow.graph import Graph
from statebed.format import checkpoint_pb2 as pb
from statebed.operators import Operator
from statebed.operators.forward import Forward
from statebed.operators.joins import IntervalJoin, LookupJoin
from statebed.operators.labels import operator_label
from statebed.operators.operator import earlier_tables
from statebed.quantities import duration_text
from statebed.state.evolution.evolve import TIME_TO_LIVE, described, evolve
from statebed.state.evolution.widening import widens
from statebed.state.manager.evolved_parts import earlier_config
from statebed.storage import ObjectStore

_BOUNDS = ("lower_us", "upper_us")
_SHOWN = 200
"""Maximum number of characters of a part of a definition in an error."""


class RemovedStatePolicy(enum.Enum):
    """Choice for the state of operators that a job no longer has."""

    REFUSE = "refuse"
    """Refuse to start the job."""
    KEEP = "keep"
    """Keep it in every record unchanged, and use it again if the operator returns."""
    DROP = "drop"
    """Drop it from all further records; clean-up removes it with the epochs that have it."""


def check_continues(
    record: pb.CheckpointMetadata | None,
    *,
    operators: Mapping[str, Operator],
    graph: Graph,
    store: ObjectStore,
    job_id: str,
    removed: RemovedStatePolicy,
) -> None:
    """Raise InputError if the job cannot continue from a record; `store` is the job's folder."""
    sources = graph.sources
    if record is None:
        return
    there = {entry.operator_id: entry for entry in record.operators}
    gone = [
        name
        for name, entry in there.items()
        if name not in operators and not entry.retired and not _is_stateless(entry)
    ]
    new = [name for name in operators if name not in there]
    if gone and removed is RemovedStatePolicy.REFUSE:
        raise InputError(
            f"the state contains operators that the job no longer has: {', '.join(gone)}; the job has "
            f"{', '.join(operators)}" + (f", of which {', '.join(new)} have no state yet" if new else ""),
            where=f"job {job_id}",
            fix=f"keep the name of an operator that is the same (name={gone[0]!r}), or choose what to do with the "
            "state: job.start(removed='keep') or 'drop'; for SQL text, statebed sql --removed keep",
        )
    for name, operator in operators.items():
        if name in there and there[name].fingerprint != operator.definition.fingerprint:
            _check_changed(there[name], operator, store=store, where=f"job {job_id}, {operator_label(operator)}")
    unknown = [source.source for source in record.sources if source.source not in sources]
    if unknown and removed is RemovedStatePolicy.REFUSE:
        raise InputError(
            f"the state was fed by the sources {', '.join(clock.source for clock in record.sources)}, but the job has "
            f"{', '.join(sources)}",
            where=f"job {job_id}",
            fix=f"keep the names: job.source(df, name={unknown[0]!r}); job.start(removed='drop') continues without it",
        )
    _check_heads(record, graph, where=f"job {job_id}")
    for name in operators:
        if name in there and not _is_stateless(there[name]):
            _check_inputs(there[name], record, graph, where=f"job {job_id}, {operator_label(operators[name])}")


def _check_inputs(entry: pb.OperatorEntry, record: pb.CheckpointMetadata, graph: Graph, *, where: str) -> None:
    """Raise InputError if an input no longer reads any of its sources, although the job still has one of them.

    Names of operators that come from their place in a query are exchanged if the query is written in another order:
    each operator would continue with the state of another one.
    """
    before = {
        other.operator_id: tuple(name for input_ in other.inputs for name in input_.origins)
        for other in record.operators
    }
    now = {name: tuple(name for names in graph.origins(name) for name in names) for name in graph.operators}
    for input_, origins in zip(entry.inputs, graph.origins(entry.operator_id), strict=False):
        old = _sources(input_.origins, before) & graph.sources.keys()
        new = _sources(origins, now)
        if old and not old & new:
            raise InputError(
                f"the operator {entry.operator_id!r} has the state of rows from {', '.join(sorted(old))}, but reads "
                f"{', '.join(sorted(new))} now",
                where=where,
                fix="operators are matched with their state by name, which may come from their place in the query: "
                "name them, so that each has the name with which it wrote its state (name='...'; -- name: ... in SQL "
                "text; df.alias('...')). With a new name, an operator starts without state",
            )


def _check_heads(record: pb.CheckpointMetadata, graph: Graph, *, where: str) -> None:
    """Raise InputError if a source of a query reads what another one has read: their names are those of tables, and
    are numbered if a query reads a table several times.
    """
    before = {entry.head: entry.source for entry in record.sources if entry.head}
    heads = {entry.source: entry.head for entry in record.sources}
    for name, head in graph.heads.items():
        other = before.get(head, name)
        if heads.get(name) and other != name and heads[name] != head:
            raise InputError(
                f"the source {name!r} reads what the source {other!r} read when the state was written: parts of the "
                "query have changed places",
                where=where,
                fix="write them in their old order, or give each the name with which it wrote its state: FROM table "
                f"AS {other}, or df.alias({other!r})",
            )


def _sources(names: Iterable[str], reads: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the sources among names of sources and operators, and those that the operators read."""
    return {source for name in names for source in (_sources(reads[name], reads) if name in reads else {name})}


def kept_entries(
    record: pb.CheckpointMetadata, operators: Collection[str], removed: RemovedStatePolicy
) -> list[pb.OperatorEntry]:
    """Return the entries of operators that the job no longer has, for its next record."""
    if removed is RemovedStatePolicy.DROP:
        return []
    kept = [entry for entry in record.operators if entry.operator_id not in operators and not _is_stateless(entry)]
    for entry in kept:
        entry.retired = True
    return kept


def _is_stateless(entry: pb.OperatorEntry) -> bool:
    """Return whether an operator only forwards rows. It is named after the steps before it, which may change."""
    return bool(json.loads(entry.definition or "{}").get("kind") == Forward.KIND)


def _check_changed(entry: pb.OperatorEntry, operator: Operator, *, store: ObjectStore, where: str) -> None:
    changes = operator.definition.changes_from(entry.definition or "{}")
    firm = {name: change for name, change in changes.items() if name not in operator.definition.free}
    if firm:
        shown = "; ".join(f"{name} was {_text(old)}, is {_text(new)}" for name, (old, new) in firm.items())
        fix = "put its definition back, or give the changed operator another name: it then starts without state"
        if isinstance(operator, IntervalJoin) and _is_mirrored(firm):
            bounds = [duration_text(firm[name][0]) for name in _BOUNDS]
            fix = (
                "between() bounds the right row's event time minus the left row's, and used to bound the opposite; "
                f"the stored join is now written between({bounds[0]!r}, {bounds[1]!r})"
            )
        raise InputError(f"the operator differs from the one that wrote its state: {shown}", where=where, fix=fix)
    _check_broadcast_tables(changes, is_lookup=isinstance(operator, LookupJoin), where=where)
    if not entry.subtasks:
        return
    stored = fetch_subtask(store, entry.subtasks[0])
    for name, present in operator.tables.items():
        if name not in stored.tables or present.WhichOneof("kind") == "global_keyed":
            continue
        table = stored.tables[name]
        config = earlier_config(table.config, earlier_tables(operator).get(name, ())) or present
        schemas = [schema for subtask in table.subtasks.values() for schema in subtask.schemas]
        try:
            evolution = evolve(config, stored=table.config, schemas=schemas)
        except IncompatibleSchemaError as error:
            raise IncompatibleSchemaError(error.what, where=f"{where}, {error.where}", fix=error.fix) from error
        if (
            any(difference.what != TIME_TO_LIVE for difference in evolution.differences)
            and not operator.definition.tables_evolve
        ):
            raise InputError(
                f"the change of {', '.join(changes)} changes the columns of table {name!r}:\n"
                f"{described(evolution.differences)}",
                where=where,
                fix="restore the definition, or give the changed operator another name",
            )


def _check_broadcast_tables(changes: Mapping[str, tuple[Any, Any]], *, is_lookup: bool, where: str) -> None:
    """Raise InputError if the rows of a broadcast table, which are stored by the names of their columns, cannot be read
    in the form that the job declares.
    """
    before, after = (part or {} for part in changes.get("broadcasts", ({}, {})))
    pairs = [(f"broadcast table {name!r}", before[name], after[name]) for name in before if name in after]
    if is_lookup and "columns" in changes:
        old, new = changes["columns"]
        pairs.append(("broadcast table", {"columns": old}, {"columns": new}))
    for table, old, new in pairs:
        types = dict(old["columns"])
        wrong = [
            f"{column} was {types[column]}, is {kind}"
            for column, kind in new["columns"]
            if column in types and types[column] != kind and not _widens(types[column], kind)
        ]
        if old.get("keys") != new.get("keys"):
            wrong.append(f"its key was {', '.join(old['keys'])}, is {', '.join(new['keys'])}")
        if wrong:
            raise InputError(
                f"the {table} differs from the one whose rows are stored: {'; '.join(wrong)}",
                where=where,
                fix="keep the key and the types, or add a column with the new type; a type may become wider",
            )


def _widens(stored: str, wanted: str) -> bool:
    """Return whether the second type, as Arrow prints it, holds all values of the first."""
    try:
        return widens(pa.type_for_alias(stored), pa.type_for_alias(wanted))
    except ValueError:
        return False


def _is_mirrored(firm: Mapping[str, tuple[Any, Any]]) -> bool:
    """Return whether only the signs of the bounds of an interval join have changed."""
    lower, upper = (firm.get(name) for name in _BOUNDS)
    return set(firm) == set(_BOUNDS) and lower is not None and upper is not None and lower[0] == -upper[1]


def _text(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
