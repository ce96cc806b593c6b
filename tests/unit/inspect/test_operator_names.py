"""Operators without a name read as what the user wrote, wherever people meet them."""

import json

import pytest

from statebed.errors import StateNotFoundError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.operator_names import OperatorNames
from statebed.operators import labels
from statebed.operators.window_definition import SessionWindow, Window, tumbling


def entry(operator_id: str, **described: object) -> pb.OperatorEntry:
    return pb.OperatorEntry(operator_id=operator_id, definition=json.dumps(described))


def minute(operator_id: str = "window_bdc1dd51b2", **more: object) -> pb.OperatorEntry:
    window: Window = tumbling("1 minute", on="ts")
    return entry(operator_id, kind="window_aggregate", keys=[["driver", "string"]], window=window.as_data(), **more)


WRITTEN = "group_by(driver, tumbling window of 1 minute on ts).agg"


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        (minute(), WRITTEN),
        (minute("per_minute"), "per_minute"),
        (entry("window_bdc1dd51b2", kind="session_aggregate", keys=[], gap=5_000_000), "a gap of 5 seconds"),
        (entry("join_bdc1dd51b2", kind="interval_join", left={"keys": ["id"]}, right={"keys": ["k"]}), "join(on=id)"),
        (entry("top_bdc1dd51b2", kind="top_n", keys=["k"]), "key_by(k).top"),
        (entry("deduplicate_bdc1dd51b2", kind="deduplicate", keys=["k"]), "deduplicate(k)"),
        (entry("window_bdc1dd51b2", kind="of a later version"), "window_bdc1dd51b2"),
        (pb.OperatorEntry(operator_id="window_bdc1dd51b2", definition="{"), "window_bdc1dd51b2"),
    ],
)
def test_an_operator_of_a_record_is_called_by_what_the_user_wrote(stored: pb.OperatorEntry, name: str) -> None:
    shown = OperatorNames.of(pb.CheckpointMetadata(operators=[stored]))(stored.operator_id)
    assert name in shown
    assert shown == labels.written_name(stored.operator_id, stored.definition)


def test_tables_and_streams_of_an_operator_keep_their_part_of_the_name() -> None:
    names = OperatorNames.of(pb.CheckpointMetadata(operators=[minute()]))
    assert names("window_bdc1dd51b2.partials") == f"{WRITTEN}.partials"
    assert names("window_bdc1dd51b2 in-flight writes") == f"{WRITTEN} in-flight writes"
    assert names("somebody_else.rows") == "somebody_else.rows"


def test_two_operators_that_were_written_alike_are_told_apart_by_their_ids() -> None:
    names = OperatorNames.of(pb.CheckpointMetadata(operators=[minute(), minute("window_0123456789")]))
    assert names("window_0123456789") == f"{WRITTEN} [window_0123456789]"


def test_an_operator_is_found_by_its_id_and_by_the_name_that_is_shown() -> None:
    names = OperatorNames.of(pb.CheckpointMetadata(operators=[minute()]))
    assert names.id_of("window_bdc1dd51b2", where="") == names.id_of(WRITTEN, where="") == "window_bdc1dd51b2"
    with pytest.raises(StateNotFoundError, match="there are: group_by"):
        names.id_of("window", where="here")


def test_sessions_read_as_they_do_in_explain() -> None:
    stored = entry("window_bdc1dd51b2", kind="session_aggregate", keys=[], gap=5_000_000)
    assert SessionWindow(5_000_000).described() in labels.written_name(stored.operator_id, stored.definition)
