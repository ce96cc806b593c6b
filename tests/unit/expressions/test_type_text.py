"""Columns and types as SQL text."""

import pyarrow as pa
import pytest

from statebed.errors import InputError
from statebed.expressions.type_text import schema_of, type_of


def test_columns_have_sparks_types() -> None:
    assert schema_of("amount double, at timestamp, n BIGINT not null, price decimal(12, 2), raw binary") == pa.schema(
        [
            pa.field("amount", pa.float64()),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("n", pa.int64(), nullable=False),
            pa.field("price", pa.decimal128(12, 2)),
            pa.field("raw", pa.binary()),
        ]
    )


def test_types_can_be_nested_and_names_quoted() -> None:
    (found,) = schema_of("`a ``b` struct<xs: array<int>, m: map<string, array<date>>, `not` boolean>")
    inner = {field.name: field.type for field in found.type}
    assert found.name == "a `b"
    assert inner == {
        "xs": pa.list_(pa.field("element", pa.int32())),
        "m": pa.map_(pa.string(), pa.list_(pa.field("element", pa.date32()))),
        "not": pa.bool_(),
    }
    assert type_of("array<decimal(38)>").value_type == pa.decimal128(38, 0)


def test_arrow_types_and_schemas_stay_as_they_are() -> None:
    schema = pa.schema([("x", pa.uint8())])
    assert schema_of(schema) is schema
    assert type_of(pa.uint8()) == pa.uint8()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "must name at least one column"),
        ("a int, A string", "each once"),
        ("a", "ends too early"),
        ("a integr", "has the unknown type 'integr'"),
        ("a array<int", "lacks '>'"),
        ("a map<int>", "lacks ','"),
        ("a int b", "has 'b' after its end"),
        ("a int; b int", "cannot be read"),
        ("3a int", "instead of a column name"),
        ("a decimal(39, 0)", "has the unknown type"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused_with_an_example(text: str, what: str) -> None:
    with pytest.raises(InputError, match="(?i)" + what.replace("'", ".")) as caught:
        schema_of(text, where="aggregate 'a'")
    assert "amount double" in caught.value.fix
    assert caught.value.where == "aggregate 'a'"
