"""State as a table on a real S3 server, while a job writes to it."""

import pytest
from s3.server import S3Server
from unit.inspect.table_world import JOB, TableWorld

import statebed as sb

pytestmark = pytest.mark.s3


def test_state_on_s3_is_read_by_key_and_time_and_compared(
    s3_server: S3Server, s3_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = s3_server.options
    world = TableWorld(tmp_path_factory.mktemp("unused"), url=s3_url, storage_options=options)
    numbers = list(range(500))
    world.write("drivers", {"city": ["Ulm"] * 500, "driver": numbers, "trips": numbers, "note": [None] * 500})
    world.write("fares", {"driver": numbers, "_time": [n * 1_000_000 for n in numbers], "cents": numbers})
    first = world.epoch()
    table = sb.read_state(s3_url, job=JOB, table="drivers", storage_options=options)
    world.write("drivers", {"city": ["Ulm"], "driver": [7], "trips": [70], "note": ["new"]})
    world.epoch()
    assert table.keys(("Ulm", 7)).to_arrow()["trips"].to_pylist() == [7]
    assert (table.count(), table.epoch) == (500, first)
    fares = sb.read_state(s3_url, table="fares", storage_options=options)
    assert fares.between("1970-01-01 00:01", "1970-01-01 00:02").count() == 60
    changes = sb.diff_state(s3_url, table="drivers", since=first, storage_options=options).to_arrow()
    assert changes.select(["change", "trips"]).to_pylist() == [
        {"change": "update_before", "trips": 7},
        {"change": "update_after", "trips": 70},
    ]
    (part,) = sb.read_state(s3_url, table="drivers", storage_options=options).keys(("Ulm", 7)).slices()
    assert [row["note"] for batch in part.batches() for row in batch.to_pylist()] == ["new"]
    world.end()
