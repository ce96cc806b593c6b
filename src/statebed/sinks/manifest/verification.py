"""Verification of a table of files: every entry, page and data file that the table consists of, each read once.

Only reads, and may run beside the writer: what the writer takes away meanwhile is not called missing.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from statebed.errors import BrokenLogError, FormatError, InputError, NewerFormatError
from statebed.sinks.manifest.entries import PageReference, TableFile
from statebed.sinks.manifest.manifest import Manifest
from statebed.sinks.manifest.page_tree import PageTree
from statebed.sinks.manifest.table_reader import read_file
from statebed.storage import ObjectStore, get_storage_provider

_READS_AT_ONCE = 16
_ATTEMPTS = 3
"""How often a table that changes while it is read is read again, before damage is reported."""


@dataclass(frozen=True)
class TableFinding:
    """An object of the table that is damaged or missing."""

    where: str
    problem: str


@dataclass(frozen=True)
class TableVerification:
    """The state of a table's objects."""

    where: str
    owner: str
    """The job and sink that the table belongs to; empty if the manifest cannot be read."""
    epoch: int
    """Newest epoch that the table has."""
    files: int
    """Data files that were read."""
    bytes: int
    sealed: bool
    """False: the manifest is of version 1, which has no checksums; the next run seals it."""
    findings: tuple[TableFinding, ...] = ()

    @property
    def whole(self) -> bool:
        """Nothing is damaged, nothing is missing."""
        return not self.findings


def verify_table(path: str, *, published: int | None = None) -> TableVerification:
    """Check every object of the table at `path`.

    `published` is the newest epoch that the job knows to be in the table, 0 for none. A table that is not there is
    damage if it had epochs, and none if it had not; without `published` it is an error of the caller.
    """
    store = get_storage_provider(path)
    number = -1
    for _ in range(_ATTEMPTS):
        newest, found = _verify(store)
        if found.whole or newest == number:
            break
        number = newest
    if newest or found.findings:
        return found
    if published is None:
        raise InputError("there is no table of statebed's", where=store.url, fix="give the path of the sink's table")
    missing = TableFinding(store.url, f"the table is missing; the job published epoch {published} to it")
    return replace(found, findings=(missing,) if published else ())


def _verify(store: ObjectStore) -> tuple[int, TableVerification]:
    """Return the number of the newest entry, 0 if it cannot be read, and what was found."""
    manifest = Manifest(store)
    try:
        state = manifest.refresh()
    except NewerFormatError:
        raise
    except (FormatError, BrokenLogError) as error:
        damage = TableFinding(error.where, error.what)
        return 0, TableVerification(store.url, "", 0, 0, 0, sealed=True, findings=(damage,))
    if not state.number:
        return 0, TableVerification(store.url, "", 0, 0, 0, sealed=True)
    findings: list[TableFinding] = []
    files = [*_files(PageTree(store), state.pages, findings), *state.tail]
    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="statebed-verify") as pool:
        findings += filter(None, pool.map(lambda file: _problem(store, file), files))
    return state.number, TableVerification(
        where=store.url,
        owner=state.owner,
        epoch=state.epoch,
        files=len(files),
        bytes=sum(file.size for file in files),
        sealed=state.base > 0,
        findings=tuple(sorted(findings, key=lambda finding: finding.where)),
    )


def _files(pages: PageTree, root: Iterable[PageReference], findings: list[TableFinding]) -> Iterator[TableFile]:
    """Return the files of all pages that can be read; adds the others to `findings`."""
    for reference in root:
        try:
            page = pages.read(reference)
        except FormatError as error:
            findings.append(TableFinding(error.where, error.what))
            continue
        yield from page.files
        yield from _files(pages, page.pages, findings)


def _problem(store: ObjectStore, file: TableFile) -> TableFinding | None:
    try:
        read_file(store, file)
    except FormatError as error:
        return TableFinding(error.where, error.what)
    return None
