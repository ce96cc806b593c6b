"""A failure of earlier systems around clean-up: one that fails starves checkpoints for ever (12)."""

import pytest
from unit.checkpoint.place import Place

from statebed.errors import StoreUnavailableError
from statebed.testing.faults import Fault, FaultStore, Operation, Verb


@pytest.mark.parametrize("nth", [1, 2, 5])
def test_failure_12_a_cleanup_that_failed_stops_no_commit_and_is_made_up_for(place: Place, nth: int) -> None:
    """12. Clean-up that fails once starves checkpoints for ever."""
    deletions: list[str] = []

    def fail_once(operation: Operation) -> Fault | None:
        if operation.verb is not Verb.DELETE:
            return None
        deletions.append(operation.path)
        return Fault.UNAVAILABLE if len(deletions) == nth else None

    run = place.open(through=FaultStore(place.disk, fail_once), epochs=2)
    for _ in range(8):
        place.commit(run)
    with pytest.raises(StoreUnavailableError):
        run.clean_up()
    for _ in range(4):
        place.commit(run)
    assert len(run.clean_up().records) >= 8
    assert deletions[nth - 1] in deletions[nth:], "what could not be deleted is tried again"
    place.commit(run)
    run.clean_up()
    # Two subtasks with a file and metadata each, an outbox file and the record, for each epoch that is left.
    assert len(place.contents()) <= 6 * (2 + 2)
