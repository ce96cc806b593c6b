"""Tasks that read files observe event times where a watermark of Spark's clock stands."""

import pyarrow as pa

from statebed.expressions import bind
from statebed.spark.scan.program import Program, ScanFilter, ScanWatermark

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])
BELOW = ScanFilter(bind("v > 0", SCHEMA))
ABOVE = ScanFilter(bind("v > 1", SCHEMA))
PROGRAM = Program((), (BELOW, ScanWatermark("node", "ts"), ABOVE))


def observed(*batches: list[tuple[int | None, int]]) -> tuple[dict[str, int], int]:
    latest_ms: dict[str, int] = {}
    count = 0
    for rows in batches:
        times, values = zip(*rows, strict=True)
        batch = pa.record_batch([pa.array(times, SCHEMA.types[0]), pa.array(values)], schema=SCHEMA)
        count += sum(result.num_rows for result in PROGRAM.rows(batch, latest_ms))
    return latest_ms, count


def test_rows_count_that_pass_the_steps_below_the_watermark_and_no_others() -> None:
    assert observed([(9_999, 0), (5_999, 1), (1_000, 2)], [(2_000, 2)]) == ({"node": 5}, 2)


def test_times_are_rounded_down_to_milliseconds_and_a_missing_one_is_1970() -> None:
    assert observed([(-1, 1)]) == ({"node": -1}, 0)
    assert observed([(-1, 1), (None, 1)]) == ({"node": 0}, 0)


def test_nothing_is_observed_if_no_row_arrives() -> None:
    assert observed([(9_999, 0)]) == ({}, 0)
