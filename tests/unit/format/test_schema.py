"""Field ids, schema ids and the bytes of schemas."""

import subprocess
import sys

import pyarrow as pa
import pytest

from statebed.errors import CorruptObjectError, FormatError, InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import (
    assign_field_ids,
    check_user_columns,
    field_id,
    find_schema,
    merge_schema_lists,
    register_schema,
    same_schema,
    schema_from_bytes,
    schema_to_bytes,
    with_field_id,
)


def ids(schema: pa.Schema) -> dict[str, int]:
    return {field.name: field_id(field) for field in schema}


@pytest.mark.parametrize("name", ["_key_hash", "_time", "_seq", "_bin", "_SEQ", "_Key_Hash"])
def test_reserved_names_are_refused_for_columns_of_users(name: str) -> None:
    with pytest.raises(InputError, match="reserved") as caught:
        assign_field_ids(pa.schema([(name, pa.int64())]), where="operator 'x'")
    assert caught.value.where == "operator 'x'"
    assert "rename" in caught.value.fix


@pytest.mark.parametrize(("names", "message"), [(["a", "a"], "two columns"), ([""], "empty name")])
def test_repeated_and_empty_names_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_user_columns(names)


def test_new_columns_are_numbered_in_their_order() -> None:
    assert ids(assign_field_ids(pa.schema([("b", pa.int64()), ("a", pa.string())]))) == {"b": 16, "a": 17}


def test_columns_keep_their_ids_when_others_come_go_and_move() -> None:
    first = assign_field_ids(pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())]))
    second = assign_field_ids(pa.schema([("c", pa.int64()), ("d", pa.int64()), ("a", pa.int64())]), history=[first])
    assert ids(second) == {"c": 18, "d": 19, "a": 16}
    third = assign_field_ids(pa.schema([("b", pa.int64()), ("a", pa.int64())]), history=[first, second])
    assert ids(third) == {"b": 20, "a": 16}, "an id that was dropped is never used again"


def test_a_renamed_column_keeps_the_id_it_carries() -> None:
    first = assign_field_ids(pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    renamed = pa.schema([with_field_id(pa.field("b", pa.int64()), 16), pa.field("a", pa.int64())])
    assert ids(assign_field_ids(renamed, history=[first])) == {"b": 16, "a": 18}


def test_ids_that_clash_or_are_reserved_are_refused() -> None:
    twice = pa.schema([with_field_id(pa.field(name, pa.int64()), 20) for name in ("a", "b")])
    with pytest.raises(InputError, match="same field id"):
        assign_field_ids(twice)
    with pytest.raises(InputError, match="reserved"):
        assign_field_ids(pa.schema([with_field_id(pa.field("a", pa.int64()), 3)]))


def test_a_schema_without_ids_is_refused_where_ids_are_needed() -> None:
    with pytest.raises(FormatError, match="no field id"):
        schema_to_bytes(pa.schema([("a", pa.int64())]))


def nested(item: str, metadata: dict[str, str] | None) -> pa.Schema:
    kind = pa.struct([pa.field("x", pa.list_(pa.field(item, pa.int64(), metadata=metadata)), metadata=metadata)])
    return assign_field_ids(pa.schema([pa.field("s", kind)], metadata=metadata))


def test_metadata_of_other_programs_is_no_part_of_a_schema() -> None:
    plain, decorated = nested("element", None), nested("item", {"pandas": "{}"})
    assert same_schema(plain, decorated)
    assert schema_to_bytes(plain) == schema_to_bytes(decorated)


@pytest.mark.parametrize(
    "other",
    [
        pa.schema([("b", pa.int64())]),
        pa.schema([("a", pa.int32())]),
        pa.schema([pa.field("a", pa.int64(), nullable=False)]),
        pa.schema([with_field_id(pa.field("a", pa.int64()), 99)]),
        pa.schema([("a", pa.int64()), ("b", pa.int64())]),
    ],
)
def test_names_types_nullability_and_ids_make_the_difference(other: pa.Schema) -> None:
    assert not same_schema(assign_field_ids(pa.schema([("a", pa.int64())])), assign_field_ids(other))


def test_bytes_come_back_as_the_schema_and_are_the_same_in_another_process() -> None:
    schema = assign_field_ids(
        pa.schema([("a", pa.map_(pa.string(), pa.decimal128(9, 2))), ("t", pa.timestamp("us", "UTC"))])
    )
    data = schema_to_bytes(schema)
    assert schema_from_bytes(data).equals(schema, check_metadata=True)
    script = (
        "import sys; from statebed.format.schema import schema_from_bytes, schema_to_bytes\n"
        "print(schema_to_bytes(schema_from_bytes(bytes.fromhex(sys.argv[1]))).hex())"
    )
    child = subprocess.run(
        [sys.executable, "-c", script, data.hex()],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PYTHONHASHSEED": "77"},
    )
    assert child.stdout.strip() == data.hex()


def test_bytes_that_are_no_schema_are_refused_by_name() -> None:
    for data in (b"", b"nonsense", b"\xff" * 40):
        with pytest.raises(CorruptObjectError, match="some/where"):
            schema_from_bytes(data, where="some/where")


def test_the_id_of_a_schema_is_its_place_in_the_list() -> None:
    one = assign_field_ids(pa.schema([("a", pa.int64())]))
    two = assign_field_ids(pa.schema([("a", pa.int64()), ("b", pa.int64())]), history=[one])
    first, known = register_schema([], one)
    second, grown = register_schema(known, two)
    again, same = register_schema(grown, one)
    assert (first, second, again) == (0, 1, 0)
    assert [entry.schema_id for entry in grown] == [0, 1]
    assert same == grown
    assert same_schema(find_schema(grown, 1), two)
    with pytest.raises(CorruptObjectError, match="schema 2"):
        find_schema(grown, 2)


def test_lists_of_merged_subtasks_are_beginnings_of_the_longest_or_damaged() -> None:
    one, two, other = (
        pb.TableSchema(schema_id=index, arrow_ipc=data) for index, data in ((0, b"a"), (1, b"b"), (1, b"c"))
    )
    assert merge_schema_lists([[one], [one, two], []]) == (one, two)
    with pytest.raises(CorruptObjectError, match="different schemas"):
        merge_schema_lists([[one, two], [one, other]])
