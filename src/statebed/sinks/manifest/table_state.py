"""State of a manifest as of one of its entries: the position of the table, and where its files are listed."""

import base64
import binascii
from dataclasses import dataclass, replace

import pyarrow as pa

from statebed.errors import CorruptObjectError
from statebed.protocol import SinkPosition
from statebed.sinks.manifest.entries import FIX, Entry, TableFile
from statebed.sinks.manifest.page_tree import PAGE_FILES, Root

TAIL_ENTRIES = 64
"""Maximum number of entries from a base to the next one; this many are read to find the files not in its pages."""


@dataclass(frozen=True)
class TableState:
    """State of the log as of entry `number`. Its size does not grow with the table."""

    number: int = 0
    owner: str = ""
    run: int = 0
    epoch: int = 0
    generation: int = 0
    schema: str = ""
    base: int = 0
    """Number of the base; 0 for a table without entries or with a manifest of version 1."""
    pages: Root = ()
    tail: tuple[TableFile, ...] = ()
    """Files of the base and of the entries after it, which no page lists yet."""

    @property
    def position(self) -> SinkPosition | None:
        return SinkPosition(run=self.run, epoch=self.epoch) if self.number else None

    @property
    def needs_base(self) -> bool:
        """Whether the next entry must be a base."""
        return not self.base or self.number + 1 - self.base >= TAIL_ENTRIES or len(self.tail) >= PAGE_FILES

    def after(self, entry: Entry) -> "TableState":
        """Return the state after the entry."""
        state = replace(
            self,
            number=entry.number,
            owner=entry.owner,
            run=entry.run,
            epoch=entry.epoch,
            generation=max(entry.number, entry.generation) if entry.kind == "rollback" else entry.generation,
            schema=entry.schema or self.schema,
        )
        if entry.pages is None:
            return replace(state, tail=(*self.tail, *entry.files))
        return replace(state, base=entry.number, pages=entry.pages, tail=entry.files)


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str, *, where: str) -> pa.Schema:
    """Return the schema encoded by `encode_schema`."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, ValueError, pa.ArrowException, OSError) as error:
        raise CorruptObjectError(
            f"the schema in the table's manifest cannot be read: {error}", where=where, fix=FIX
        ) from error
