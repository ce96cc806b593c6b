"""Rows written to a local file and read back as a mapped table, for results that may be larger than memory.

The file is removed as soon as it is mapped: its space is free again when the last reference to the table is gone.
"""

from pathlib import Path

import pyarrow as pa

from statebed.state.memory.pages import count_processed
from statebed.state.tiers.spill_folder import SpillFolder, spill_error

_WHAT = "cannot write rows to the folder for spilled state"


class SpooledRows:
    """Rows of one schema, appended in pieces."""

    def __init__(self, folder: SpillFolder, schema: pa.Schema) -> None:
        self._path: Path = folder.new_file(".rows")
        self._schema = schema
        self._writer: pa.RecordBatchFileWriter | None = None

    def append(self, rows: pa.Table) -> None:
        """Write rows behind those before them."""
        try:
            if self._writer is None:
                self._writer = pa.ipc.new_file(str(self._path), self._schema)
            self._writer.write_table(rows.cast(self._schema))
        except OSError as error:
            raise spill_error(_WHAT, self._path, error) from error
        count_processed(rows.nbytes)

    def table(self) -> pa.Table:
        """Return all rows. Nothing can be appended afterwards."""
        if self._writer is None:
            return self._schema.empty_table()
        try:
            self._writer.close()
            return pa.ipc.open_file(pa.memory_map(str(self._path))).read_all()
        except OSError as error:
            raise spill_error(_WHAT, self._path, error) from error
        finally:
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the file if the rows were not read."""
        if self._writer is not None:
            self._writer.close()
        self._path.unlink(missing_ok=True)
