"""docs/format.md agrees with the code: its example, its test vectors and its numbers."""

import datetime as dt
import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from statebed.arrays.key_hash import hash_columns
from statebed.format import checkpoint_pb2 as pb
from statebed.format import segment_writer
from statebed.format.digest import crc32c
from statebed.format.schema import FIRST_USER_FIELD_ID, RESERVED_FIELD_IDS
from statebed.format.sealed import seal

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "format.md").read_text()
TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "decimal(9,2)": pa.decimal128(9, 2),
    "decimal(38,2)": pa.decimal128(38, 2),
    "arrayoflong": pa.list_(pa.int64()),
    "structofstringandlong": pa.struct([("a", pa.string()), ("b", pa.int64())]),
    "uint64": pa.uint64(),
    "time": pa.time64("ns"),
    "any": pa.null(),
}


def value_of(text: str, kind: str) -> object:
    if text == "null":
        return None
    if kind.startswith("decimal"):
        return Decimal(text)
    parsers: dict[str, Callable[[], object]] = {
        "boolean": lambda: text == "true",
        "int": lambda: int(text),
        "long": lambda: int(text),
        "float": lambda: float(text),
        "double": lambda: float(text),
        "date": lambda: dt.date.fromisoformat(text),
        "timestamp": lambda: dt.datetime.fromisoformat(text),
        "array of long": lambda: json.loads(text),
        "struct of string and long": lambda: json.loads(text),
        "uint64": lambda: int(text),
        "time": lambda: dt.time.fromisoformat(text),
    }
    return parsers[kind]() if kind in parsers else "" if text == "(empty)" else text


def test_the_example_of_a_sealed_message_is_what_we_write() -> None:
    [block] = re.findall(r"```hex\n(.*?)```", TEXT, re.DOTALL)
    marker = pb.PublishedMarker(sink_id="minutes", epoch=42, run=40, time_us=1700000000000000)
    assert bytes.fromhex(block) == seal(marker)
    assert f"{crc32c(seal(marker)[:-5]):#010x}" in TEXT
    assert f"{crc32c(b'123456789'):#010X}".replace("X", "x") in TEXT


def test_the_test_vectors_of_the_key_hash_are_what_we_compute() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (\d+) \| (-?\d+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 24
    for values, kinds, unsigned, signed in rows:
        pairs = zip(values.split(", then "), re.split(r", (?!\d)", kinds), strict=True)
        columns = [pa.array([value_of(value, kind)], TYPES[kind.replace(" ", "")]) for value, kind in pairs]
        assert hash_columns(columns).tolist() == [int(unsigned)], values
        assert int(signed) % (1 << 64) == int(unsigned)


def test_the_numbers_of_the_specification_are_those_of_the_code() -> None:
    assert f"at most {segment_writer.ROW_GROUP_ROWS} rows and about {segment_writer.ROW_GROUP_BYTES >> 20} MiB" in TEXT
    assert f"at most {segment_writer.PACKED_ROWS} rows together" in TEXT
    assert f"from {FIRST_USER_FIELD_ID} on for user columns" in TEXT
    for name, number in RESERVED_FIELD_IDS.items():
        assert re.search(rf"^\| `{name}` \| [^|]+ \| {number} \|", TEXT, re.MULTILINE), name


def test_every_key_of_the_files_metadata_is_specified() -> None:
    source = Path(segment_writer.__file__).read_text()
    keys = set(re.findall(r'"(statebed\.[a-z_]+)":', source))
    assert len(keys) == 7
    for key in keys:
        assert f"| `{key}` |" in TEXT


def test_every_operation_of_tombstones_is_specified() -> None:
    for operation in pb.Tombstone.DESCRIPTOR.oneofs_by_name["operation"].fields:
        assert f"| `{operation.name}` |" in TEXT
