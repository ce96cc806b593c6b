"""Calls to a format of Spark, recorded where they leave statebed: options, modes, Delta's transactions."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from published import publication

from statebed.errors import InputError, SinkError
from statebed.format.stream_schema import Changes, Output
from statebed.protocol import Guarantee
from statebed.sinks import Envelope
from statebed.sinks.row_shape import Form, RowShape
from statebed.spark.api.format_sink import FormatSink, format_target

COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64())])


@dataclass
class RecordingWriter:
    """Stands where Spark's DataFrameWriter stands, and remembers."""

    rows: pa.Table
    saved: list[dict[str, Any]]
    asked: dict[str, Any] = field(default_factory=dict)

    @property
    def write(self) -> "RecordingWriter":
        return self

    def format(self, name: str) -> "RecordingWriter":
        self.asked["format"] = name
        return self

    def mode(self, mode: str) -> "RecordingWriter":
        self.asked["mode"] = mode
        return self

    def options(self, **options: Any) -> "RecordingWriter":
        self.asked["options"] = options
        return self

    def partitionBy(self, *columns: str) -> "RecordingWriter":  # noqa: N802 - Spark's name
        self.asked["partition_by"] = columns
        return self

    def save(self, path: str | None) -> None:
        if path == "broken":
            raise OSError("the disk is full")
        self.saved.append({**self.asked, "path": path, "rows": self.rows.to_pylist()})


def sink(
    saved: list[dict[str, Any]], name: str, path: str | None, *, form: Form = Form.ROWS, **options: Any
) -> FormatSink:
    output = Output(COLUMNS, Changes.APPEND if form is Form.ROWS else Changes.CHANGELOG)
    target = format_target(name, path=path, options=options, columns=COLUMNS.names, where="here")
    return FormatSink(
        sink_id="out",
        target=target,
        shape=RowShape(output, form, Envelope("rides", "out", ("k",))),
        to_frame=lambda rows: RecordingWriter(rows, saved),  # type: ignore[arg-type, return-value]
    )


def test_options_of_the_format_go_to_the_format_and_the_epoch_into_the_path() -> None:
    saved: list[dict[str, Any]] = []
    made = sink(saved, "json", "out/{epoch}", mode="overwrite", partition_by="k", compression="gzip", multiLine=True)
    made.publish(publication(1, 7, pa.table({"k": ["a"], "n": [1]})))
    made.publish(publication(1, 8))
    assert saved == [
        {
            "format": "json",
            "mode": "overwrite",
            "options": {"compression": "gzip", "multiLine": True},
            "partition_by": ("k",),
            "path": "out/000000000007",
            "rows": [{"k": "a", "n": 1}],
        }
    ]
    assert made.guarantee is Guarantee.AT_LEAST_ONCE
    assert made.described == "Spark format json, overwrite out/{epoch}"


def test_a_format_gets_its_own_options_and_no_others() -> None:
    saved: list[dict[str, Any]] = []
    sink(saved, "jdbc", None, dbtable="t", url="jdbc:x", password="hunter2").publish(
        publication(1, 7, pa.table({"k": ["a"], "n": [1]}))
    )
    assert saved[0]["options"] == {"dbtable": "t", "url": "jdbc:x", "password": "hunter2"}
    assert saved[0]["path"] is None
    assert "hunter2" not in sink(saved, "jdbc", None, password="hunter2").described


def test_changes_are_told_in_the_form_that_was_asked_for() -> None:
    saved: list[dict[str, Any]] = []
    changes = publication(
        1, 7, pa.table({"k": ["a"], "n": [1], "_weight": [-1]}), pa.table({"k": ["a"], "n": [2], "_weight": [1]})
    )
    sink(saved, "x", None, form=Form.ROW_KIND).publish(changes)
    sink(saved, "x", None, form=Form.WEIGHTS).publish(changes)
    sink(saved, "kafka", None, form=Form.DEBEZIUM, topic="t").publish(changes)
    assert [row["row_kind"] for row in saved[0]["rows"]] == ["update_before", "update_after"]
    assert [row["_weight"] for row in saved[1]["rows"]] == [-1, 1]
    (message,) = saved[2]["rows"]
    assert message["key"] == '{"k":"a"}'
    assert '"before":{"k":"a","n":1},"after":{"k":"a","n":2},"op":"u"' in message["value"]


def test_changes_that_cancel_out_are_not_handed_over() -> None:
    saved: list[dict[str, Any]] = []
    sink(saved, "x", None, form=Form.WEIGHTS).publish(
        publication(
            1, 7, pa.table({"k": ["a"], "n": [1], "_weight": [-1]}), pa.table({"k": ["a"], "n": [1], "_weight": [1]})
        )
    )
    assert saved == []


def test_a_format_that_fails_is_named_with_its_epoch() -> None:
    with pytest.raises(
        SinkError, match="Spark's format orc of sink out failed with OSError: the disk is full"
    ) as caught:
        sink([], "orc", "broken").publish(publication(1, 7, pa.table({"k": ["a"], "n": [1]})))
    assert caught.value.where == "epoch 7, 1 rows"


@pytest.mark.parametrize(
    ("name", "path", "options", "words"),
    [
        ("json", None, {}, "needs path="),
        ("json", "out", {"mode": "ignore"}, "would lose an epoch"),
        ("json", "out", {"mode": "error"}, "would lose an epoch"),
        ("json", "out", {"partition_by": ["x"]}, "the columns are"),
        ("json", "out", {"lines": ["x"]}, "must be text, a number or a boolean"),
    ],
)
def test_a_mistake_is_refused(name: str, path: str | None, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sink([], name, path, **options)
