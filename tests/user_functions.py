"""Functions of a user, in a module that other processes can import."""

import asyncio

import pyarrow as pa
import pyarrow.compute as pc

import statebed as sb


@sb.udf(returns="double")
def with_tip(fare: pa.Array, tip: pa.Array) -> pa.Array:
    return pc.add(fare, pc.cast(tip, pa.float64()))


@sb.udf(returns="string", concurrency=4, retries=2, backoff="1 millisecond", timeout="5 seconds")
async def looked_up(key: str | None) -> str | None:
    await asyncio.sleep(0.001)
    if key == "bad":
        raise KeyError(key)
    return None if key is None else f"<{key}>"


@sb.udf(returns="string", timeout="10 milliseconds")
async def slow(key: str) -> str:
    await asyncio.sleep(60)
    return key


def broken(values: pa.Array) -> pa.Array:
    raise ValueError(f"no result for {values[0]}")


def of_another_type(values: pa.Array) -> pa.Array:
    return pc.cast(values, pa.string())


def too_few(values: pa.Array) -> pa.Array:
    return values.slice(1)


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = ["driver", "twice"]
    return pa.RecordBatch.from_arrays([batch["driver"], pc.multiply(batch["fare"], 2.0)], names=names)


def one_row_less(batch: pa.RecordBatch) -> pa.RecordBatch:
    return doubled(batch).slice(1)


async def one_and_a_half(_: float) -> float:
    return 1.5


async def some_text(_: float) -> str:
    return "text"
