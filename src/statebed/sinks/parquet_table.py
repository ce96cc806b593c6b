"""An own Parquet table, exactly once: the outbox files of an epoch are the table's files.

    {path}/epoch=000000000007/per_minute-0.{digest}.parquet
    {path}/_statebed/000000000001.json ...                       the manifest: which files the table consists of

Files are plain Parquet. The manifest alone says which are visible; a run that was superseded finds its entry's place
taken and stops. Read the table with `read_table(path)`, or hand `table_files(path)` to any engine:

    duckdb.read_parquet(table_files("out"))

The glob `out/epoch=*/*.parquet` sees the same rows, as long as nobody is rolling the table back; an epoch may be seen
there a moment before the manifest shows it.
"""

import contextlib
import re
import secrets

import pyarrow as pa
import pyarrow.parquet as pq

from statebed.checkpoint import Publication
from statebed.errors import CorruptObjectError, FencedError, InputError, StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.digest import crc32c
from statebed.format.names import EPOCH_DIGITS, check_name
from statebed.protocol import Delivery, Guarantee, SinkPosition
from statebed.protocol.publication import decide_delivery
from statebed.sinks.manifest import VERSION, Entry, Manifest, TableFile, TableState, decode_schema, encode_schema
from statebed.storage import get_storage_provider, probe_put_if_absent

_EPOCH_FOLDER = "epoch="
_GENERATION = re.compile(r"g([0-9]+)-")
_APPEND_ATTEMPTS = 100
"""How often an entry is tried again when another one took its number."""


