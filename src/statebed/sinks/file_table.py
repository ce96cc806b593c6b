"""Tables of files with a manifest: each epoch becomes visible once and atomically, and a superseded run cannot add any.

    {path}/epoch=000000000007/{file}
    {path}/_statebed/                          the manifest: which files the table consists of

Only the manifest decides which files are visible. A superseded run finds the number of its entry taken and stops. The
subclasses decide what the files contain.
"""

import abc
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from statebed.checkpoint import Publication
from statebed.errors import InputError, StatebedError
from statebed.format.digest import crc32c
from statebed.logs import id_logger
from statebed.protocol import Guarantee, PublishStep, SinkPosition
from statebed.protocol.publication import decide_delivery
from statebed.sinks.base import BaseSink
from statebed.sinks.manifest import (
    EPOCH_FOLDER,
    VERSION,
    Entry,
    Manifest,
    TableFile,
    TableState,
    encode_schema,
    epoch_folder,
)
from statebed.sinks.places import Place, real_place
from statebed.storage import get_storage_provider, probe_put_if_absent, put_verified

_GENERATION = re.compile(r"g([0-9]{1,9})-(?![0-9]+\.)")
"""Prefix of files that were written after a rollback. `g9-0.{digest}.parquet` has none: its operator is called g9."""
_APPEND_ATTEMPTS = 100
"""Number of attempts to append an entry when another one takes its number."""


_logger = id_logger(__name__)


@dataclass(frozen=True)
class FileContent:
    """A file that an epoch adds. Its name depends on its content: same content, same name."""

    name: str
    data: bytes
    rows: int


