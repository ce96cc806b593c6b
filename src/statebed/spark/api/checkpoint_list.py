"""The checkpoints of a job as shown in a notebook: newest first, one line each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from statebed.inspect.records import LogEntry
from statebed.present import notebook, units


@dataclass(frozen=True, repr=False)
class CheckpointList(Sequence[LogEntry]):
    """The newest records of a job."""

    job: str
    epochs: tuple[LogEntry, ...]
    """Entries of the log, newest first."""

    @overload
    def __getitem__(self, index: int) -> LogEntry: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[LogEntry, ...]: ...

    def __getitem__(self, index: int | slice) -> LogEntry | tuple[LogEntry, ...]:
        return self.epochs[index]

    def __len__(self) -> int:
        return len(self.epochs)

    def __repr__(self) -> str:
        return f"<Checkpoints of job {self.job}: {', '.join(str(epoch.epoch) for epoch in self.epochs) or 'none'}>"

    def _repr_html_(self) -> str:
        columns = ["epoch", "record", "run", "rows in", "late", "out", "watermark", "took", "size", "savepoints"]
        rows = [
            (
                epoch.epoch,
                epoch.problem or (epoch.kind if epoch.status == "complete" else epoch.status),
                epoch.run,
                epoch.rows_in,
                epoch.rows_late,
                epoch.rows_out,
                notebook.moment(epoch.watermark_us),
                units.duration(epoch.duration_us),
                units.size(epoch.bytes),
                ", ".join(epoch.savepoints) or units.NOTHING,
            )
            for epoch in self.epochs
        ]
        return notebook.block(f"checkpoints of job {self.job}", notebook.table(columns, rows))