class ParquetTableSink:
    """Publishes epochs to a Parquet table of its own."""

    def __init__(self, *, sink_id: str, path: str, job_id: str, schema: pa.Schema) -> None:
        self._sink_id = check_name("sink", sink_id)
        self._owner = f"{job_id}/{sink_id}"
        self._schema = schema
        self._store = get_storage_provider(path)
        self._manifest = Manifest(self._store)

    @property
    def sink_id(self) -> str:
        return self._sink_id

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    @property
    def url(self) -> str:
        return self._store.url

    def check(self, *, last_number: int) -> None:
        """Before a run opens: the table is free or this job's, and knows no epoch that the job's log does not."""
        state = self._checked()
        if max(state.epoch, state.run) > last_number:
            raise InputError(
                f"the table holds epoch {state.epoch} of run {state.run}, but the job's log ends at {last_number}: "
                "the state was deleted, or it is another one",
                where=self.url,
                fix="give the table another path, or remove the folder, or restore the state that belongs to it",
            )

    def probe(self) -> None:
        """Refuse a place that cannot be written, or a store on which two writers could both append one entry."""
        probe_put_if_absent(self._store)

    def open(self, run: int) -> SinkPosition | None:
        """Fence older runs; the position before that."""
        before = self._checked()
        for _ in range(_APPEND_ATTEMPTS):
            if before.number and before.run >= run:
                raise self._fenced(run, before)
            entry = self._entry("open", run=run, epoch=before.epoch, state=before, schema=encode_schema(self._schema))
            if self._manifest.append(entry, to=before):
                return before.position
            before = self._checked()
        raise self._fenced(run, before)

    def roll_back(self, run: int, epoch: int) -> None:
        """Make the files of epochs after `epoch` invisible, then remove them."""
        while True:
            state = self._checked()
            if state.run != run:
                raise self._fenced(run, state)
            if state.epoch <= epoch:
                return
            if self._manifest.append(self._entry("rollback", run=run, epoch=epoch, state=state), to=state):
                break
        # Files after a rollback have names of their own, so nobody can make these visible again. Those that a crash
        # left behind before they became visible go with them: whoever reads the folder by glob would see them.
        for folder in self._store.list_level("").folders:
            if _epoch_of(folder) > epoch:
                for info in self._store.list_level(folder).objects:
                    if _generation_of(info.path) <= state.generation:
                        with contextlib.suppress(StatebedError):
                            self._store.delete(info.path)

    def publish(self, publication: Publication) -> None:
        """Copy the files, then make them visible with one entry."""
        if not publication.files:
            return
        for _ in range(_APPEND_ATTEMPTS):
            state = self._checked()
            delivery = decide_delivery(state.position, run=publication.run, epoch=publication.epoch)
            if delivery is Delivery.REFUSE:
                raise self._fenced(publication.run, state)
            if delivery is Delivery.SKIP:
                return
            files = tuple(self._copy(publication, file, state.generation) for file in publication.files)
            entry = self._entry("epoch", run=publication.run, epoch=publication.epoch, state=state, files=files)
            if self._manifest.append(entry, to=state):
                return
        raise self._fenced(publication.run, self._manifest.refresh())

    def _copy(self, publication: Publication, file: pb.OutboxFile, generation: int) -> TableFile:
        # A superseded run may still be removing files that it rolled back: an epoch that returns has other names.
        name = f"g{generation}-{file.path.rpartition('/')[2]}" if generation else file.path.rpartition("/")[2]
        path = f"{_EPOCH_FOLDER}{publication.epoch:0{EPOCH_DIGITS}d}/{name}"
        self._store.put(path, publication.read(file))
        return TableFile(path=path, epoch=publication.epoch, size=file.size, rows=file.rows, crc32c=file.crc32c)

    def _entry(
        self,
        kind: str,
        *,
        run: int,
        epoch: int,
        state: TableState,
        schema: str = "",
        files: tuple[TableFile, ...] = (),
    ) -> Entry:
        return Entry(
            version=VERSION,
            number=state.number + 1,
            kind=kind,  # type: ignore[arg-type]  # one of the three, by the callers above
            owner=self._owner,
            run=run,
            epoch=epoch,
            nonce=secrets.token_hex(16),
            generation=state.generation,
            schema=schema,
            files=files,
        )

    def _checked(self) -> TableState:
        state = self._manifest.refresh()
        if state.number and state.owner != self._owner:
            raise InputError(
                f"the table belongs to {state.owner}, this is {self._owner}",
                where=self.url,
                fix="give each job and sink a path of its own",
            )
        return state

    def _fenced(self, run: int, state: TableState) -> FencedError:
        return FencedError(
            f"the table was opened by run {state.run}; run {run} is superseded",
            where=self.url,
            fix="do not restart this process: a newer run owns the job",
        )


def _epoch_of(folder: str) -> int:
    """The epoch that a folder of the table holds files of; 0 for any other folder."""
    number = folder.removeprefix(_EPOCH_FOLDER)
    return int(number) if number != folder and number.isdigit() else 0


def _generation_of(path: str) -> int:
    found = _GENERATION.match(path.rpartition("/")[2])
    return int(found[1]) if found else 0


def table_files(path: str) -> list[str]:
    """Full names of the table's visible files, for any engine that reads Parquet."""
    store = get_storage_provider(path)
    return [f"{store.url}/{file.path}" for file in Manifest(store).refresh().files]


def read_table(path: str) -> pa.Table:
    """The table's rows as Arrow, every file checked; epochs in order."""
    store = get_storage_provider(path)
    state = Manifest(store).refresh()
    if not state.number:
        raise InputError(
            "there is no table of statebed's", where=store.url, fix="give the path of write('parquet', path=...)"
        )
    tables = []
    for file in state.files:
        data = store.get(file.path)
        if len(data) != file.size or crc32c(data) != file.crc32c:
            raise CorruptObjectError(
                "a file of the table is not what its manifest says",
                where=f"{store.url}/{file.path}",
                fix="restore it from a backup, or from the outbox of its epoch while that is retained",
            )
        tables.append(pq.read_table(pa.BufferReader(data)))
    return pa.concat_tables(tables, promote_options="default") if tables else decode_schema(state.schema).empty_table()
