"""Estimate of a job of any size from measured points: costs that grow with subtasks, with rows, and with state.

The code is the same for every subtask, so its requests and bytes are those of one subtask times their number. Bytes of
a delta grow with its rows, bytes and files of the state with its rows. A second measured point says how far off each of
these formulas is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.scale.s3 import GET_DOLLARS, PUT_DOLLARS, Latencies, stored_dollars
from bench.scale.simulated_job import Shape, Totals
from bench.scale.simulated_store import PAGE, Requests
from statebed.checkpoint.run import SWEEP_EVERY
from statebed.format import checkpoint_pb2 as pb
from statebed.spark.compaction.rounds import CompactionOptions, chosen, options_for
from statebed.subtasks import SubtaskReport

DAY_SECONDS = 86_400.0
POOL = 64
"""Requests that the driver sends at once."""


@dataclass(frozen=True)
class Point:
    """Costs of one simulated job."""

    shape: Shape
    totals: Totals
    opening: Requests
    """Requests of a driver that opens the next run."""
    restore: Requests
    """Requests of a subtask's first epoch, with an empty cache."""

    @property
    def subtask_epochs(self) -> int:
        return self.shape.subtasks * self.totals.epochs


@dataclass(frozen=True)
class Target:
    """The job to estimate."""

    operator: str = "updating aggregate"
    subtasks: int = 1000
    state_bytes: float = 10 * 2.0**40
    epoch_seconds: float = 10.0
    rows_per_second: float = 1e6
    retained_epochs: int = 10
    grace_seconds: float = 600.0
    collect_every: int = 16

    @property
    def rows(self) -> float:
        """Rows of a subtask and epoch."""
        return self.rows_per_second * self.epoch_seconds / self.subtasks

    @property
    def kept_epochs(self) -> float:
        """Epochs whose objects exist: the retained ones, those of the grace period, and those not collected yet."""
        return self.retained_epochs + self.grace_seconds / self.epoch_seconds + self.collect_every / 2


@dataclass(frozen=True)
class Formulas:
    """Costs of one subtask, fitted to measured points."""

    requests: Requests
    """Requests of a subtask and epoch."""
    compaction: Requests
    """Requests of compactions per subtask and epoch."""
    put_fixed: float
    put_per_row: float
    """Bytes that a subtask puts per row of an epoch: its delta, merged deltas, outbox."""
    driver: Requests
    """Requests of the driver per epoch."""
    record_fixed: float
    record_per_subtask: float
    commit_per_subtask: float
    """Seconds of the driver's own work."""
    own_fixed: float
    own_per_row: float
    """Seconds of a subtask's own work."""
    state_row_bytes: float
    file_bytes: float
    """Size of a base file."""
    deltas: float
    """Files of a subtask besides its base."""
    metadata_per_file: float
    cold_share: float
    """Part of the state that a subtask reads in its first epoch with an empty cache."""
    compaction_factor: float
    """Bytes that compactions read per byte that subtasks put."""


