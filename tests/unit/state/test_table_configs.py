"""Configurations of tables, and the messages that name them."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from statebed.errors import InputError, InvalidNameError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import schema_from_bytes
from statebed.state import (
    CommitPhases,
    DeleteTimeRange,
    TaskInfo,
    TimeToLiveClock,
    global_table_config,
    global_table_config_with_version,
    hash_key,
    keyed_table_config,
    timestamp_table_config,
)
from statebed.state.config import check_configs

HOUR = dt.timedelta(hours=1)
SCHEMA = pa.schema([("driver", pa.string()), ("fare", pa.float64())])


def test_a_global_table_is_configured_by_its_name() -> None:
    (config,) = global_table_config("counters", "Counts per driver").values()
    assert (config.name, config.description, config.state_version) == ("counters", "Counts per driver", 0)
    assert config.WhichOneof("kind") == "global_keyed"
    assert not config.global_keyed.uses_two_phase_commit
    versioned = global_table_config_with_version("counters", "", 3, phases=CommitPhases.TWO)["counters"]
    assert versioned.state_version == 3
    assert versioned.global_keyed.uses_two_phase_commit


def test_a_time_keyed_table_says_how_long_it_keeps_rows_and_what_they_look_like() -> None:
    config = timestamp_table_config("events", "Events", HOUR, False, SCHEMA, bin_width=dt.timedelta(minutes=1))
    assert config.time_keyed.retention_us == 3_600_000_000
    assert config.time_keyed.bin_us == 60_000_000
    assert schema_from_bytes(config.time_keyed.schema).names == ["driver", "fare"]
    assert timestamp_table_config("events", "", HOUR, True, SCHEMA, keys=["driver"]).time_keyed.generational


def test_a_keyed_table_says_when_its_rows_expire_and_by_which_clock() -> None:
    config = keyed_table_config("riders", "", ["driver"], SCHEMA, HOUR, ttl_clock=TimeToLiveClock.EPOCH_TIME).keyed
    assert list(config.key_columns) == ["driver"]
    assert (config.time_to_live_us, config.time_to_live_clock) == (3_600_000_000, pb.EPOCH_TIME)
    assert not keyed_table_config("riders", "", ["driver"], SCHEMA).keyed.HasField("time_to_live_us")


@pytest.mark.parametrize(
    "kind", [pa.float16(), pa.uuid(), pa.json_(), pa.bool8(), pa.decimal32(5, 2), pa.null(), pa.list_(pa.string())]
)
def test_a_time_keyed_table_takes_values_of_many_types(kind: pa.DataType) -> None:
    config = timestamp_table_config("events", "", HOUR, False, pa.schema([("value", kind)]))
    assert schema_from_bytes(config.time_keyed.schema).field("value").type == kind


@pytest.mark.parametrize(
    "make",
    [
        lambda: global_table_config_with_version("counters", "", -1),
        lambda: global_table_config_with_version("counters", "", 1 << 32),
        lambda: timestamp_table_config("events", "", dt.timedelta(0), False, SCHEMA),
        lambda: timestamp_table_config("events", "", HOUR, True, SCHEMA),
        lambda: timestamp_table_config("events", "", HOUR, False, SCHEMA, bin_width=-HOUR),
        lambda: timestamp_table_config("events", "", HOUR, False, pa.schema([("_seq", pa.int64())])),
        lambda: keyed_table_config("riders", "", [], SCHEMA),
        lambda: keyed_table_config("riders", "", ["nobody"], SCHEMA),
        lambda: keyed_table_config("riders", "", ["driver", "driver"], SCHEMA),
        lambda: keyed_table_config("riders", "", "driver", SCHEMA),
        lambda: keyed_table_config("riders", "", ["tags"], pa.schema([("tags", pa.map_(pa.string(), pa.int64()))])),
        lambda: keyed_table_config("riders", "", ["driver"], SCHEMA, -HOUR),
        lambda: check_configs({"a": global_table_config("b", "")["b"]}),
        lambda: check_configs({"a": pb.TableConfig(name="a")}),
        lambda: DeleteTimeRange(start_us=2, end_us=1),
        lambda: TaskInfo("rides", "count", 2, 2),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_configured(make: Callable[[], Any]) -> None:
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize("name", ["", "a-b", "a.b", "a/b", "..", "x" * 200])
def test_a_name_that_cannot_be_part_of_an_object_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidNameError):
        global_table_config(name, "")
    with pytest.raises(InvalidNameError):
        TaskInfo("rides", name)


def test_hash_key_is_sparks_hash() -> None:
    assert hash_key((42, "abc")) == 2652500406119182346


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int32(), pa.string()),
        pa.month_day_nano_interval(),
        pa.struct([]),
        pa.string_view(),
        pa.list_(pa.struct([("part", pa.string_view())])),
        pa.binary(0),
    ],
    ids=str,
)
def test_a_type_that_no_checkpoint_could_write_is_refused_when_the_table_is_configured(kind: pa.DataType) -> None:
    columns = pa.schema([("driver", pa.string()), ("notes", kind)])
    kinds: list[Callable[[], Any]] = [
        lambda: keyed_table_config("riders", "", ["driver"], columns),
        lambda: timestamp_table_config("riders", "", HOUR, False, columns),
    ]
    for make in kinds:
        with pytest.raises(InputError, match=r"'notes' has the type .* cannot be stored") as refused:
            make()
        assert str(kind) in refused.value.what
        assert refused.value.where == "table 'riders'"
        assert refused.value.fix


PAIR = pa.list_(pa.int64(), 2)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (pa.list_(PAIR, 2), "takes and filters the wrong rows"),
        (pa.struct([("at", pa.large_list(pa.list_(PAIR, 2)))]), "takes and filters the wrong rows"),
        (pa.list_(pa.fixed_shape_tensor(pa.int32(), [2, 2]), 3), "takes and filters the wrong rows"),
        (pa.list_(pa.int64(), 0), "a list type without items"),
        (pa.map_(pa.string(), pa.list_(pa.int64(), 0)), "a list type without items"),
        (pa.struct([pa.field("at", PAIR, nullable=False)]), "even where the struct is null"),
        (pa.list_(pa.struct([pa.field("at", PAIR, nullable=False)])), "even where the struct is null"),
    ],
    ids=str,
)
def test_lists_of_a_fixed_length_that_would_not_come_back_are_refused(kind: pa.DataType, reason: str) -> None:
    columns = pa.schema([("driver", pa.string()), ("notes", kind)])
    with pytest.raises(InputError, match=f"'notes' has the type .* cannot be stored: .*{reason}"):
        keyed_table_config("riders", "", ["driver"], columns)


@pytest.mark.parametrize(
    "kind", [PAIR, pa.list_(PAIR), pa.struct([("at", PAIR)]), pa.list_(pa.list_(PAIR), 2)], ids=str
)
def test_other_lists_of_a_fixed_length_are_columns(kind: pa.DataType) -> None:
    columns = pa.schema([("driver", pa.string()), pa.field("notes", kind, nullable=False)])
    assert keyed_table_config("riders", "", ["driver"], columns)
