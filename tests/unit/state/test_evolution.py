"""Changes of a table's definition: which are taken, which are refused, and how the difference is shown."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from statebed.errors import IncompatibleSchemaError, InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import field_id, register_schema, schema_from_bytes
from statebed.state import TimeToLiveClock, keyed_table_config, timestamp_table_config
from statebed.state.evolution.column_defaults import defaults_from_bytes
from statebed.state.evolution.evolve import Evolution, evolve
from statebed.state.evolution.widening import widens

HOUR = dt.timedelta(hours=1)


def columns(*fields: Any) -> pa.Schema:
    """The key `rider`, and these."""
    return pa.schema([pa.field("rider", pa.int64()), *(pa.field(*field) for field in fields)])


def keyed(*fields: Any, **more: Any) -> pb.TableConfig:
    return keyed_table_config("riders", "", ["rider"], columns(*fields), **more)


def timed(*fields: Any, retention: dt.timedelta = HOUR, generational: bool = False, **more: Any) -> pb.TableConfig:
    schema = columns(*fields)
    return timestamp_table_config("trips", "", retention, generational, schema, keys=["rider"], **more)


def ids(config: pb.TableConfig) -> dict[str, int]:
    kind = config.keyed if config.WhichOneof("kind") == "keyed" else config.time_keyed
    return {field.name: field_id(field) for field in schema_from_bytes(kind.schema)}


def verdicts(evolution: Evolution) -> dict[str, str]:
    return {one.what: one.verdict for one in evolution.differences}


OLD = keyed(("trips", pa.int32()), ("city", pa.string()))


def test_the_same_definition_changes_nothing() -> None:
    evolution = evolve(keyed(("trips", pa.int32()), ("city", pa.string())), stored=OLD)
    assert (evolution.config, evolution.differences) == (OLD, ())


def test_columns_keep_their_ids_when_they_are_renamed_widened_and_moved() -> None:
    wanted = keyed(("town", pa.string()), ("trips", pa.int64()), renames={"town": "city"})
    evolution = evolve(wanted, stored=OLD)
    before = ids(OLD)
    assert ids(evolution.config) == {"rider": before["rider"], "town": before["city"], "trips": before["trips"]}
    assert list(ids(evolution.config)) == ["rider", "town", "trips"]
    assert verdicts(evolution) == {"town": "renamed from 'city'", "trips": "widened"}


def test_a_key_may_be_renamed() -> None:
    schema = pa.schema([("passenger", pa.int64()), ("trips", pa.int32()), ("city", pa.string())])
    wanted = keyed_table_config("riders", "", ["passenger"], schema, renames={"passenger": "rider"})
    assert ids(evolve(wanted, stored=OLD).config)["passenger"] == ids(OLD)["rider"]


def test_a_column_that_is_dropped_and_added_again_is_a_new_one() -> None:
    dropped = evolve(keyed(("trips", pa.int32())), stored=OLD)
    assert verdicts(dropped) == {"city": "dropped"}
    _, schemas = register_schema((), schema_from_bytes(OLD.keyed.schema))
    again = evolve(keyed(("trips", pa.int32()), ("city", pa.string())), stored=dropped.config, schemas=schemas)
    assert ids(again.config)["city"] > max(ids(OLD).values())


def test_a_rename_that_was_applied_may_stay_in_the_program_while_its_old_name_is_used_again() -> None:
    renamed = evolve(keyed(("trips", pa.int32()), ("town", pa.string()), renames={"town": "city"}), stored=OLD)
    fields = [("trips", pa.int32()), ("town", pa.string()), ("city", pa.string())]
    again = evolve(keyed(*fields, renames={"town": "city"}), stored=renamed.config)
    assert ids(again.config)["town"] == ids(OLD)["city"]
    assert ids(again.config)["city"] not in ids(OLD).values()
    third = evolve(keyed(*fields, renames={"town": "city"}), stored=again.config)
    assert ids(third.config) == ids(again.config)


def test_a_program_from_before_a_rename_is_refused_instead_of_losing_the_column() -> None:
    renamed = evolve(keyed(("trips", pa.int32()), ("town", pa.string()), renames={"town": "city"}), stored=OLD).config
    before = keyed(("trips", pa.int32()), ("city", pa.string()))
    with pytest.raises(IncompatibleSchemaError, match=r"it was renamed to 'town'; give renames=\{'city': 'town'\}"):
        evolve(before, stored=renamed)
    back = keyed(("trips", pa.int32()), ("city", pa.string()), renames={"city": "town"})
    assert ids(evolve(back, stored=renamed).config) == ids(OLD)


def test_two_columns_may_change_their_names_with_each_other() -> None:
    stored = keyed(("a", pa.int32()), ("b", pa.int32()))
    wanted = keyed(("a", pa.int32()), ("b", pa.int32()), renames={"a": "b", "b": "a"})
    swapped = evolve(wanted, stored=stored).config
    assert ids(swapped) == {"rider": 16, "a": ids(stored)["b"], "b": ids(stored)["a"]}
    assert ids(evolve(wanted, stored=swapped).config) == ids(swapped)


def test_renames_lead_over_versions_that_were_skipped() -> None:
    wanted = keyed(("trips", pa.int32()), ("place", pa.string()), renames={"place": "town", "town": "city"})
    assert ids(evolve(wanted, stored=OLD).config)["place"] == ids(OLD)["city"]


def test_two_columns_never_come_from_one() -> None:
    stored = keyed(("a", pa.int32()))
    wanted = keyed(("b", pa.int32()), ("c", pa.int32()), renames={"c": "b", "b": "a"})
    evolution = evolve(wanted, stored=stored)
    assert ids(evolution.config)["b"] == ids(stored)["a"]
    assert verdicts(evolution) == {"b": "renamed from 'a'", "c": "added"}


def test_a_column_takes_the_name_of_one_that_is_dropped() -> None:
    stored = keyed(("a", pa.int32()), ("b", pa.int32()))
    evolution = evolve(keyed(("b", pa.int32()), renames={"b": "a"}), stored=stored)
    assert ids(evolution.config)["b"] == ids(stored)["a"]
    assert [(one.what, one.verdict) for one in evolution.differences] == [("b", "renamed from 'a'"), ("b", "dropped")]


def test_added_columns_have_null_or_their_default_in_older_rows() -> None:
    fields = [("trips", pa.int32()), ("city", pa.string()), ("stars", pa.int8()), ("tips", pa.decimal128(9, 2), False)]
    wanted = keyed(*fields, defaults={"tips": Decimal("0.50")})
    evolution = evolve(wanted, stored=OLD)
    assert verdicts(evolution) == {"stars": "added", "tips": "added"}
    found = defaults_from_bytes(evolution.config.keyed.defaults)
    assert {name: value.as_py() for name, value in found.items()} == {"tips": Decimal("0.50")}


def test_a_default_stays_when_the_program_no_longer_gives_it_and_when_its_column_is_renamed_and_widened() -> None:
    fields = [("trips", pa.int32()), ("city", pa.string())]
    added = evolve(keyed(*fields, ("tips", pa.float32(), False), defaults={"tips": 0.1}), stored=OLD).config
    kept = evolve(keyed(*fields, ("tips", pa.float32(), False)), stored=added).config
    assert defaults_from_bytes(kept.keyed.defaults)["tips"] == pa.scalar(0.1, pa.float32())
    wanted = keyed(*fields, ("extra", pa.float64(), False), renames={"extra": "tips"}, defaults={"extra": 0.1})
    widened = evolve(wanted, stored=kept).config
    found = defaults_from_bytes(widened.keyed.defaults)["extra"]
    assert (found.type, found.as_py()) == (pa.float64(), pa.scalar(0.1, pa.float32()).as_py())


@pytest.mark.parametrize("value", [math.nan, None, 3.5])
def test_the_same_default_may_stay_in_the_program(value: float | None) -> None:
    wanted = keyed(("trips", pa.int32()), ("city", pa.string()), ("tips", pa.float64()), defaults={"tips": value})
    first = evolve(wanted, stored=OLD).config
    assert evolve(wanted, stored=first) == Evolution(first, ())


@pytest.mark.parametrize(
    ("wanted", "refused"),
    [
        (keyed(("trips", pa.int16()), ("city", pa.string())), "not every int32 is a int16"),
        (keyed(("trips", pa.string()), ("city", pa.string())), "not every int32 is a string"),
        (keyed(("trips", pa.int32(), False), ("city", pa.string())), "stored rows may have nulls"),
        (keyed(("trips", pa.int32()), ("city", pa.string()), ("tips", pa.int8(), False)), "defaults={'tips': ...}"),
        (keyed(("trips", pa.int32()), ("city", pa.string()), defaults={"trips": 1}), "a default is given when"),
        (keyed(("trips", pa.int32()), ("city", pa.string()), ttl=HOUR), "stored rows have no time"),
        (
            keyed_table_config("riders", "", ["rider", "city"], columns(("trips", pa.int32()), ("city", pa.string()))),
            "other key columns",
        ),
        (
            keyed_table_config("riders", "", ["city"], pa.schema([("city", pa.string()), ("trips", pa.int32())])),
            "stored rows are found by it",
        ),
        (
            keyed_table_config(
                "riders",
                "",
                ["rider"],
                pa.schema([("rider", pa.int32()), ("trips", pa.int32()), ("city", pa.string())]),
            ),
            "another hash",
        ),
    ],
)
def test_what_stored_rows_do_not_allow_is_refused(wanted: pb.TableConfig, refused: str) -> None:
    with pytest.raises(IncompatibleSchemaError) as caught:
        evolve(wanted, stored=OLD)
    assert refused in str(caught.value)


def test_the_order_of_keys_is_part_of_their_hash() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(IncompatibleSchemaError, match="another order"):
        evolve(keyed_table_config("t", "", ["b", "a"], schema), stored=keyed_table_config("t", "", ["a", "b"], schema))


def test_a_difference_is_shown_as_a_table_with_all_that_differs() -> None:
    wanted = keyed(("trips", pa.int16()), ("town", pa.string()), ("tips", pa.int8(), False), renames={"town": "city"})
    with pytest.raises(IncompatibleSchemaError) as caught:
        evolve(wanted, stored=OLD)
    assert caught.value.what.splitlines()[1:] == [
        "         stored  program",
        "  trips  int32   int16          refused: not every int32 is a int16",
        "  town   string  string         renamed from 'city'",
        "  tips   -       int8 not null  refused: rows stored before have no value; give defaults={'tips': ...}",
    ]


def test_time_to_live_may_change_and_end_but_not_its_clock() -> None:
    stored = keyed(ttl=HOUR)
    assert verdicts(evolve(keyed(ttl=2 * HOUR), stored=stored)) == {"time to live": "changed"}
    assert verdicts(evolve(keyed(), stored=stored)) == {"time to live": "rows stay"}
    with pytest.raises(IncompatibleSchemaError, match="times of the other clock"):
        evolve(keyed(ttl=HOUR, ttl_clock=TimeToLiveClock.EPOCH_TIME), stored=stored)


def test_retention_may_change_but_neither_bins_nor_generations() -> None:
    stored = timed()
    assert verdicts(evolve(timed(retention=2 * HOUR, bin_width=HOUR), stored=stored)) == {"retention": "changed"}
    with pytest.raises(IncompatibleSchemaError, match="bins of 1 hour: pass bin_width='1 hour'"):
        evolve(timed(retention=2 * HOUR), stored=stored)
    with pytest.raises(IncompatibleSchemaError, match="generational"):
        evolve(timed(generational=True), stored=stored)


def test_a_table_of_one_kind_does_not_become_one_of_another() -> None:
    with pytest.raises(IncompatibleSchemaError, match="cannot become"):
        evolve(timed(), stored=keyed())


@pytest.mark.parametrize(
    "make",
    [
        lambda: keyed(("a", pa.int32()), renames={"b": "a"}),
        lambda: keyed(("a", pa.int32()), renames={"a": "a"}),
        lambda: keyed(("a", pa.int32()), ("b", pa.int32()), renames={"a": "c", "b": "c"}),
        lambda: keyed(("a", pa.int32()), defaults={"b": 1}),
        lambda: keyed(("a", pa.int32()), defaults={"rider": 1}),
        lambda: keyed(("a", pa.int8()), defaults={"a": 1000}),
        lambda: keyed(("a", pa.int8()), defaults={"a": "one"}),
        lambda: keyed(("a", pa.int8(), False), defaults={"a": None}),
    ],
)
def test_renames_and_defaults_that_mean_nothing_are_refused_when_they_are_given(make: Any) -> None:
    with pytest.raises(InputError):
        make()


LADDERS = [
    [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
    [pa.uint8(), pa.int16()],
    [pa.uint32(), pa.int64()],
    [pa.float16(), pa.float32(), pa.float64()],
    [pa.decimal128(9, 2), pa.decimal128(10, 3), pa.decimal128(38, 4), pa.decimal256(60, 4)],
    [pa.date32(), pa.date64()],
    [pa.date32(), pa.timestamp("ms")],
    [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
    [pa.string(), pa.large_string()],
    [pa.binary(), pa.large_binary()],
]


@pytest.mark.parametrize("ladder", LADDERS, ids=lambda ladder: str(ladder[0]))
def test_types_widen_upwards_only(ladder: list[pa.DataType]) -> None:
    for low, narrow in enumerate(ladder):
        for high, wide in enumerate(ladder):
            assert widens(narrow, wide) == (low < high), (narrow, wide)


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (pa.uint32(), pa.int32()),
        (pa.int8(), pa.uint16()),
        (pa.int32(), pa.float64()),
        (pa.decimal128(9, 2), pa.decimal128(10, 4)),
        (pa.date32(), pa.timestamp("us")),
        (pa.date32(), pa.timestamp("s", "UTC")),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.duration("s"), pa.duration("ms")),
        (pa.string(), pa.binary()),
        (pa.list_(pa.int8()), pa.list_(pa.int16())),
    ],
)
def test_types_that_do_not_hold_every_value_are_not_wider(stored: pa.DataType, wanted: pa.DataType) -> None:
    assert not widens(stored, wanted)
