"""Tables in SQL databases, exactly once: the epoch is compared and written in the transaction that writes its rows.

`_statebed_commits` has a row per table: the sink that owns it, the newest run that opened it, and its newest epoch.
Each transaction locks that row first. An epoch that the table has is skipped, a superseded run is refused, and a crash
leaves nothing behind. Rows are written in batches of bounded size, in one transaction.

Without a key, rows are appended. With a key, the table has one row per key: additions insert or update it, a retraction
without an addition deletes it.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from statebed.checkpoint import Publication
from statebed.errors import InputError, RollbackError, SinkError, SinkUnavailableError
from statebed.format.stream_schema import WEIGHT, Output
from statebed.logs import id_logger
from statebed.protocol import Guarantee, PublishStep, SinkPosition
from statebed.protocol.publication import decide_delivery
from statebed.sinks.base import BaseSink, outbox_batches
from statebed.sinks.sql.commits_table import COMMITS, CommitsTable
from statebed.sinks.sql.database import Database, ExistingColumn, TableName, Transaction, listed, quoted
from statebed.sinks.sql.statements import GONE, NET, STAGED, SqlKeyedTable

_RESERVED = "_statebed_"
BATCH_ROWS = 1 << 16
"""Maximum number of rows that are in memory as database values at a time."""
_ATTEMPTS = 3
_WAIT_SECONDS = 1.0
T = TypeVar("T")

_logger = id_logger(__name__)


@dataclass(frozen=True)
class SqlTable:
    """A result table: its name, columns and key."""

    name: TableName
    output: Output
    key: tuple[str, ...]
    """Columns that identify a row; empty if rows are appended."""
    epoch_column: str | None
    """Column for the number of the epoch, or None."""
    one_row: bool = False
    """Whether the table holds one row that is replaced; the key is empty then."""

    @property
    def is_updated(self) -> bool:
        """Whether rows replace others, instead of being appended."""
        return bool(self.key) or self.one_row

    @property
    def fields(self) -> list[pa.Field]:
        """All columns that are written."""
        epoch = [pa.field(self.epoch_column, pa.int64(), nullable=False)] if self.epoch_column else []
        return [*self.output.columns, *epoch]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


class SqlTableSink(BaseSink):
    """Publishes epochs to a table in a SQL database."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    keeps_position: ClassVar[bool] = True

    def __init__(self, *, sink_id: str, job_id: str, database: Database, table: SqlTable) -> None:
        super().__init__(sink_id)
        self._owner = f"{job_id}/{sink_id}"
        self.kind = database.product.lower()
        self._database = database
        self._table = table
        self._commits = CommitsTable(database, table.name, where=self._where)
        self._left: set[SinkPosition] = set()
        """Positions that this sink may have left behind: the last one that it committed, and one whose commit may have
        failed or not.
        """
        self._leaving: SinkPosition | None = None
        """Position that the transaction in progress writes."""
        if database.folded(table.name.table).lower().startswith(_RESERVED):
            raise InputError(
                f"the table name {table.name} starts with {_RESERVED}, which is reserved for statebed",
                fix="choose another table name",
            )
        self._check_names()
        for field in table.fields:
            database.type_of(field)  # raises if there is no type

    @property
    def described(self) -> str:
        way = f"one row per {', '.join(self._table.key)}" if self._table.key else "rows are added"
        way = "one row" if self._table.one_row else way
        return f"{self._where}, {way}"

    @property
    def target(self) -> str:
        name = TableName(
            self._database.folded(self._table.name.table),
            None if self._table.name.schema is None else self._database.folded(self._table.name.schema),
        )
        return f"table {name} in {self._database.real_place}"

    @property
    def _where(self) -> str:
        return f"{self._database.product} table {self._table.name} in {self._database.place}"

    def _check_names(self) -> None:
        """Raise InputError for columns that the database cannot have, or not beside each other."""
        database, by_folded = self._database, dict[str, str]()
        if "\0" in str(self._table.name) or not self._table.name.table:
            raise InputError(
                f"{self._table.name.table!r} cannot be the name of a table", fix="choose another table name"
            )
        for name in self._table.columns:
            problem = database.name_problem(name)
            if problem is not None:
                raise InputError(
                    f"{database.product} cannot have a column {name!r}: {problem}",
                    where=self._where,
                    fix="rename the column with select(...) before it is written",
                )
            other = by_folded.setdefault(database.folded(name), name)
            if other != name:
                raise InputError(
                    f"the columns {other!r} and {name!r} are the same column for {database.product}",
                    where=self._where,
                    fix="rename one of them with select(...) before they are written",
                )

    # ---- before a run opens ----------------------------------------------------------------------------------

    def peek(self) -> SinkPosition | None:
        def held(transaction: Transaction) -> SinkPosition | None:
            position = self._position(transaction)
            if position is None or self._existing(transaction) is not None:
                return position
            return SinkPosition(run=position.run, epoch=0)  # the table was dropped, and its epochs with it

        return self._looked_up(held)

    def owner_of_target(self) -> str:
        rows = self._looked_up(self._commits.rows) or []
        return next((row.owner for row in rows), "")

    def _looked_up(self, look: Callable[[Transaction], T | None]) -> T | None:
        """Call `look` in a transaction if the commits table exists, without creating anything."""
        if not self._database.exists:
            return None
        with self._database.transaction() as transaction:
            self._existing(transaction)  # refuses a table that cannot take the rows
            has_commits = transaction.columns(self._commits.name) is not None
            return look(transaction) if has_commits else None

    def check(self, *, last_number: int) -> None:
        position = self.peek()
        if position is not None and max(position.epoch, position.run) > last_number:
            raise InputError(
                f"the table holds epoch {position.epoch} of run {position.run}, but the job's log ends at "
                f"{last_number}: the state was deleted, or is another job's",
                where=self._where,
                fix=f"choose another table, or remove it and its row in {COMMITS}, or restore the state it belongs to",
            )

    def probe(self) -> None:
        """Create what a run would create, and roll it back."""
        with contextlib.suppress(_TakenBackError), self._database.transaction() as transaction:
            self._make(transaction)
            raise _TakenBackError

    # ---- the sink --------------------------------------------------------------------------------------------

    def open(self, run: int) -> SinkPosition | None:
        def opened(transaction: Transaction) -> SinkPosition | None:
            created = self._make(transaction)
            before = self._position(transaction)
            if before is not None and created:
                before = SinkPosition(run=before.run, epoch=0)
            if before is not None and before.run >= run:
                raise self.fenced(run, before.run, where=self._where)
            self._remember(transaction, SinkPosition(run=run, epoch=before.epoch if before else 0))
            return before

        return self._transacted(opened)

    def roll_back(self, run: int, epoch: int) -> None:
        """Delete the rows of later epochs; raise RollbackError unless the table has an epoch column and no key."""

        def rolled_back(transaction: Transaction) -> None:
            position = self._position(transaction)
            if position is not None and position.run != run:
                raise self.fenced(run, position.run, where=self._where)
            if position is None or position.epoch <= epoch:
                return
            if self._table.epoch_column is None or self._table.is_updated:
                raise self._cannot_go_back(position.epoch, epoch)
            later = f"{quoted(self._table.epoch_column)} > {self._database.parameter(1)}"
            transaction.run(f"delete from {self._table.name.sql} where {later}", epoch)
            self._remember(transaction, SinkPosition(run=run, epoch=epoch))

        self._transacted(rolled_back)

    def clear(self, run: int) -> None:
        """Delete all rows."""

        def cleared(transaction: Transaction) -> None:
            position = self._position(transaction)
            if position is not None and position.run != run:
                raise self.fenced(run, position.run, where=self._where)
            transaction.run(f"delete from {self._table.name.sql}")
            self._remember(transaction, SinkPosition(run=run, epoch=0))

        self._transacted(cleared)

    def publish(self, publication: Publication) -> None:
        if publication.files:
            self._publish(publication)

    def skip(self, publication: Publication) -> None:
        """Advance the position only."""
        self._publish(replace(publication, files=()))

    def _publish(self, publication: Publication) -> None:
        def published(transaction: Transaction) -> None:
            position = self._position(transaction)
            delivery = decide_delivery(position, run=publication.run, epoch=publication.epoch)
            if delivery is PublishStep.REFUSE:
                raise self.fenced(publication.run, position.run if position else 0, where=self._where)
            self._check_unchanged(position)
            if delivery is PublishStep.WRITE:
                if publication.files:
                    self._write(transaction, publication)
                self._remember(transaction, SinkPosition(run=publication.run, epoch=publication.epoch))

        self._transacted(published)

    def _transacted(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a transaction. If the connection fails, retry: the epoch is compared again, so nothing is done
        twice.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            self._leaving = None
            try:
                with self._database.transaction() as transaction:
                    result = work(transaction)
            except SinkUnavailableError as error:
                if self._leaving is not None:
                    self._left.add(self._leaving)
                if attempt == _ATTEMPTS:
                    raise
                logger = _logger.about(sink=self.sink_id)
                logger.warning("sink %s will be retried in %g s: %s", self.sink_id, _WAIT_SECONDS, error.what)
                time.sleep(_WAIT_SECONDS)
            else:
                if self._leaving is not None:
                    self._left = {self._leaving}
                return result
        raise AssertionError

    # ---- inside a transaction --------------------------------------------------------------------------------

    def _write(self, transaction: Transaction, publication: Publication) -> None:
        table = self._table
        existing = self._existing(transaction)
        if existing is None:
            dropped = SinkError(
                "the table no longer exists; it was dropped or renamed while the job ran",
                where=self._where,
                fix="restore or rename it back, then start the job again: the epoch is committed and is published "
                "first; without the table, the start is refused and lists the choices",
            )
            dropped.is_of_target = True
            raise dropped
        if not table.is_updated:
            for batch in self._batches(publication, table.columns):
                self._check_nulls(batch, existing, publication)
                transaction.load(table.name.sql, table.columns, batch)
            return
        keyed = SqlKeyedTable(
            table=table.name.sql,
            columns=table.columns,
            key=table.key,
            types=tuple(self._database.staging_type(existing[name]) for name in table.columns),
            temporary_ends=self._database.temporary_ends,
        )
        transaction.run(keyed.stage())
        columns = (*table.columns, WEIGHT)
        for batch in self._batches(publication, columns):
            self._check_nulls(batch, existing, publication)
            self._check_key_texts(batch, existing, publication)
            transaction.load(STAGED, columns, batch, table.key)
        transaction.run(keyed.net())
        if table.one_row:
            self._check_key(transaction.run(keyed.several()), publication)
            for statement in keyed.replacement():
                transaction.run(statement)
            return
        transaction.run(keyed.gone())
        self._check_key(transaction.run(keyed.repeated()), publication)
        for statement in filter(None, map(self._database.analyse, (NET, GONE))):
            transaction.run(statement)
        for nulls in transaction.run(keyed.null_patterns()):
            for statement in keyed.changes([bool(null) for null in nulls]):
                transaction.run(statement)

    def _batches(self, publication: Publication, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with these columns. Columns that the outbox lacks are the epoch, and a weight of one."""
        added = {self._table.epoch_column: publication.epoch, WEIGHT: 1}
        for batch in outbox_batches(publication, BATCH_ROWS):
            names = batch.schema.names
            arrays = [
                batch.column(name) if name in names else pa.repeat(pa.scalar(added[name], pa.int64()), batch.num_rows)
                for name in columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _check_nulls(
        self, batch: pa.RecordBatch, existing: Mapping[str, ExistingColumn], publication: Publication
    ) -> None:
        """Raise SinkError for a null in a column where the database would invent a number."""
        for name in self._table.columns:
            if existing[name].numbers_nulls and batch.column(name).null_count:
                raise SinkError(
                    f"epoch {publication.epoch} has a null in the column {name}, which is the INTEGER PRIMARY KEY of "
                    f"the table: {self._database.product} would replace it by a number of its own",
                    where=self._where,
                    fix=f"rebuild the table, with its rows, so that {name} is INTEGER with a unique index and no "
                    "primary key; then start the job again: the epoch is committed and is published first",
                )

    def _check_key_texts(
        self, batch: pa.RecordBatch, existing: Mapping[str, ExistingColumn], publication: Publication
    ) -> None:
        """Raise SinkError for a text that a column of the key would change, into one that another key may have."""
        for name in self._table.key:
            column, texts = existing[name], batch.column(name)
            if not column.kept_texts or not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
                continue
            changed = pc.filter(texts, pc.invert(pc.match_substring_regex(texts, column.kept_texts)))
            if len(changed):
                raise SinkError(
                    f"epoch {publication.epoch} has the key {name} = {changed[0].as_py()!r}, which a column of type "
                    f"{column.type} does not keep as it is: different keys could become equal",
                    where=self._where,
                    fix=f"change the column {name} to text; then start the job again: the epoch is committed and is "
                    "published first",
                )

    def _check_key(self, repeated: Sequence[tuple[object, ...]], publication: Publication) -> None:
        for *key, rows in repeated:
            named = dict(zip(self._table.key, key, strict=True))
            raise SinkError(
                f"epoch {publication.epoch} has {rows} rows with the key {named}",
                where=self._where,
                fix="declare a key that identifies every row of the stream: write(..., key=[...])",
            )

    def _make(self, transaction: Transaction) -> bool:
        """Create the table and the commits table if they do not exist. Return whether the table was created."""
        table, database = self._table, self._database
        if database.making_lock:
            transaction.run(database.making_lock)
        self._commits.create(transaction)
        if self._existing(transaction) is not None:
            transaction.replace_unique_index(table.name, table.key)
            self._check_rows_by_key(transaction)
            return False
        typed = ", ".join(f"{quoted(field.name)} {database.type_of(field)}" for field in table.fields)
        transaction.run(f"create table {table.name.sql} ({typed})")
        if table.key:
            transaction.make_unique_index(table.name, table.key)
        return True

    def _check_rows_by_key(self, transaction: Transaction) -> None:
        """Raise InputError if the existing table has several rows with one key, each of which would be updated."""
        key = self._table.key
        if not key:
            return
        columns, chosen = listed(key), ""
        if transaction.has_unique_index(self._table.name, key):
            # The index may take nulls for distinct.
            chosen = f" where {' or '.join(f'{quoted(name)} is null' for name in key)}"
        repeated = transaction.run(
            f"select {columns} from {self._table.name.sql}{chosen} group by {columns} having count(*) > 1 limit 1"
        )
        for values in repeated:
            shown = ", ".join(f"{name} {value!r}" for name, value in zip(key, values, strict=True))
            raise InputError(
                f"the table has several rows with the key {shown}, but the sink keeps one row per {', '.join(key)}",
                where=self._where,
                fix="delete all but one row of each key, declare a key that identifies every row, or choose a new "
                "table name and let statebed create it",
            )

    def _existing(self, transaction: Transaction) -> Mapping[str, ExistingColumn] | None:
        """Return the columns of the table by the names that the rows have, or None if the table is missing; raise
        InputError if it cannot hold the rows.
        """
        existing = transaction.columns(self._table.name)
        if existing is None:
            return None
        fields = {field.name: field for field in self._table.fields}
        written_as = {self._database.folded(name): name for name in fields}
        columns = {written_as.get(self._database.folded(name), name): column for name, column in existing.items()}
        problems = [f"it has no column {name}" for name in fields if name not in columns]
        problems += [
            f"its column {name} may not be null, has no default, and is not written"
            for name, column in columns.items()
            if column.must_be_given and name not in fields
        ]
        misfits = [self._database.mismatch(fields[name], columns[name]) for name in fields if name in columns]
        problems += [problem for problem in misfits if problem]
        foldings = {name: transaction.folding(self._table.name, name) for name in self._table.key if name in columns}
        problems += [
            f"its key column {name} has {folding}, which treats different keys as equal"
            for name, folding in foldings.items()
            if folding
        ]
        if problems:
            raise InputError(
                f"the table cannot hold the rows: {'; '.join(problems)}",
                where=self._where,
                fix="change the table, select other columns, or choose a new table name and let statebed create it",
            )
        return columns

    def _position(self, transaction: Transaction) -> SinkPosition | None:
        """Return the position in the commits table, and lock its row until the end of the transaction."""
        return self._commits.position(transaction, self._owner)

    def _check_unchanged(self, position: SinkPosition | None) -> None:
        """Raise SinkError if the position in the commits table is not one that this sink has left there."""
        if not self._left or position in self._left:
            return
        left = " or ".join(
            f"run {left_position.run}, epoch {left_position.epoch}"
            for left_position in sorted(self._left, key=lambda left_position: left_position.epoch)
        )
        state = "is gone" if position is None else f"has run {position.run}, epoch {position.epoch}"
        raise SinkError(
            f"the row of the table in {COMMITS} {state}, but this run left {left} there: it was edited, or the "
            "database was restored from a backup, while the job ran",
            where=self._where,
            fix=f"restore {COMMITS} together with the table; then start the job again: it compares the position with "
            "its log, and publishes or refuses what is missing",
        )

    def _remember(self, transaction: Transaction, position: SinkPosition) -> None:
        self._commits.remember(transaction, self._owner, position)
        self._leaving = position

    def _cannot_go_back(self, held: int, epoch: int) -> RollbackError:
        return RollbackError(
            f"the table holds epoch {held} and cannot be rolled back to {epoch} automatically: "
            + ("replaced rows are not kept" if self._table.is_updated else "no column tells which rows are newer"),
            where=self._where,
            fix=f"restore the table to epoch {epoch} (from a backup) and set epoch = {epoch} in its row of {COMMITS}, "
            f"or start with sinks={{{self.sink_id!r}: 'rebuild'}} if its results are kept in state, or write to a new "
            "table; a table without key that has epoch_column= is rolled back automatically",
        )


class _TakenBackError(Exception):
    """Ends a transaction that only probed the database."""
