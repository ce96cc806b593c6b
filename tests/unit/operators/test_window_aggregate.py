"""The definition of an aggregation over windows."""

from dataclasses import replace

import pyarrow as pa
import pytest

from statebed.aggregates.functions import count
from statebed.aggregates.functions import sum as sum_of
from statebed.errors import InputError, InvalidNameError
from statebed.operators import MAIN, WindowAggregate, sliding, tumbling

OPERATOR = WindowAggregate(
    operator_id="rides",
    keys=(pa.field("driver", pa.string()),),
    window=tumbling("1 minute"),
    aggregates=(count().bind("trips"), sum_of("fare").bind("total", input_types=(pa.float32(),), text="fare")),
)


def test_schemas_of_input_and_output_are_known_before_anything_runs() -> None:
    assert OPERATOR.inputs[0].schema.names == ["_key_hash", "_time", "driver", "_a1"]
    columns = OPERATOR.outputs[MAIN].columns
    assert columns.names == ["driver", "window_start", "window_end", "trips", "total"]
    assert columns.field("window_end").type == pa.timestamp("us", tz="UTC")
    assert columns.field("total").type == pa.float64()


def test_the_fingerprint_tells_configurations_apart_and_does_not_know_the_name() -> None:
    others = [
        replace(OPERATOR, keys=(pa.field("driver", pa.binary()),)),
        replace(OPERATOR, window=tumbling("1 minute", offset="1 s")),
        replace(OPERATOR, window=sliding("1 minute", "1 minute")),
        replace(OPERATOR, aggregates=OPERATOR.aggregates[:1]),
        replace(OPERATOR, aggregates=(OPERATOR.aggregates[0], replace(OPERATOR.aggregates[1], text="fare * 2"))),
    ]
    assert len({OPERATOR.definition.fingerprint, *(other.definition.fingerprint for other in others)}) == 6
    assert replace(OPERATOR, operator_id="other").definition.fingerprint == OPERATOR.definition.fingerprint


@pytest.mark.parametrize("name", ["_time", "_a1", "window_start", "total", "_total_rest"])
def test_a_key_whose_name_is_taken_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=name):
        replace(OPERATOR, keys=(pa.field(name, pa.string()),))


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float16()), pa.struct([("a", pa.null())]), pa.map_(pa.int8(), pa.int8()), pa.null()]
)
def test_a_key_that_cannot_be_compared_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InputError, match="cannot be part of a key"):
        replace(OPERATOR, keys=(pa.field("driver", kind),))


def test_an_operator_needs_a_name_that_can_be_part_of_an_object_name() -> None:
    for name in ("../rides", "per-minute", ""):
        with pytest.raises(InvalidNameError):
            replace(OPERATOR, operator_id=name)
