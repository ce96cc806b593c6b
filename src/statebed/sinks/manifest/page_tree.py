"""Pages of a manifest: a tree that grows at its right edge, so that the cost of adding files does not depend on its
size.

Leaves hold up to `PAGE_FILES` files. The root, a tuple of references, is part of the base entry. If it has too many
references of one level, the older ones move into a page of the next level.
"""

from collections.abc import Iterable, Iterator, Sequence

from statebed.errors import CorruptObjectError, MissingFileError, ObjectMissingError
from statebed.format.digest import crc32c, digest
from statebed.format.sealed_json import open_json, seal_json
from statebed.sinks.manifest.entries import FIX, VERSION, Page, PageReference, TableFile, check_files
from statebed.storage import ObjectStore, put_verified

PAGE_FILES = 1024
"""Maximum number of files in a leaf."""
FANOUT = 16
"""Number of references in a page of pages; the root has at most twice as many per level."""

Root = tuple[PageReference, ...]


class PageTree:
    """Reads and writes the pages of one table."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def files(self, root: Iterable[PageReference]) -> Iterator[TableFile]:
        """Yield the files of the pages in order, with one page per level in memory at a time."""
        for reference in root:
            page = self.read(reference)
            yield from page.files
            yield from self.files(page.pages)

    def references(self, root: Iterable[PageReference]) -> Iterator[PageReference]:
        """Yield all pages of the tree. Reads pages of pages, but no leaves."""
        for reference in root:
            yield reference
            if reference.level:
                yield from self.references(self.read(reference).pages)

    def read(self, reference: PageReference) -> Page:
        """Return a page after checking it against its reference."""
        where = f"{self._store.url}/{reference.path}"
        what = "a page of the table's manifest"
        try:
            data = self._store.get(reference.path)
        except ObjectMissingError as error:
            raise MissingFileError(f"{what} is missing", where=where, fix=FIX) from error
        if len(data) != reference.size or crc32c(data) != reference.crc32c:
            raise CorruptObjectError(
                f"{what} does not match its size and checksum in the manifest", where=where, fix=FIX
            )
        page = open_json(Page, data, version=VERSION, what=what, where=where, fix=FIX)
        held = len(page.files) + sum(below.files for below in page.pages)
        levels = {below.level for below in page.pages}
        if page.level != reference.level or held != reference.files or (levels and levels != {page.level - 1}):
            raise CorruptObjectError(f"{what} holds other files than the manifest lists", where=where, fix=FIX)
        check_files(page.files, where=where, first=reference.first, last=reference.last)
        return page

    def appended(self, root: Root, files: Sequence[TableFile], *, number: int) -> tuple[Root, Root]:
        """Append files for the entry `number`; return the new root and the pages that it replaces.

        A last leaf with room for more files is written again with them.
        """
        if not files:
            return root, ()
        replaced: Root = ()
        if root and root[-1].level == 0 and root[-1].files < PAGE_FILES:
            root, replaced = root[:-1], root[-1:]
            files = [*self.read(replaced[0]).files, *files]
        leaves = [
            self._write_leaf(tuple(files[start : start + PAGE_FILES]), number)
            for start in range(0, len(files), PAGE_FILES)
        ]
        return self._bundled((*root, *leaves), number), replaced

    def truncated(self, root: Root, epoch: int, *, number: int) -> Root:
        """Return a root with only the files of epochs up to `epoch`, for the entry `number`."""
        kept: list[PageReference] = []
        for reference in root:
            if reference.last <= epoch:
                kept.append(reference)
            elif reference.first <= epoch:
                page = self.read(reference)
                kept += self.truncated(page.pages, epoch, number=number)
                files = tuple(file for file in page.files if file.epoch <= epoch)
                kept += [self._write_leaf(files, number)] if files else []
        return tuple(kept)

    def _bundled(self, root: Root, number: int) -> Root:
        level = 0
        while any(reference.level >= level for reference in root):
            here = [reference for reference in root if reference.level == level]
            if len(here) >= 2 * FANOUT:
                page = self._write_index(tuple(here[:FANOUT]), number)
                above = tuple(reference for reference in root if reference.level > level)
                below = tuple(reference for reference in root if reference.level < level)
                root = (*above, page, *here[FANOUT:], *below)
            else:
                level += 1
        return root

    def _write_leaf(self, files: tuple[TableFile, ...], number: int) -> PageReference:
        page = Page(VERSION, level=0, files=files)
        return self._write(page, number, files=len(files), first=files[0].epoch, last=files[-1].epoch)

    def _write_index(self, pages: Root, number: int) -> PageReference:
        page = Page(VERSION, level=pages[0].level + 1, pages=pages)
        return self._write(
            page, number, files=sum(below.files for below in pages), first=pages[0].first, last=pages[-1].last
        )

    def _write(self, page: Page, number: int, *, files: int, first: int, last: int) -> PageReference:
        data = seal_json(page)
        reference = PageReference(
            number=number,
            digest=digest(data),
            size=len(data),
            crc32c=crc32c(data),
            level=page.level,
            files=files,
            first=first,
            last=last,
        )
        put_verified(self._store, reference.path, data)
        return reference
