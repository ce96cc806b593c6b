"""The table `_statebed_commits`: the owner of each result table, the newest run that opened it, its newest epoch."""

from dataclasses import dataclass

from statebed.errors import InputError, SinkError
from statebed.protocol import SinkPosition
from statebed.sinks.sql.database import Database, TableName, Transaction, listed

COMMITS = "_statebed_commits"


@dataclass(frozen=True)
class CommitRow:
    """Row of a result table."""

    table_name: str
    owner: str
    position: SinkPosition


class CommitsTable:
    """The row of one result table."""

    def __init__(self, database: Database, table: TableName, *, where: str) -> None:
        self._database = database
        self._table = table
        self._where = where
        self.name = table.beside(COMMITS)

    def create(self, transaction: Transaction) -> None:
        """Create the commits table if it does not exist."""
        transaction.run(
            f"create table if not exists {self.name.sql} (table_name text primary key, "
            "owner text not null, run bigint not null, epoch bigint not null)"
        )

    def rows(self, transaction: Transaction, *, lock: bool = True) -> list[CommitRow]:
        """Return the rows of the table, under any spelling of its name that the database treats as equal. With `lock`,
        they stay locked until the end of the transaction.
        """
        database = self._database
        clause = database.lock_clause if lock else ""
        which = f"{database.same_table('table_name', 1)}{clause}"
        statement = f"select table_name, owner, run, epoch from {self.name.sql} where {which}"
        rows = transaction.run(statement, database.folded(self._table.table))
        return [CommitRow(str(name), str(owner), self._position(run, epoch)) for name, owner, run, epoch in rows]

    def position(self, transaction: Transaction, owner: str, *, lock: bool = True) -> SinkPosition | None:
        """Return the position, or None if there is none; raise InputError if the table belongs to another sink."""
        rows = self.rows(transaction, lock=lock)
        for row in rows:
            if row.owner != owner:
                raise InputError(
                    f"the table belongs to {row.owner}, not to {owner}",
                    where=self._where,
                    fix=f"give each job and sink its own table; the old name of a renamed sink is in the column owner "
                    f"of {COMMITS}: it keeps its table with write(..., name={row.owner.rpartition('/')[2]!r})",
                )
        return rows[0].position if rows else None

    def remember(self, transaction: Transaction, owner: str, position: SinkPosition) -> None:
        """Store a position."""
        rows = self.rows(transaction)
        marks = [self._database.parameter(number) for number in range(1, 5)]
        columns = ("table_name", "owner", "run", "epoch")
        transaction.run(
            f"insert into {self.name.sql} ({listed(columns)}) values ({', '.join(marks)}) "
            "on conflict (table_name) do update set run = excluded.run, epoch = excluded.epoch",
            rows[0].table_name if rows else self._table.table,
            owner,
            position.run,
            position.epoch,
        )

    def _position(self, run: object, epoch: object) -> SinkPosition:
        """Return the position of a row. Raise SinkError if run and epoch are not numbers from 0."""
        texts = (str(run), str(epoch))
        if not all(text.isascii() and text.isdigit() for text in texts):
            raise SinkError(
                f"the row of the table in {COMMITS} has no valid run and epoch: run {run!r}, epoch {epoch!r}",
                where=self._where,
                fix=f"restore {COMMITS} from a backup together with the table; or delete the row, and the next start "
                "lists the choices for a sink without a position",
            )
        return SinkPosition(run=int(texts[0]), epoch=int(texts[1]))
