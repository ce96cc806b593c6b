"""Tables and lines of the commands that verify, repair and change state."""

import dataclasses
import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from statebed.cli import output
from statebed.inspect.verification import Finding, Verification
from statebed.maintain import CommittedChange, Garbage, OutdatedTable, RepairPlan, Savepoint, TableRewrite, Through
from statebed.present import units
from statebed.sinks.manifest import TableVerification

if TYPE_CHECKING:
    from statebed.sinks.verification import SinkVerification

MAX_NUMBERS = 12


def as_json(value: Any) -> Any:
    """Convert dataclasses, enums and times for a JSON document."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        times = {name: output.iso_instant(item) for name, item in named.items() if name.endswith("time_us")}
        rest = {name: as_json(item) for name, item in named.items() if name not in times}
        return rest | {name.removesuffix("_us"): item for name, item in times.items()}
    return value


def numbers(epochs: Sequence[int]) -> str:
    """Format epoch numbers, with consecutive ones as a range.

    >>> numbers([2, 3, 4, 7])
    '2-4, 7'
    """
    ranges: list[list[int]] = []
    for epoch in sorted(epochs):
        if ranges and ranges[-1][-1] == epoch - 1:
            ranges[-1][-1:] = [ranges[-1][-1], epoch] if len(ranges[-1]) == 1 else [epoch]
        else:
            ranges.append([epoch])
    texts = [str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in ranges]
    more = [f"and {len(texts) - MAX_NUMBERS} more"] if len(texts) > MAX_NUMBERS else []
    return ", ".join([*texts[:MAX_NUMBERS], *more])


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """Render two lines per finding, so that object names are never wrapped."""
    return [
        line
        for finding in findings
        for line in (
            f"{finding.trouble.value}: {finding.path}",
            f"    {finding.kind.value}: {finding.problem}; needed by {needed_by(finding)}",
        )
    ]


def needed_by(finding: Finding) -> str:
    epochs = f"{_epochs(finding.epochs)}" if finding.epochs else ""
    savepoints = f"{'savepoint' if len(finding.savepoints) == 1 else 'savepoints'} {', '.join(finding.savepoints)}"
    return " and ".join(text for text in (epochs, savepoints if finding.savepoints else "") if text) or "nothing"


def _epochs(epochs: Sequence[int]) -> str:
    return f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {numbers(epochs)}"


def orphans_table(verification: Verification) -> Table:
    rows = [(orphan.path, orphan.kind.value, units.size(orphan.size)) for orphan in verification.orphans]
    return output.table("unreferenced objects", ("object", "what", "bytes"), rows, right=("bytes",))


def verification_lines(verification: Verification) -> list[str]:
    """Render what was read, and the damage of the job's folder."""
    checked = (
        f"epochs {numbers(verification.epochs) or 'none'}, {units.plural(len(verification.savepoints), 'savepoint')}"
    )
    lines = [f"read {units.plural(verification.objects, 'object')}, {units.size(verification.bytes)}: {checked}"]
    lines += [f"missing, but not an error: {loss.path}: {loss.reason}" for loss in verification.awaited]
    counts = Counter(orphan.kind.value for orphan in verification.orphans)
    if counts:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        lines.append(f"unreferenced, not an error: {kinds}")
    if not verification.orphans_known and verification.findings:
        lines.append("unreferenced objects are not listed: metadata that may refer to them cannot be read")
    if verification.whole:
        return lines
    lines.append(f"damaged or missing: {units.plural(len(verification.findings), 'object')}")
    if verification.head_whole:
        lines.append(
            f"the newest state (epoch {verification.data_epoch}) is intact: the job does not need the damaged objects"
        )
    else:
        lines.append("the newest state is damaged: `statebed repair` shows what can be done")
    return lines


def table_lines(tables: Iterable[TableVerification]) -> list[str]:
    """Render the verification of sink tables: a line per damaged object, then one per table."""
    lines = []
    for table in tables:
        lines += [
            line for finding in table.findings for line in (f"damaged: {finding.where}", f"    {finding.problem}")
        ]
        state = "intact" if table.whole else f"{units.plural(len(table.findings), 'object')} damaged or missing"
        unsealed = "" if table.sealed else "; its manifest has no checksums until the job is started again"
        read = f"{units.plural(table.files, 'file')}, {units.size(table.bytes)}, up to epoch {table.epoch}"
        lines.append(f"table {table.where} of {table.owner or 'an unknown job'}: {read}: {state}{unsealed}")
    return lines


