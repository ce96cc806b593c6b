"""Rows of tables for pages: a sample, the rows of a key, the changes of an epoch. No other module of the dashboard
reads data.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from statebed.errors import InputError, StoreUnavailableError
from statebed.format.json_values import json_values
from statebed.inspect import Scan, StateTable, diff_state, read_state
from statebed.present import units
from statebed.ui import visible_text

PAGE_ROWS = 50
MAX_PAGES = 100
"""Maximum page number. A page also reads the rows before it; rows beyond need a condition or SQL."""
MAX_ROWS = 100
"""Maximum number of changed rows shown."""
_READERS = threading.BoundedSemaphore(4)
_PATIENCE_SECONDS = 20.0


@dataclass(frozen=True)
class RowRequest:
    """Selects a table and its rows."""

    url: str
    job: str
    operator: str
    table: str
    epoch: int
    key: tuple[str, ...] = ()
    """Text for each key column; empty for all keys."""
    condition: str = ""
    start: str = ""
    end: str = ""
    """Event time range as ISO 8601; empty for all times."""
    is_global: bool = False
    page: int = 1
    as_stored: bool = False
    """Whether to show stored partials instead of the results computed from them."""

    @property
    def is_filtered(self) -> bool:
        return bool(self.key or self.condition or self.start or self.end)


@dataclass(frozen=True)
class Rows:
    """Rows as text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    is_cut: bool
    """Whether there are more rows."""
    scan: Scan | None = None
    finished: bool = False
    """Whether these are results, not partials."""


@dataclass(frozen=True)
class RowChangesView:
    """Changes of an epoch to the rows of a table."""

    counts: Mapping[str, int]
    rows: Rows


def sample(request: RowRequest) -> Rows:
    """Return the first rows of a request."""
    with _turn():
        table = _table(request)
        if request.key:
            table = table.keys(_key(request))
        if request.start or request.end:
            table = table.between(request.start or None, request.end or None)
        if request.condition:
            table = table.filter(request.condition)
        # Rows are ordered by key, so a page follows those before it.
        skipped = (request.page - 1) * PAGE_ROWS
        page = table.head(skipped + PAGE_ROWS + 1).slice(skipped)
        shown = _rows(page, PAGE_ROWS, table.scan() if request.is_filtered else None)
        return replace(shown, finished=table.finished)


def _table(request: RowRequest) -> StateTable:
    """Open the table with final results, unless partials are requested or only user code could compute the results."""

    def read(*, results: bool) -> StateTable:
        return read_state(
            request.url,
            job=request.job,
            operator=request.operator,
            table=request.table,
            epoch=request.epoch,
            results=results,
        )

    if request.as_stored:
        return read(results=False)
    try:
        return read(results=True)
    except InputError:
        return read(results=False)  # a user-defined aggregate, whose code is not part of the state


def changed(request: RowRequest, *, since: int) -> RowChangesView:
    """Return the changes from one epoch to another."""
    with _turn():
        difference = diff_state(
            request.url,
            job=request.job,
            operator=request.operator,
            table=request.table,
            since=since,
            until=request.epoch,
        )
        return RowChangesView(difference.counts(), _rows(difference.head(MAX_ROWS + 1), MAX_ROWS, None))


@contextmanager
def _turn() -> Iterator[None]:
    """Limit the number of concurrent reads, because each holds row groups in memory."""
    if not _READERS.acquire(timeout=_PATIENCE_SECONDS):
        raise StoreUnavailableError("too many pages are reading rows", fix="try again in a moment")
    try:
        yield
    finally:
        _READERS.release()


def _key(request: RowRequest) -> Any:
    if not request.is_global:
        return request.key
    text = request.key[0]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _rows(page: pa.Table, limit: int, scan: Scan | None) -> Rows:
    shown = page.slice(0, limit)
    columns = [[_text(value) for value in column] for column in shown.columns]
    rows: Sequence[tuple[str, ...]] = list(zip(*columns, strict=True)) if columns else []
    return Rows(tuple(map(str, page.schema.names)), tuple(rows), page.num_rows > limit, scan)


def _text(value: pa.Scalar) -> str:
    """Return the text of a cell: binary as hex, everything else as in the CLI's JSON."""
    kind = value.type
    if not value.is_valid:
        return "null"
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        text = units.exact(value.cast(pa.timestamp("us", kind.tz)).value)
        return text if kind.tz else text.removesuffix("Z")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return visible_text.clipped(f"0x{value.as_py().hex()}")
    [plain] = json_values(pa.repeat(value, 1))
    return visible_text.clipped(json.dumps(plain, ensure_ascii=False) if isinstance(plain, dict | list) else plain)
