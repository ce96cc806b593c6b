"""Sink that publishes epochs to a table in a lakehouse format, exactly once.

Every commit to the table stores the sink's run and epoch, and succeeds only if no other commit was made since the
position was compared. An epoch that the table already has is skipped, a superseded run is refused, and a crash leaves
nothing but files that no version lists.

Without a key, rows are appended; outbox files are copied as they are if the table is neither partitioned nor sorted.
With a key, the table has one row per key: files that hold a changed key are replaced by files without it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from statebed.checkpoint import Publication
from statebed.errors import InputError, RollbackError, SinkError
from statebed.format.digest import digest
from statebed.format.names import EPOCH_DIGITS
from statebed.format.stream_schema import WEIGHT
from statebed.logs import id_logger
from statebed.protocol import Guarantee, PublishStep, SinkPosition
from statebed.protocol.publication import decide_delivery
from statebed.sinks.base import BaseSink
from statebed.sinks.lake.arrow_kinds import check_names
from statebed.sinks.lake.file_packer import FilePacker
from statebed.sinks.lake.keyed_rewrite import KeyedRewrite
from statebed.sinks.lake.lake_table import LakeFile, LakeTable, Mark, TableVersion
from statebed.sinks.row_kinds import ROW_KIND
from statebed.sinks.row_shape import Form, RowShape, shaped_rows

_ATTEMPTS = 100
"""Number of attempts to commit when others commit to the table at the same time."""
COMPACT_EVERY = 16
"""Number of publications after which the sink looks for small files."""
COMPACTED_FILES = 16
"""Smallest number of small files in a partition that are merged."""
COMPACTED_AT_ONCE = 256
"""Largest number of files that one commit merges."""
_logger = id_logger(__name__)


@dataclass(frozen=True)
class LakeRows:
    """Rows that the sink writes: appended in a shape, or one row per key."""

    shape: RowShape
    key: tuple[str, ...]
    """Columns that identify a row; empty if rows are appended, or if there is one row."""
    one_row: bool = False
    """Whether the table holds one row that is replaced."""

    @property
    def is_updated(self) -> bool:
        """Whether rows replace others, instead of being appended."""
        return bool(self.key) or self.one_row

    @property
    def columns(self) -> pa.Schema:
        return self.shape.schema

    @property
    def is_copied(self) -> bool:
        """Whether outbox files hold the rows as the table wants them."""
        return not self.is_updated and self.shape.epoch_column is None and self.shape.form in {Form.ROWS, Form.WEIGHTS}


class LakeSink(BaseSink):
    """Publishes epochs to a Delta or Iceberg table."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    keeps_position: ClassVar[bool] = True

    def __init__(self, *, sink_id: str, job_id: str, table: LakeTable, rows: LakeRows, compact: bool = True) -> None:
        super().__init__(sink_id)
        self._owner = f"{job_id}/{sink_id}"
        self.kind = table.product.lower()
        self._table = table
        self._rows = rows
        self._compact = compact
        self._published = 0
        self._left: SinkPosition | None = None
        """Position that this sink wrote last."""
        self.place = table.place
        check_names(rows.columns, table.product)
        table.check_types(rows.columns)

    @property
    def described(self) -> str:
        way = f"one row per {', '.join(self._rows.key)}" if self._rows.key else "rows are appended"
        way = "one row" if self._rows.one_row else way
        return f"{self._table.product} table {self._table.where}, {way}"

    @property
    def target(self) -> str:
        return self._table.target

    # ---- before a run opens ----------------------------------------------------------------------------------

    def owner_of_target(self) -> str:
        version = self._table.current(self._owner)
        return version.owner if version is not None else ""

    def peek(self) -> SinkPosition | None:
        version = self._checked()
        return version.position if version is not None else None

    def check(self, *, last_number: int) -> None:
        position = self.peek()
        if position is not None and max(position.epoch, position.run) > last_number:
            raise InputError(
                f"the table holds epoch {position.epoch} of run {position.run}, but the job's log ends at "
                f"{last_number}: the state was deleted, or is another job's",
                where=self._table.where,
                fix="choose another table, remove this one, or restore the state that belongs to it",
            )

    def probe(self) -> None:
        self._table.probe()

    # ---- the sink --------------------------------------------------------------------------------------------

    def open(self, run: int) -> SinkPosition | None:
        """Create the table if needed, fence older runs, add new columns, and return the position before that."""
        for _ in range(_ATTEMPTS):
            version = self._checked()
            if version is None:
                self._table.create(self._rows.columns, self._owner)
                continue
            before = version.position
            if before is not None and before.run >= run:
                raise self.fenced(run, before.run, where=self._table.where)
            left = SinkPosition(run, before.epoch if before else 0)
            if self._table.claim(version, Mark(self._owner, left.run, left.epoch)):
                self._left = left
                self._evolve(run)
                return before
        raise self._contended()

    def roll_back(self, run: int, epoch: int) -> None:
        """Return to the files of an older epoch, as long as they are stored."""
        self._retract(run, lambda version: self._files_at(version, epoch), epoch)

    def clear(self, run: int) -> None:
        """Remove all rows."""
        self._retract(run, lambda _: (), 0, always=True)

    def publish(self, publication: Publication) -> None:
        if publication.files:
            self._publish(publication)

    def skip(self, publication: Publication) -> None:
        """Commit the position only."""
        self._publish(replace(publication, files=()))

    def _publish(self, publication: Publication) -> None:
        mark = Mark(self._owner, publication.run, publication.epoch)
        for _ in range(_ATTEMPTS):
            version = self._existing()
            delivery = decide_delivery(version.position, run=publication.run, epoch=publication.epoch)
            if delivery is PublishStep.REFUSE:
                newer = version.position.run if version.position else 0
                raise self.fenced(publication.run, newer, where=self._table.where)
            self._check_unchanged(version.position)
            if delivery is PublishStep.SKIP:
                return
            if not publication.files:
                if self._table.claim(version, mark):
                    self._left = SinkPosition(mark.run, mark.epoch)
                    return
                continue
            added, removed = self._change(version, publication)
            if self._table.commit(version, mark, added=added, removed=removed):
                self._left = SinkPosition(mark.run, mark.epoch)
                self._published += 1
                if self._compact and self._published % COMPACT_EVERY == 0:
                    self._merge_small_files(mark)
                return
        raise self._contended()

    # ---- inside ----------------------------------------------------------------------------------------------

    def _checked(self, run: int | None = None) -> TableVersion | None:
        """Return the newest version, or None. Raise InputError if the table has another owner or cannot hold the rows,
        and FencedError if another run than `run` has opened it.
        """
        version = self._table.current(self._owner)
        if version is None:
            return None
        version.check_owner(self._owner, where=self._table.where)
        problems = [
            *self._table.problems(version, self._rows.columns, rewrites=self._rows.is_updated),
            *self._mixed_rows(version),
        ]
        if problems:
            raise InputError(
                f"the table cannot hold the rows: {'; '.join(problems)}",
                where=self._table.where,
                fix="change the table, select other columns, or choose a new table and let statebed create it",
            )
        if run is not None and version.position is not None and version.position.run != run:
            raise self.fenced(run, version.position.run, where=self._table.where)
        return version

    def _mixed_rows(self, version: TableVersion) -> list[str]:
        """Return problems of rows of another form than those that the sink has written: readers could not tell which
        rows still hold.
        """
        if version.position is None or not version.position.epoch:
            return []
        now, before = set(self._rows.columns.names), {name.lower() for name in version.columns.names}
        forms = (WEIGHT, ROW_KIND)
        added = [f"its rows have no {name}, which later rows would have" for name in forms if name in now - before]
        return added + [f"its rows have {name}, which later rows would lack" for name in forms if name in before - now]

    def _check_unchanged(self, position: SinkPosition | None) -> None:
        """Raise SinkError if the table is behind the position that this sink left there: later epochs would hide that
        some are missing.
        """
        left = self._left
        if left is None or (position is not None and (position.run, position.epoch) >= (left.run, left.epoch)):
            return
        state = "has no position" if position is None else f"is at epoch {position.epoch} of run {position.run}"
        problem = SinkError(
            f"the table {state}, but this run left epoch {left.epoch} of run {left.run} there: it was rolled back, or "
            "restored from a backup, while the job ran",
            where=self._table.where,
            fix="start the job again: it compares the position with its log, and publishes or refuses what is missing",
        )
        problem.is_of_target = True
        raise problem

    def _existing(self, run: int | None = None) -> TableVersion:
        version = self._checked(run)
        if version is None or version.owner != self._owner:
            problem = SinkError(
                "the table no longer exists, or was replaced; that happened while the job ran",
                where=self._table.where,
                fix="restore it, then start the job again: the epoch is committed and is published first; without the "
                "table, the start is refused and lists the choices",
            )
            problem.is_of_target = True
            raise problem
        return version

    def _evolve(self, run: int) -> None:
        for _ in range(_ATTEMPTS):
            version = self._existing(run)
            known = {name.lower() for name in version.columns.names}
            missing = [field for field in self._rows.columns if field.name.lower() not in known]
            if not missing or self._table.evolve(version, pa.schema(missing)):
                return
        raise self._contended()

    def _change(self, version: TableVersion, publication: Publication) -> tuple[list[LakeFile], list[LakeFile]]:
        """Write the files of an epoch. Return them, and those that they replace."""
        packer = self._packer(version, run=publication.run, epoch=publication.epoch)
        if self._rows.is_copied and packer.is_plain:
            return [packer.copied(publication.read(file)) for file in publication.files], []
        if not self._rows.is_updated:
            shaped = shaped_rows(publication, self._rows.shape)
            packer.add(shaped if shaped is not None else version.columns.empty_table())
            return packer.finished(), []
        rewrite = KeyedRewrite(self._table, version, self._rows, publication)
        removed = []
        for file, kept in rewrite.replaced():
            removed.append(file)
            packer.add(kept)
        packer.add(rewrite.rows_after)
        return packer.finished(), removed

    def _packer(self, version: TableVersion, *, run: int, epoch: int) -> FilePacker:
        def name(number: int, data: bytes) -> str:
            # The run is part of the name, so a superseded run never overwrites a file of this one.
            return f"part-{epoch:0{EPOCH_DIGITS}d}-{run}-{number}-{digest(data)}.parquet"

        return FilePacker(self._table, version, name=name, default_order=self._rows.key)

    def _files_at(self, version: TableVersion, epoch: int) -> Sequence[LakeFile]:
        problems = self._table.problems(version, self._rows.columns, rewrites=True)
        old = None if problems else self._table.version_of(version, self._owner, epoch)
        files = () if old is None else self._table.files(old)
        held = {file.path for file in self._table.files(version)} if old is not None else set()
        gone = [file.path for file in files if file.path not in held and not self._table.exists(file)]
        if old is not None and not gone:
            return files
        why = "; ".join(problems) or (
            f"{len(gone)} of its files were deleted, among them {gone[0]}" if gone else "its log no longer lists it"
        )
        at = version.position.epoch if version.position else 0
        raise RollbackError(
            f"the table holds epoch {at} and cannot be rolled back to {epoch}: {why}",
            where=self._table.where,
            fix=f"restore the table to epoch {epoch} from a backup, or start with "
            f"sinks={{{self.sink_id!r}: 'rebuild'}} if its results are kept in state, or write to a new table",
        )

    def _retract(
        self, run: int, files: Callable[[TableVersion], Sequence[LakeFile]], epoch: int, *, always: bool = False
    ) -> None:
        for _ in range(_ATTEMPTS):
            version = self._existing(run)
            if not always and (version.position is None or version.position.epoch <= epoch):
                return
            wanted = {file.path: file for file in files(version)}
            held = {file.path: file for file in self._table.files(version)}
            added = [file for path, file in wanted.items() if path not in held]
            removed = [file for path, file in held.items() if path not in wanted]
            if self._table.commit(version, Mark(self._owner, run, epoch), added=added, removed=removed):
                self._left = SinkPosition(run, epoch)
                return
        raise self._contended()

    def _merge_small_files(self, mark: Mark) -> None:
        """Replace small files by larger ones. Stop at the first other commit or failure: a later round tries again."""
        try:
            self._merge(mark)
        except SinkError as error:
            logger = _logger.about(sink=self.sink_id, epoch=mark.epoch)
            logger.warning("sink %s: small files were not merged: %s", self.sink_id, error.what)

    def _merge(self, mark: Mark) -> None:
        version = self._existing(mark.run)
        if self._table.problems(version, self._rows.columns, rewrites=True):
            return
        for number, files in enumerate(small_files(self._table.files(version))):
            packer = self._packer(version, run=mark.run, epoch=mark.epoch)
            for file in files:
                packer.add(self._table.read(version, file))
            added = packer.finished(prefix=f"merged-{number}-")
            if not self._table.commit(version, mark, added=added, removed=files, changes_rows=False):
                return
            _logger.about(sink=self.sink_id, epoch=mark.epoch).info(
                "sink %s: %d small files were merged into %d", self.sink_id, len(files), len(added)
            )
            version = self._existing(mark.run)

    def _contended(self) -> SinkError:
        return SinkError(
            f"{_ATTEMPTS} commits to the table failed in succession, because others committed to it at the same time",
            where=self._table.where,
            fix="let other writers of the table wait, then start the job again",
        )


def small_files(files: Sequence[LakeFile]) -> Iterator[list[LakeFile]]:
    """Yield, for each partition with many small files, those to merge."""
    by_partition: dict[tuple[tuple[str, object], ...], list[LakeFile]] = {}
    for file in files:
        if file.size < FilePacker.TARGET_BYTES // 4:
            by_partition.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    for small in by_partition.values():
        if len(small) >= COMPACTED_FILES:
            yield sorted(small, key=lambda file: file.path)[:COMPACTED_AT_ONCE]
