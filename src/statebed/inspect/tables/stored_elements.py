"""Elements of groups that are stored in other tables than the groups, at a pinned epoch.

Results that contain all values of a group are built from them. Files are read by range of hashes, so a piece of groups
reads only the row groups that may have elements of theirs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import one_chunk
from statebed.arrays.key_hash import Hashes, group_ranges, hash_columns, normalise_key
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.tables.pinned import Pinned, PinnedTable
from statebed.inspect.tables.read_plan import PartPlan
from statebed.inspect.tables.request import Request
from statebed.inspect.tables.row_reader import rows_of_part
from statebed.inspect.tables.table_shape import TableShape
from statebed.state.live.files import clipped

Part = pb.TableSubtaskCheckpointMetadata
_SINGLE = 64
"""Number of groups of a large table up to which each is read alone; more are read as one range of hashes."""
_SMALL_BYTES = 1 << 20
"""Size of the files of a table up to which they are opened once for all groups, not once for each."""


@dataclass(frozen=True, eq=False)
class StoredElements:
    """Multiset tables of an operator; can be pickled."""

    pinned: Pinned
    tables: Mapping[str, tuple[bytes, tuple[bytes, ...]]]
    """Configuration and parts of each table, serialised."""

    @classmethod
    def beside(cls, table: PinnedTable) -> "StoredElements":
        """Return the multiset tables of the same operator."""
        return cls(
            table.pinned,
            {
                name: (config.SerializeToString(), tuple(part.SerializeToString() for part in parts))
                for name, (config, parts) in table.others.items()
                if config.keyed.prefix_columns
            },
        )

    def __call__(self, table: str, keys: pa.Table) -> Iterator[pa.Table]:
        """Yield the elements of some groups, and possibly of others whose hashes are between theirs.

        A table that the operator did not have yet has no elements.
        """
        if table not in self.tables:
            return
        config, parts = self.tables[table]
        shape = TableShape(pb.TableConfig.FromString(config))
        request = Request(shape, tuple(shape.full_schema.names), also=frozenset(shape.file_schema.names))
        hashes = hash_columns([normalise_key(one_chunk(column)) for column in keys.columns])
        read = [Part.FromString(data) for data in parts]
        size = sum(file.size for part in read for file in part.files)
        for owned in _ranges(hashes, at_once=size <= _SMALL_BYTES):
            for part in read:
                files = clipped(part.files, owned)
                if files:
                    narrowed = Part()
                    narrowed.CopyFrom(part)
                    del narrowed.files[:]
                    narrowed.files.extend(files)
                    yield from rows_of_part(PartPlan(request, narrowed, self.pinned.fetch))


def _ranges(hashes: Hashes, *, at_once: bool) -> Iterator[pb.HashRange]:
    firsts, lasts = (np.unique(ends) for ends in group_ranges(hashes))
    if at_once or len(firsts) > _SINGLE:
        firsts, lasts = firsts[:1], lasts[-1:]
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        yield pb.HashRange(first=first, last=last)
