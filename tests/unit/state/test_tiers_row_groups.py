"""Segments read row group by row group, pinned during that time."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from unit.state.segment_rows import opened_tiers, sequences, sorted_rows, spec

from statebed.format.ranges import WHOLE_SPACE
from statebed.state.memory.sizes import held_bytes
from statebed.state.tiers.segments import Segment
from statebed.state.tiers.selection import Selection
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.tier import Tier
from statebed.storage.memory_store import MemoryStore


def make(tiers: Tiers, count: int) -> Segment:
    return tiers.segment(sorted_rows(count), spec=spec(), owner="rides")


def local_files(tiers: Tiers) -> list[Path]:
    return sorted(tiers.folder.path.iterdir())


def name_of(digest: str) -> str:
    return f"data/{digest}"


@pytest.mark.parametrize("where", [Tier.MEMORY, Tier.DISK, Tier.STORE])
def test_rows_come_in_row_groups_from_every_tier_and_one_is_charged_at_a_time(tmp_path: Path, where: Tier) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment, store = make(tiers, 20_000), MemoryStore()
        if where is not Tier.MEMORY:
            segment.spill()
        if where is Tier.STORE:
            entry = segment.upload(store, name_of=name_of, owned=WHOLE_SPACE)
            segment = tiers.stored(entry, store, spec=spec(), owner="rides")
        used = tiers.memory.used
        seen, charged = [], []
        for piece in segment.row_groups():
            seen.append(piece)
            charged.append(tiers.memory.used - used)
        assert sequences(*seen) == list(range(20_000))
        assert tiers.memory.used == used
        if where is not Tier.MEMORY:
            assert len(seen) == 4
            assert all(0 < nbytes < held_bytes(*seen) / 2 for nbytes in charged)


def test_a_pinned_segment_that_is_closed_is_read_to_its_end(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment = make(tiers, 20_000)
        segment.spill()
        segment.pin()
        pieces = segment.row_groups()
        first = next(pieces)
        segment.close()
        assert sequences(first, *pieces) == list(range(20_000))
        assert len(local_files(tiers)) == 1
        segment.unpin()
        assert local_files(tiers) == []


def test_only_row_groups_that_may_hold_wanted_hashes_are_read(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment = make(tiers, 20_000)
        segment.spill()
        hashes = np.sort(segment.read()["_key_hash"].combine_chunks().to_numpy()[[5, 7000]])
        rows = pa.concat_tables(segment.row_groups(Selection(hashes=hashes)))
        assert sorted(rows["_key_hash"].to_pylist()) == hashes.tolist()
        assert list(segment.row_groups(Selection(hashes=hashes[:0]))) == []
