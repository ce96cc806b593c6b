"""Names of sinks that were given none: stable under edits, and the old ones are found again."""

import pytest

from statebed.errors import SinkStartError
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.sink_names import DerivedSink, derived_name, settled_names


def known(sink_id: str, *, operator: str = "", kind: str = "", target: str = "") -> pb.SinkHistory:
    return pb.SinkHistory(sink_id=sink_id, operator_id=operator, kind=kind, target=target)


def table(sink_id: str, target: str, owner: str = "") -> DerivedSink:
    return DerivedSink(sink_id, "op", "parquet", target, owner)


def test_a_name_says_the_operator_and_what_the_sink_is() -> None:
    assert derived_name(["per_minute"]) == "per_minute"
    assert derived_name(["a", "b", "a"], "parquet") == "a_b_parquet"
    long = derived_name(["x" * 200], "parquet")
    assert len(long) == 128
    assert long != derived_name(["x" * 201], "parquet")
    assert derived_name(["a"], distinguished_by="out/1") != derived_name(["a"], distinguished_by="out/2")


def test_a_sink_that_writes_where_a_known_one_wrote_has_its_name() -> None:
    found = settled_names([table("op_parquet", "/out")], chosen=(), known=[known("old", kind="parquet", target="/out")])
    assert found == {"op_parquet": "old"}


def test_two_sinks_whose_lines_change_places_keep_their_names() -> None:
    before = [known("op_parquet", kind="parquet", target="/a"), known("op_parquet_x", kind="parquet", target="/b")]
    swapped = [table("op_parquet", "/b"), table("op_parquet_y", "/a")]
    assert settled_names(swapped, chosen=(), known=before) == {
        "op_parquet": "op_parquet_x",
        "op_parquet_y": "op_parquet",
    }


def test_a_new_sink_never_takes_the_name_that_another_has_in_the_log() -> None:
    before = [known("op_parquet", kind="parquet", target="/a")]
    found = settled_names([table("op_parquet", "/new"), table("op_parquet_x", "/a")], chosen=(), known=before)
    assert found["op_parquet_x"] == "op_parquet"
    assert found["op_parquet"] not in {"op_parquet", "op_parquet_x"}


def test_a_name_that_was_derived_from_a_position_is_found_by_what_the_target_says() -> None:
    found = settled_names(
        [table("op_parquet", "/out", owner="rows_2")], chosen=(), known=[known("rows_2"), known("rows_3")]
    )
    assert found == {"op_parquet": "rows_2"}


def test_a_name_that_was_derived_from_a_position_is_found_by_its_operator_if_there_is_one_alone() -> None:
    function = DerivedSink("op_store", "op", "function")
    assert settled_names([function], chosen=(), known=[known("rows_2", operator="op")]) == {"op_store": "rows_2"}
    assert settled_names([function], chosen=(), known=[known("rows_2", operator="other")]) == {"op_store": "op_store"}
    two = [known("rows_2", operator="op"), known("rows_4", operator="op")]
    assert settled_names([function], chosen=(), known=two) == {"op_store": "op_store"}


def test_a_name_that_the_user_gave_to_another_sink_is_not_taken() -> None:
    found = settled_names(
        [table("op_parquet", "/a")], chosen={"mine"}, known=[known("mine", kind="parquet", target="/a")]
    )
    assert found == {"op_parquet": "op_parquet"}


def test_a_target_with_the_rows_of_another_operator_is_refused() -> None:
    before = [
        known("by_minute", operator="by_minute", kind="parquet", target="/minutes"),
        known("by_hour", operator="by_hour", kind="parquet", target="/hours"),
    ]
    sinks = [
        DerivedSink("by_minute", "by_minute", "parquet", "/hours", "by_hour"),
        DerivedSink("by_hour", "by_hour", "parquet", "/minutes", "by_minute"),
    ]
    operators = {"by_minute", "by_hour"}
    with pytest.raises(SinkStartError, match=r"operator by_minute writes to the target of sink by_hour") as caught:
        settled_names(sinks, chosen=(), known=before, operators=operators)
    assert "write(..., name='by_hour')" in caught.value.fix
    for owner_only in ([known("by_minute", operator="by_minute"), known("by_hour", operator="by_hour")], before[:1]):
        with pytest.raises(SinkStartError, match="has the rows of operator"):
            settled_names(sinks, chosen=(), known=owner_only, operators=operators)


def test_a_target_is_passed_on_by_an_operator_that_the_job_no_longer_has() -> None:
    before = [known("old", operator="old", kind="parquet", target="/out")]
    sink = DerivedSink("new", "new", "parquet", "/out")
    assert settled_names([sink], chosen=(), known=before, operators={"new"}) == {"new": "old"}
