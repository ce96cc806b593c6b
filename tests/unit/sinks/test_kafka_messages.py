"""Messages of rows for Kafka, and names of topics, without a broker."""

import pyarrow as pa
import pytest
from published import NOT_UTF8, publication

from statebed.errors import InputError, SinkError
from statebed.format.stream_schema import Output
from statebed.sinks import Envelope
from statebed.sinks.kafka import Encoding, MessageEncoder
from statebed.sinks.registry import KINDS, SinkRequest


@pytest.mark.parametrize("encoding", [Encoding.RAW, Encoding.JSON, Encoding.AVRO])
def test_text_that_is_not_utf8_is_a_raw_message_and_named_in_others(encoding: Encoding) -> None:
    rows = pa.table({"value": NOT_UTF8})
    envelope = Envelope("rides", "out", ())
    encoder = MessageEncoder(Output(rows.schema), encoding=encoding, envelope=envelope, where="test")
    if encoding is Encoding.RAW:
        ((first, second),) = encoder.messages(publication(1, 2, rows))
        assert (first["value"], second["value"]) == (b"\xff\xfe", b"a\xc3")
        return
    with pytest.raises(SinkError, match="the column value that is not UTF-8"):
        list(encoder.messages(publication(1, 2, rows)))


@pytest.mark.parametrize(
    "topic", ["a b", "a/b", "é", "a\0", ".", "..", "x" * 250, 'a"b', "\N{CYRILLIC SMALL LETTER A}"]
)
def test_a_topic_that_kafka_cannot_have_is_refused_before_the_broker_is_asked(topic: str) -> None:
    wanted = SinkRequest(
        sink_id="out",
        job_id="rides",
        output=Output(pa.schema([("value", pa.string())])),
        key=(),
        path=None,
        options={"servers": "broker:9092", "topic": topic},
        where="here",
    )
    with pytest.raises(InputError, match="`topic` must have 1 to 249 letters"):
        KINDS["kafka"].make(wanted)