@dataclass(frozen=True)
class Check:
    """A prediction, and what was measured."""

    what: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Return by which part of the measured value the prediction is off."""
        return abs(self.predicted - self.measured) / max(abs(self.measured), 1e-9)


@dataclass(frozen=True)
class Estimate:
    """Costs of a job of the target's size."""

    target: Target
    rows_in_state: float
    epoch: Requests
    """All requests of an epoch: subtasks, driver, and its share of compactions and clean-ups."""
    record_bytes: float
    metadata_bytes: float
    files: float
    objects: float
    subtask_seconds: float
    request_seconds: float
    """Part of `subtask_seconds` that is spent on requests."""
    commit_seconds: float
    cleanup_seconds: float
    sweep_seconds: float
    open_seconds: float
    """Time until the driver of a restarted job has opened its run."""
    cold_seconds: float
    """Time of the first epoch of a subtask whose host has no copies of its files."""
    compaction_bytes: float
    """Bytes of files that compactions have to read per epoch."""
    round_bytes: float
    """Bytes of files that one round compacts at most."""
    round_subtasks: int
    """Subtasks that one round compacts."""

    @property
    def epochs_per_day(self) -> float:
        return DAY_SECONDS / self.target.epoch_seconds

    @property
    def request_dollars(self) -> float:
        """Dollars per epoch."""
        return (self.epoch.put + self.epoch.list) * PUT_DOLLARS + self.epoch.get * GET_DOLLARS

    @property
    def storage_dollars(self) -> float:
        """Dollars per day."""
        kept = self.epoch.put_bytes * self.target.kept_epochs
        return stored_dollars(self.target.state_bytes + kept)

    @property
    def dollars_per_day(self) -> float:
        return self.request_dollars * self.epochs_per_day + self.storage_dollars

    @property
    def put_burst(self) -> float:
        """PUT requests per second while all subtasks of an epoch write at once."""
        return self.epoch.put / max(self.subtask_seconds, 1e-9)

    @property
    def get_burst(self) -> float:
        return self.epoch.get / max(self.subtask_seconds, 1e-9)

    @property
    def cleanup_interval(self) -> float:
        return self.target.collect_every * self.target.epoch_seconds

    @property
    def compaction_cycle(self) -> float:
        """Epochs until every subtask has been compacted once, with one round per epoch."""
        return self.target.subtasks / self.round_subtasks


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the straight line through two points as its value at 0 and its slope, neither of them below 0.

    Measured seconds are noisy. If the larger job was faster, the cost does not depend on the size as far as is known.
    """
    (x1, y1), (x2, y2) = points
    slope = (y2 - y1) / (x2 - x1)
    if slope < 0:
        return max(y1, y2), 0.0
    start = y1 - slope * x1
    return (start, slope) if start >= 0 else (0.0, y2 / x2)


def fit(narrow: tuple[Point, Point], large: tuple[Point, Point], wide: Point) -> Formulas:
    """Fit the formulas to two jobs of few and more subtasks, and to two subtasks of some and more keys and rows.

    `wide` is a job of many subtasks. Only the driver's own time is taken from it; otherwise it checks the formulas.
    """
    more, big = narrow[1], large[1]
    record = line([(p.shape.subtasks, p.totals.record_bytes) for p in narrow])
    put = line([(p.shape.rows, p.totals.subtasks.put_bytes / p.subtask_epochs) for p in (more, big)])
    own = line([(p.shape.rows, p.totals.subtask_seconds / p.totals.epochs) for p in (more, big)])
    deltas = more.totals.state_files / more.shape.subtasks
    return Formulas(
        requests=more.totals.subtasks.times(1 / more.subtask_epochs),
        compaction=more.totals.compaction.times(1 / more.subtask_epochs),
        put_fixed=put[0],
        put_per_row=put[1],
        driver=more.totals.driver.times(1 / more.totals.epochs),
        record_fixed=record[0],
        record_per_subtask=record[1],
        commit_per_subtask=wide.totals.commit_seconds / wide.shape.subtasks,
        own_fixed=own[0],
        own_per_row=own[1],
        state_row_bytes=big.totals.state_bytes / big.totals.state_rows,
        file_bytes=big.totals.base_bytes / max(big.totals.base_files, 1),
        deltas=deltas,
        metadata_per_file=more.totals.metadata_bytes / deltas,
        cold_share=min(1.0, big.restore.get_bytes / big.totals.state_bytes),
        compaction_factor=more.totals.compaction.get_bytes / more.totals.subtasks.put_bytes,
    )


def checks(formulas: Formulas, large: tuple[Point, Point], narrow: tuple[Point, Point], wide: Point) -> list[Check]:
    """Compare the formulas with points that they were not fitted to."""
    few, small = narrow[0], large[0]
    epochs, subtasks = wide.totals.epochs, wide.shape.subtasks
    per_epoch = wide.totals.subtasks.times(1 / epochs)
    return [
        Check(
            f"record of {subtasks:,} subtasks, bytes",
            formulas.record_fixed + formulas.record_per_subtask * subtasks,
            wide.totals.record_bytes,
        ),
        Check(f"PUTs of {subtasks:,} subtasks per epoch", formulas.requests.put * subtasks, per_epoch.put),
        Check(f"GETs of {subtasks:,} subtasks per epoch", formulas.requests.get * subtasks, per_epoch.get),
        Check(
            "PUTs of a subtask with more state, per epoch",
            formulas.requests.put,
            small.totals.subtasks.put / small.subtask_epochs,
        ),
        Check(
            f"bytes that a subtask puts for {small.shape.rows:,} rows",
            formulas.put_fixed + formulas.put_per_row * small.shape.rows,
            small.totals.subtasks.put_bytes / small.subtask_epochs,
        ),
        Check(f"GETs to open {subtasks:,} subtasks, besides records", subtasks, wide.opening.get - epochs),
        Check(
            f"GETs of a clean-up of {few.shape.subtasks} subtasks",
            few.shape.collect_every * (few.shape.subtasks + 1),
            few.totals.cleanups[-1].get if few.totals.cleanups else 0,
        ),
    ]


def estimate(target: Target, formulas: Formulas, latencies: Latencies) -> Estimate:
    """Return what the target takes, on a cluster with one task slot per subtask."""
    default = CompactionOptions()
    options = options_for(target.subtasks, every_epochs=default.every_epochs, subtask_bytes=default.subtask_bytes)
    subtasks, state = target.subtasks, target.state_bytes / target.subtasks
    files = formulas.deltas + state / formulas.file_bytes
    metadata = files * formulas.metadata_per_file
    record = formulas.record_fixed + formulas.record_per_subtask * subtasks
    put_bytes = formulas.put_fixed + formulas.put_per_row * target.rows + metadata
    requests = formulas.requests
    request_seconds = (
        requests.put * latencies.put_seconds
        + requests.get * latencies.get_seconds
        + (2 * put_bytes + metadata) / latencies.bytes_per_second
    )
    compaction = formulas.compaction
    objects_per_epoch = subtasks * requests.objects + formulas.driver.objects
    objects = subtasks * files + objects_per_epoch * target.kept_epochs
    epoch = Requests(
        put=subtasks * (requests.put + compaction.put) + formulas.driver.put,
        get=subtasks * (requests.get + compaction.get + 1) + formulas.driver.get,
        list=objects / PAGE / (SWEEP_EVERY * target.collect_every),
        delete=objects_per_epoch / PAGE + 2,
        put_bytes=subtasks * put_bytes * (1 + formulas.compaction_factor) + record,
        get_bytes=subtasks * ((put_bytes + metadata) + put_bytes * formulas.compaction_factor + metadata) + 2 * record,
        objects=objects_per_epoch + subtasks * compaction.objects,
        deleted=objects_per_epoch + subtasks * compaction.objects,
    )
    collected = target.collect_every * subtasks
    cleanup = (
        collected * latencies.get(int(metadata)) / POOL
        + target.collect_every * objects_per_epoch / PAGE * latencies.delete_page
        + target.collect_every * (latencies.delete + latencies.get(0))
    )
    listed = objects / PAGE * latencies.list_page
    # The base is in the folder of the compactions, which is listed page by page; folders of epochs are listed at once.
    base_pages = subtasks * (files - formulas.deltas) / PAGE
    delta_pages = subtasks * (formulas.deltas + 1) / PAGE
    opening = (
        target.kept_epochs * latencies.get(int(record))
        + subtasks * latencies.get(int(metadata)) / POOL
        + (base_pages + delta_pages / min(formulas.deltas + 1, POOL)) * latencies.list_page
        + latencies.put(int(record))
    )
    report = SubtaskReport("o", 0, 1, pb.SubtaskReference(), (), 0, 0, 0, 0, 0, 0, 0, due_bytes=int(state))
    max_subtasks = int(options.round_bytes / min(state, options.subtask_bytes)) + 2
    taken = chosen(
        [report] * min(subtasks, max_subtasks),  # all are alike, and only their number is used
        compacted_in={},
        max_bytes=options.round_bytes,
        subtask_bytes=options.subtask_bytes,
    )
    return Estimate(
        target=target,
        rows_in_state=target.state_bytes / formulas.state_row_bytes,
        epoch=epoch,
        record_bytes=record,
        metadata_bytes=metadata,
        files=subtasks * files,
        objects=objects,
        subtask_seconds=formulas.own_fixed + formulas.own_per_row * target.rows + request_seconds,
        request_seconds=request_seconds,
        commit_seconds=formulas.commit_per_subtask * subtasks
        + formulas.driver.put * latencies.put(int(record))
        + formulas.driver.get * latencies.get(int(record)),
        cleanup_seconds=cleanup,
        sweep_seconds=listed,
        open_seconds=opening,
        cold_seconds=formulas.cold_share * state / latencies.bytes_per_second,
        compaction_bytes=subtasks * put_bytes * formulas.compaction_factor,
        round_bytes=float(options.round_bytes),
        round_subtasks=len(taken),
    )
