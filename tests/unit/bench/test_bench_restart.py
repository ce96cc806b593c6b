"""The benchmark of restarts: it counts reads of old files only, and checks its epochs."""

from pathlib import Path

import numpy as np
import pytest

from bench.restart import AGGREGATE, CountingStore, StoredState
from bench.subtask import OPERATORS
from statebed.storage import MemoryStore

KEYS = 20_000


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> StoredState:
    folder: Path = tmp_path_factory.mktemp("restart")
    state = StoredState(OPERATORS[AGGREGATE], CountingStore(MemoryStore()), KEYS, folder)
    state.build()
    return state


@pytest.mark.parametrize("parallelism", [4, 6])
def test_the_keys_written_last_are_found_in_a_small_part_of_the_state(state: StoredState, parallelism: int) -> None:
    recent = state.restart(state.touched("keys of the last epochs"), parallelism)
    random = state.restart(state.touched("random keys"), parallelism)
    assert 0 < recent.bytes_read < random.bytes_read / 4
    assert random.bytes_read > 0.99 * random.state_bytes


def test_an_epoch_with_missing_keys_ends_the_benchmark(state: StoredState) -> None:
    with pytest.raises(SystemExit, match="0 results were replaced"):
        state.restart(np.array([5, 5, 6]) + KEYS, 4)
