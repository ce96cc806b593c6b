"""A small job on disk."""

from pathlib import Path

import pytest
from dashboard_jobs import written

from statebed.storage import LocalStore


@pytest.fixture(scope="session")
def rides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A location with one job: 12 epochs in two runs, the second with more subtasks. Tests do not change it."""
    folder = tmp_path_factory.mktemp("rides") / "state"
    with written(LocalStore(folder)) as writer:
        writer.epochs(6)
        writer.run.compact()
        writer.rescale(3)
        writer.epochs(6)
    return folder