def sink_lines(sinks: "Iterable[SinkVerification]") -> list[str]:
    """Render the verification of sinks: two lines per finding, then one line per sink."""
    lines = []
    for sink in sinks:
        lines += [line for finding in sink.findings for line in (f"damaged: {finding.where}", f"    {finding.problem}")]
        where = f"sink {sink.sink_id}, {sink.kind or 'user-defined'} {sink.where}".rstrip()
        if sink.not_checked:
            lines.append(f"{where}: not checked: {sink.not_checked}")
            continue
        state = "intact" if sink.whole else units.plural(len(sink.findings), "problem")
        files = f", {units.plural(sink.files, 'file')}" if sink.files else ""
        lines.append(f"{where}: up to epoch {sink.epoch}{files}: {state}")
    return lines


def conclusion_lines(
    verification: Verification, tables: Sequence[TableVerification], sinks: "Sequence[SinkVerification]"
) -> list[str]:
    """Render the last line of a verification. It calls intact only what was checked."""
    not_checked = ", ".join(sink.sink_id for sink in sinks if sink.not_checked)
    left_out = f"; not checked: {not_checked}" if not_checked else ""
    if not verification.whole:
        return []
    if not (all(table.whole for table in tables) and all(sink.whole for sink in sinks)):
        return [f"the state is intact, but not everything that its sinks have written{left_out}"]
    return [f"everything that was checked is intact{left_out}" if not_checked else "everything is intact"]


def repair_lines(plan: RepairPlan) -> list[str]:
    """Render what a repair would do, and what would be lost."""
    if not plan.needed:
        return ["nothing to repair: the job can resume from its newest epoch", *_remaining(plan)]
    source = f"savepoint {plan.savepoint!r} (epoch {plan.base})" if plan.savepoint else f"epoch {plan.base}"
    lines = [f"newest intact state: {source}"]
    if plan.lost:
        rows = "an unknown number of" if plan.lost_rows is None else f"{plan.lost_rows:,}"
        lines.append(
            f"lost: the work of {_epochs(plan.lost)} ({rows} rows read by operators); their input is read "
            "again if the source still has it"
        )
    for sink in sorted({sink for sinks in plan.published.values() for sink in sinks}):
        epochs = [epoch for epoch, sinks in plan.published.items() if sink in sinks]
        lines.append(f"already published: {_epochs(epochs)} to {sink}; a sink without retractions keeps these rows")
    if plan.forgotten:
        lines.append(f"no longer readable: {_epochs(plan.forgotten)}, older than a missing record")
    return [*lines, *_remaining(plan)]


def _remaining(plan: RepairPlan) -> list[str]:
    if not plan.remaining:
        return []
    left = units.plural(len(plan.remaining), "damaged object")
    savepoints = sorted({name for finding in plan.remaining for name in finding.savepoints})
    return [
        f"{left} left alone: the job does not resume from epochs that need them",
        "they are removed when their epochs expire, and clean-up may pause until then",
        *(f"savepoint {name!r} is damaged: clean-up is paused until it is dropped" for name in savepoints),
    ]


def savepoints_table(savepoints: Sequence[Savepoint]) -> Table:
    rows = [
        (
            savepoint.name,
            savepoint.epoch,
            savepoint.made_in,
            units.instant(savepoint.finish_time_us),
            output.age(savepoint.finish_time_us),
            savepoint.problem,
        )
        for savepoint in savepoints
    ]
    return output.table("savepoints", ("name", "epoch", "made in", "finished (UTC)", "age", "problem"), rows)


def garbage_table(garbage: Sequence[Garbage]) -> Table:
    rows = [(object_.path, units.size(object_.size), object_.reason.value) for object_ in garbage]
    return output.table("objects that clean-up would remove", ("object", "bytes", "because"), rows, right=("bytes",))


def outdated_table(tables: Sequence[OutdatedTable]) -> Table:
    rows = [
        (
            outdated.operator_id,
            outdated.table,
            outdated.files or None,
            units.size(outdated.bytes) if outdated.files else None,
            f"{', '.join(map(str, outdated.versions))} -> {outdated.version}" if outdated.versions else None,
        )
        for outdated in tables
    ]
    columns = ("operator", "table", "files with older columns", "bytes", "versions of values")
    return output.table("tables to migrate", columns, rows, right=("files with older columns", "bytes"))


def rewrites_table(rewrites: Iterable[TableRewrite]) -> Table:
    rows = [
        (
            rewrite.operator_id,
            rewrite.table,
            f"{rewrite.files_before} -> {rewrite.files_after}",
            f"{units.size(rewrite.bytes_before)} -> {units.size(rewrite.bytes_after)}",
        )
        for rewrite in rewrites
    ]
    return output.table("rewritten tables", ("operator", "table", "files", "bytes"), rows)


def changed_line(what: str, changed: CommittedChange) -> str:
    """Say what was changed, in which record of which run."""
    where = f"record {changed.epoch} of run {changed.run}"
    if changed.through is Through.NO_RUN:
        return f"{changed.through.value}; the newest is {where}"
    return f"{what}: {where} ({changed.through.value})"
