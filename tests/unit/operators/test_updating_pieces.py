"""Groups that are folded and merged into the state piece by piece give the same results and state as all at once."""

from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import statebed as sb
from statebed import testing
from statebed.aggregates import partials
from statebed.operators.updating import aggregate
from statebed.state.keyed.batch import KeyBatch
from statebed.state.keyed.sorted_run import SortedRun

pytestmark = pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")
ROW = st.fixed_dictionaries({"k": st.integers(0, 6), "v": st.none() | st.integers(0, 3), "w": st.sampled_from("abc")})


def flow() -> sb.Flow:
    """Totals by key, and how many keys have each total: the second reads a changelog, and its groups come and go."""
    made = sb.Flow("pieces")
    rows = made.source("rows", "k bigint, v bigint, w string")
    totals = rows.key_by("k", name="totals").agg(total=sb.sum("v"), least=sb.min("w"), words=sb.collect_set("w"))
    totals.key_by("total", name="keys").agg(n=sb.count(), least=sb.min("least"))
    return made


def outcome(epochs: list[list[dict[str, Any]]]) -> list[Any]:
    with testing.run(flow()) as run:
        for rows in epochs:
            run.feed("rows", rows)
        return [run.changes(name) for name in ("totals", "keys")] + [
            run.state(name, "groups") for name in ("totals", "keys")
        ]


@settings(max_examples=examples(15), deadline=None)
@given(epochs=st.lists(st.lists(ROW, max_size=9), min_size=1, max_size=4))
def test_p6_pieces_of_groups_give_what_all_groups_give_at_once(epochs: list[list[dict[str, Any]]]) -> None:
    whole = outcome(epochs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(aggregate, "PIECE_BYTES", 100)
        patched.setattr(partials, "MAX_BYTES", 0)
        patched.setattr(partials, "PIECE_BYTES", 100)
        assert outcome(epochs) == whole


def test_groups_are_looked_up_once_to_be_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that were sliced in between were sorted and looked up a second time."""
    find = SortedRun.find
    lookups: list[int] = []

    def counted(run: SortedRun, batch: KeyBatch) -> Any:
        lookups.append(len(batch))
        return find(run, batch)

    monkeypatch.setattr(SortedRun, "find", counted)
    made = sb.Flow("once")
    made.source("rows", "k bigint, v bigint").key_by("k", name="totals").agg(total=sb.sum("v"))
    with testing.run(made) as run:
        run.feed("rows", [{"k": key, "v": 1} for key in range(100)])
        lookups.clear()
        run.feed("rows", [{"k": key, "v": 1} for key in range(100)])
    assert lookups == [100]
