"""What an epoch took, where its record says so: phases, state by tier, memory, compaction.

Records of older versions, and of engines that run without Spark, have no figures. Whoever shows them shows nothing
then; no decision rests on them.
"""

from dataclasses import dataclass

from statebed.format import checkpoint_pb2 as pb

PHASES = ("planning", "read", "shuffle", "merge", "write", "commit", "publish")
"""In the order in which an epoch goes through them."""


@dataclass(frozen=True)
class TierSizes:
    """Where the state of a table lies at the end of an epoch."""

    operator: str
    table: str
    rows: int
    memory_bytes: int
    disk_bytes: int
    store_bytes: int
    files: int
    tombstones: int
    spills: int
    loads: int
    hits: int
    compaction_debt_bytes: int


@dataclass(frozen=True)
class OperatorWork:
    """What an operator did in an epoch."""

    operator: str
    bytes_written: int
    busy_us: int
    rows_expired: int
    retractions_dropped: int


@dataclass(frozen=True)
class HostMemory:
    """The memory of a worker process at its fullest, and the cache of its host."""

    host: str
    budget_bytes: int
    peak_bytes: int
    holders: dict[str, int]
    cache_bytes: int
    cache_limit_bytes: int
    spilled_bytes: int


@dataclass(frozen=True)
class CompactionWork:
    """What compaction did since the run began."""

    rounds: int
    merges: int
    read_bytes: int
    written_bytes: int
    failures: int


@dataclass(frozen=True)
class Figures:
    """Everything that a record says about the making of its epoch."""

    phases_us: dict[str, int]
    tables: tuple[TierSizes, ...]
    operators: tuple[OperatorWork, ...]
    hosts: tuple[HostMemory, ...]
    compaction: CompactionWork | None
    preaggregated: bool


def figures_of(record: pb.CheckpointMetadata, following: pb.CheckpointMetadata | None = None) -> Figures | None:
    """The figures of a record, or None; the record after it knows how long its commit and publication took."""
    if not record.HasField("figures"):
        return None
    figures = record.figures
    return Figures(
        phases_us=phases_of(record, following),
        tables=tuple(_tiers(o.operator_id, table) for o in figures.operators for table in o.tables),
        operators=tuple(_work(operator) for operator in figures.operators),
        hosts=tuple(_memory(host) for host in figures.hosts),
        compaction=_compaction(figures.compaction) if figures.HasField("compaction") else None,
        preaggregated=figures.preaggregated,
    )


def phases_of(record: pb.CheckpointMetadata, following: pb.CheckpointMetadata | None = None) -> dict[str, int]:
    """How long each phase took, in their order; those that nobody measured are left out."""
    measured = dict(record.figures.phases_us)
    if following is not None and following.previous == record.epoch and following.run == record.run:
        measured.update(following.figures.previous_phases_us)
    known = {phase: measured.pop(phase) for phase in PHASES if phase in measured}
    return {**known, **dict(sorted(measured.items()))}


def _tiers(operator: str, table: pb.TableFigures) -> TierSizes:
    return TierSizes(
        operator=operator,
        table=table.table,
        rows=table.rows,
        memory_bytes=table.memory_bytes,
        disk_bytes=table.disk_bytes,
        store_bytes=table.store_bytes,
        files=table.files,
        tombstones=table.tombstones,
        spills=table.spills,
        loads=table.loads,
        hits=table.hits,
        compaction_debt_bytes=table.compaction_debt_bytes,
    )


def _work(operator: pb.OperatorFigures) -> OperatorWork:
    return OperatorWork(
        operator=operator.operator_id,
        bytes_written=operator.bytes_written,
        busy_us=operator.busy_us,
        rows_expired=operator.rows_expired,
        retractions_dropped=operator.retractions_dropped,
    )


def _memory(host: pb.HostFigures) -> HostMemory:
    return HostMemory(
        host=host.host,
        budget_bytes=host.budget_bytes,
        peak_bytes=host.peak_bytes,
        holders=dict(sorted(host.holders.items(), key=lambda held: (-held[1], held[0]))),
        cache_bytes=host.cache_bytes,
        cache_limit_bytes=host.cache_limit_bytes,
        spilled_bytes=host.spilled_bytes,
    )


def _compaction(done: pb.CompactionFigures) -> CompactionWork:
    return CompactionWork(
        rounds=done.rounds,
        merges=done.merges,
        read_bytes=done.read_bytes,
        written_bytes=done.written_bytes,
        failures=done.failures,
    )
