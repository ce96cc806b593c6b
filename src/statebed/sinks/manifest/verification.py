"""Verification of a table of files: every entry, page and data file of the table is read once.

It only reads, and may run while the table is written: files that the writer removes in the meantime are not reported.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from statebed.errors import BrokenLogError, FormatError, InputError, NewerFormatError
from statebed.protocol.sink_history import AcceptedLoss
from statebed.sinks.manifest.entries import PageReference, TableFile
from statebed.sinks.manifest.manifest import Manifest
from statebed.sinks.manifest.page_tree import PageTree
from statebed.sinks.manifest.table_reader import read_file
from statebed.storage import ObjectStore, get_storage_provider

_READS_AT_ONCE = 16
_ATTEMPTS = 3
"""Number of attempts to read a table that changes in the meantime, before damage is reported."""


@dataclass(frozen=True)
class TableFinding:
    """A damaged or missing object of the table."""

    where: str
    problem: str


@dataclass(frozen=True)
class TableVerification:
    """Result of a verification."""

    where: str
    owner: str
    """Job and sink that the table belongs to; empty if the manifest cannot be read."""
    epoch: int
    """Newest epoch that the table has."""
    files: int
    """Number of data files that were read."""
    bytes: int
    sealed: bool
    """Whether the manifest has checksums. Version 1 has none; the next run seals it."""
    findings: tuple[TableFinding, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged or missing."""
        return not self.findings


def verify_table(path: str, *, published: int | None = None, accepted: AcceptedLoss | None = None) -> TableVerification:
    """Check every object of the table at `path`.

    `published` is the newest epoch with rows that the job published to the table, 0 for none. A table that is missing
    or ends before that epoch counts as damaged, unless the user accepted the loss. Without `published`, a missing table
    raises InputError.
    """
    store = get_storage_provider(path)
    number = -1
    for _ in range(_ATTEMPTS):
        newest, verification = _verify(store)
        if verification.whole or newest == number:
            break
        number = newest
    held = verification.epoch
    excused = accepted is not None and accepted.held == held and (published or 0) <= accepted.until
    if newest and published is not None and held < published and not excused:
        problem = f"the table ends at epoch {held}, but the job published epoch {published} to it"
        return replace(verification, findings=(*verification.findings, TableFinding(store.url, problem)))
    if newest or verification.findings:
        return verification
    if published is None:
        raise InputError("this is not a statebed table", where=store.url, fix="pass the path of the sink's table")
    missing = TableFinding(store.url, f"the table is missing; the job published epoch {published} to it")
    return replace(verification, findings=(missing,) if published else ())


def _verify(store: ObjectStore) -> tuple[int, TableVerification]:
    """Return the number of the newest entry, 0 if it cannot be read, and the result."""
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
    """Yield the files of all readable pages, and add the others to `findings`."""
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