class FileTableSink(BaseSink, abc.ABC):
    """Publishes epochs to its own table of files."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    keeps_position: ClassVar[bool] = True

    def __init__(self, *, sink_id: str, path: str, job_id: str, schema: pa.Schema) -> None:
        super().__init__(sink_id)
        self._owner = f"{job_id}/{sink_id}"
        self._schema = schema
        self._store = get_storage_provider(path)
        self.place = Place(self._store.url)
        self._manifest = Manifest(self._store)

    @abc.abstractmethod
    def contents(self, publication: Publication, *, first: bool) -> Iterator[FileContent]:
        """Yield the files of an epoch. `first` is set if the table has no file yet."""

    def schema_from(self, state: TableState) -> pa.Schema:  # noqa: ARG002 - for tables whose columns may change
        """Return the columns of the table from this run on."""
        return self._schema

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def target(self) -> str:
        return real_place(self.url)

    def owner_of_target(self) -> str:
        return self._manifest.refresh().owner

    def peek(self) -> SinkPosition | None:
        return self._checked().position

    def check(self, *, last_number: int) -> None:
        """Raise InputError unless the table is unused, or is this job's and has no epoch that its log lacks."""
        state = self._checked()
        if max(state.epoch, state.run) > last_number:
            raise InputError(
                f"the table holds epoch {state.epoch} of run {state.run}, but the job's log ends at {last_number}: "
                "the state was deleted, or is another job's",
                where=self.url,
                fix="give the table another path, remove the folder, or restore the state that belongs to it",
            )

    def probe(self) -> None:
        """Raise an error if the target is not writable, or if the store does not support put-if-absent."""
        probe_put_if_absent(self._store)

    def open(self, run: int) -> SinkPosition | None:
        """Fence older runs, and return the position before that."""
        before = self._checked()
        for _ in range(_APPEND_ATTEMPTS):
            if before.number and before.run >= run:
                raise self.fenced(run, before.run, where=self.url)
            schema = encode_schema(self.schema_from(before))
            entry = self._entry("open", run=run, epoch=before.epoch, state=before, schema=schema)
            if self._manifest.append(entry, to=before):
                self._manifest.sweep()
                self._finish_rollback(before)
                return before.position
            before = self._checked()
        raise self.fenced(run, before.run, where=self.url)

    def roll_back(self, run: int, epoch: int) -> None:
        """Make the files of epochs after `epoch` invisible, then delete them."""
        if self._checked(run).epoch > epoch:
            self._retract(run, epoch)

    def clear(self, run: int) -> None:
        """Delete the files of all epochs, also those that no manifest lists because it was deleted."""
        self._retract(run, 0)

    def _retract(self, run: int, epoch: int) -> None:
        while True:
            state = self._checked(run)
            # Files written after the rollback have names that none of these has, so these can never become visible
            # again. They include files that a crash left before they became visible: readers that list the folder
            # would see them.
            stale = self._files_after(epoch)
            newest = max((_generation_of(path) for path in stale), default=0)
            following = replace(state, generation=max(state.number, state.generation, newest) + 1)
            entry = self._entry("rollback", run=run, epoch=epoch, state=following)
            if self._manifest.append(entry, to=state):
                break
        self._delete(stale)

    def _finish_rollback(self, state: TableState) -> None:
        """Delete the files of a rollback whose process died before it had deleted all of them."""
        if state.generation:
            self._delete([path for path in self._files_after(state.epoch) if _generation_of(path) < state.generation])

    def _files_after(self, epoch: int) -> list[str]:
        """Return the paths of all files in the folders of later epochs."""
        later = [folder for folder in self._store.list_level("").folders if _epoch_of(folder) > epoch]
        return [info.path for folder in later for info in self._store.list_level(folder).objects]

    def _delete(self, paths: Sequence[str]) -> None:
        """Delete invisible files. One that cannot be deleted only wastes space, unless a reader lists the folder."""
        try:
            self._store.delete_many(paths)
        except StatebedError as error:
            logger = _logger.about(sink=self.sink_id)
            logger.warning("invisible files of the table %s could not be deleted: %s", self.url, error.what)

    def publish(self, publication: Publication) -> None:
        """Copy the files, then make them visible with a single entry."""
        if publication.files:
            self._publish(publication)

    def skip(self, publication: Publication) -> None:
        """Add an entry without files, so that the table is known to be up to date."""
        self._publish(replace(publication, files=()))

    def _publish(self, publication: Publication) -> None:
        for _ in range(_APPEND_ATTEMPTS):
            state = self._checked()
            delivery = decide_delivery(state.position, run=publication.run, epoch=publication.epoch)
            if delivery is PublishStep.REFUSE:
                raise self.fenced(publication.run, state.run, where=self.url)
            if delivery is PublishStep.SKIP:
                return
            contents = self.contents(publication, first=not state.pages and not state.tail)
            files = tuple(self._copy(publication.epoch, content, state.generation) for content in contents)
            entry = self._entry("epoch", run=publication.run, epoch=publication.epoch, state=state, files=files)
            if self._manifest.append(entry, to=state):
                if not files:  # the epoch is skipped, and a failed publication may have left some of its files
                    self._delete([info.path for info in self._store.list_level(epoch_folder(entry.epoch)).objects])
                return
        raise self.fenced(publication.run, self._manifest.refresh().run, where=self.url)

    def _copy(self, epoch: int, content: FileContent, generation: int) -> TableFile:
        # A superseded run may still be deleting files that it rolled back, so files of the same epoch get other names.
        name = f"g{generation}-{content.name}" if generation else content.name
        path = f"{epoch_folder(epoch)}/{name}"
        put_verified(self._store, path, content.data)
        return TableFile(path=path, epoch=epoch, size=len(content.data), rows=content.rows, crc32c=crc32c(content.data))

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
            base=state.base,
            generation=state.generation,
            schema=schema,
            files=files,
        )

    def _checked(self, run: int | None = None) -> TableState:
        """Return the newest state. Raise InputError if the table has another owner, FencedError if it has another run.

        The run is not compared if it is None.
        """
        state = self._manifest.refresh()
        if state.number and state.owner != self._owner:
            raise InputError(
                f"the table belongs to {state.owner}, not to {self._owner}",
                where=self.url,
                fix="give each job and sink its own path",
            )
        if run is not None and state.run != run:
            raise self.fenced(run, state.run, where=self.url)
        return state


def _epoch_of(folder: str) -> int:
    """Return the epoch of a folder of the table, or 0 for any other folder."""
    number = folder.removeprefix(EPOCH_FOLDER)
    return int(number) if number != folder and number.isdigit() else 0


def _generation_of(path: str) -> int:
    match = _GENERATION.match(path.rpartition("/")[2])
    return int(match[1]) if match else 0
