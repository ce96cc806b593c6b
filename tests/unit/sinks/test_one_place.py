"""Two sinks in one place, under whichever spelling, are refused before anything is written."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from published import publication

from statebed.errors import InputError
from statebed.format.stream_schema import Output
from statebed.sinks import BaseSink, Envelope, MemorySink
from statebed.sinks.neighbours import check_places
from statebed.sinks.registry import KINDS, SinkRequest
from statebed.sinks.row_shape import Form, RowShape
from statebed.spark.api.format_sink import FormatSink, format_target

ROWS = pa.table({"k": ["a"], "n": [1]})


def sink(kind: str, sink_id: str, *, job: str = "rides", path: Any = None, **options: Any) -> BaseSink:
    wanted = SinkRequest(
        sink_id=sink_id,
        job_id=job,
        output=Output(ROWS.schema),
        key=("k",) if kind == "debezium" else (),
        path=None if path is None else str(path),
        options=options,
        where="here",
    )
    return KINDS[kind].make(wanted)


def files(sink_id: str, path: Path | str, mode: str = "append") -> BaseSink:
    """Return a sink that writes CSV with Spark."""
    shape = RowShape(Output(ROWS.schema), Form.ROWS, Envelope("rides", sink_id, ("k",)))
    target = format_target("csv", path=str(path), options={"mode": mode}, columns=ROWS.schema.names, where="here")
    return FormatSink(sink_id=sink_id, target=target, shape=shape, to_frame=lambda rows: rows)


def any_sink(kind: str, sink_id: str, path: Path | str) -> BaseSink:
    if kind in {"append", "overwrite"}:
        return files(sink_id, path, kind)
    options = {"sqlite": {"table": f"t_{sink_id}"}, "iceberg": {"table": f"s.t_{sink_id}"}}.get(kind, {})
    return sink(kind, sink_id, path=path, **options)


def accepted(first: BaseSink, second: BaseSink) -> None:
    check_places(second, state_url="/state", others=[first], where="job rides")


def refused(first: BaseSink, second: BaseSink, match: str = "write to the same target|overlap") -> None:
    with pytest.raises(InputError, match=match):
        check_places(second, state_url="/state", others=[first], where="job rides")


def test_sqlite_tables_that_differ_only_in_case_are_one(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    refused(sink("sqlite", "a", path=path, table="T"), sink("sqlite", "b", path=path, table="t"))
    assert not path.exists()


def test_sqlite_tells_letters_outside_ascii_apart(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    first, second = sink("sqlite", "a", path=path, table="Ä"), sink("sqlite", "b", path=path, table="ä")
    check_places(second, state_url="/state", others=[first], where="job rides")
    for one in (first, second):
        one.open(1)
        one.publish(publication(1, 2, ROWS))
    with sqlite3.connect(path) as connection:
        assert connection.execute('select count(*) from "Ä"').fetchone() == (1,)


def test_postgres_tables_with_the_same_first_63_bytes_are_one() -> None:
    def table(sink_id: str, name: str) -> BaseSink:
        return sink("postgres", sink_id, table=name, dsn="host=db.example dbname=results")

    refused(table("a", "x" * 63 + "one"), table("b", "x" * 63 + "two"))
    refused(table("a", "s." + "ö" * 40), table("b", "s." + "ö" * 31 + "öxyz"))
    check_places(table("b", "x" * 62 + "b"), state_url="/s", others=[table("a", "x" * 62 + "a")], where="job")
    check_places(table("b", "T"), state_url="/s", others=[table("a", "t")], where="job")  # names are quoted


@pytest.mark.parametrize("kind", ["sqlite", "parquet", "debezium"])
def test_a_symbolic_link_and_a_relative_path_lead_to_the_same_place(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"table": "t"} if kind == "sqlite" else {}
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    first = sink(kind, "a", path=real / "out", **options)
    refused(first, sink(kind, "b", path=tmp_path / "link" / "out", **options))
    refused(first, sink(kind, "b", path="real/../link/out", **options))


@pytest.mark.parametrize("kind", ["sqlite", "parquet", "debezium", "iceberg"])
@pytest.mark.parametrize("prefix", ["file:", "file://", "file://localhost"])
def test_a_file_url_leads_to_the_same_place_as_its_path(
    tmp_path: Path, kind: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"sqlite": {"table": "t"}, "iceberg": {"table": "s.t"}}.get(kind, {})
    first, second = (sink(kind, name, path=f"{at}{tmp_path}/out", **options) for name, at in (("a", ""), ("b", prefix)))
    refused(first, second)
    second.open(1)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["sqlite", "parquet", "iceberg"])
def test_a_file_url_with_a_relative_path_is_refused(kind: str) -> None:
    options = {"sqlite": {"table": "t"}, "iceberg": {"table": "s.t"}}.get(kind, {})
    with pytest.raises(InputError, match="must have no host and an absolute path"):
        sink(kind, "a", path="file:out", **options)


@pytest.mark.parametrize("kind", ["sqlite", "iceberg"])
def test_a_remote_path_of_a_sink_in_local_files_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match="needs a local path"):
        sink(kind, "a", path="s3://bucket/out", table="s.t" if kind == "iceberg" else "t")


def test_files_of_two_kinds_do_not_share_a_folder(tmp_path: Path) -> None:
    refused(sink("parquet", "a", path=tmp_path / "out"), sink("debezium", "b", path=f"{tmp_path}/out/"))
    refused(sink("parquet", "a", path=tmp_path / "out"), sink("debezium", "b", path=tmp_path / "out" / "inner"))


_WITH_PATH = ("parquet", "debezium", "delta", "iceberg", "sqlite", "append", "overwrite")


def test_every_kind_with_a_path_is_tried_here() -> None:
    assert {name for name, kind in KINDS.items() if kind.has_path} <= {*_WITH_PATH}


@pytest.mark.parametrize("kind", _WITH_PATH)
def test_no_sink_writes_into_the_table_of_another(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for table in ("parquet", "debezium", "delta"):
        for path in ("out", tmp_path / "out", f"file:{tmp_path}/out", tmp_path / "out" / "inner"):
            refused(any_sink(table, "a", tmp_path / "out"), any_sink(kind, "b", path))
            refused(any_sink(kind, "b", path), any_sink(table, "a", tmp_path / "out"))
        accepted(any_sink(table, "a", tmp_path / "out"), any_sink(kind, "b", tmp_path / "out2"))


@pytest.mark.parametrize("kind", _WITH_PATH)
def test_no_sink_writes_into_the_state(tmp_path: Path, kind: str) -> None:
    for path in (tmp_path / "state", tmp_path / "state" / "rides" / "out"):
        with pytest.raises(InputError, match=r"of sink a and the state overlap"):
            check_places(any_sink(kind, "a", path), state_url=str(tmp_path / "state"), others=[], where="job rides")


def test_a_sink_of_spark_does_not_write_to_the_bucket_folder_of_another_under_another_scheme() -> None:
    refused(sink("parquet", "a", path="s3://bucket/out"), files("b", "s3a://bucket/out/inner"))
    for other in ("s3a://bucket/x/../out", "s3a://bucket//out", "s3a://bucket/./out/inner"):
        refused(sink("parquet", "a", path="s3://bucket/out"), files("b", other))
    accepted(sink("parquet", "a", path="s3://bucket/out"), files("b", "s3a://bucket/other"))
    with pytest.raises(InputError, match="and the state overlap"):
        check_places(files("a", "s3a://bucket/state"), state_url="s3://bucket/state", others=[], where="job rides")


def test_a_sqlite_table_is_not_put_into_the_catalog_of_iceberg(tmp_path: Path) -> None:
    database = sink("sqlite", "b", path=tmp_path / "lake" / "catalog.db", table="t")
    refused(sink("iceberg", "a", path=tmp_path / "lake", table="s.t"), database)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake/catalog.db", "warehouse": f"file://{tmp_path}/w"}
    refused(sink("iceberg", "a", catalog=catalog, table="s.t"), database)


def test_tables_share_a_database_or_a_catalog(tmp_path: Path) -> None:
    for kind in ("sqlite", "iceberg"):
        accepted(any_sink(kind, "a", tmp_path / "shared"), any_sink(kind, "b", tmp_path / "shared"))


def test_files_are_appended_to_a_folder_by_several_sinks_but_not_overwritten(tmp_path: Path) -> None:
    accepted(files("a", tmp_path), files("b", tmp_path))
    accepted(files("a", tmp_path), files("b", tmp_path / "{epoch}", "overwrite"))
    for inner in (tmp_path / "out", tmp_path / "out" / "inner"):
        refused(files("a", tmp_path / "out", "overwrite"), files("b", inner))
        refused(files("b", inner), files("a", tmp_path / "out", "overwrite"))


def test_views_of_memory_sinks_that_spark_does_not_tell_apart_are_one() -> None:
    refused(MemorySink("Totals", show=print), MemorySink("totals", show=print))


def test_the_sqlite_table_of_another_job_is_refused_under_any_case(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    sink("sqlite", "a", path=path, table="T").open(1)
    other = sink("sqlite", "a", job="other", path=path, table="t")
    for step in (other.peek, lambda: other.check(last_number=5), lambda: other.open(1)):
        with pytest.raises(InputError, match="the table belongs to rides/a, not to other/a"):
            step()


def test_a_table_keeps_its_position_when_its_name_is_spelled_in_another_case(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    before = sink("sqlite", "a", path=path, table="T")
    before.open(1)
    before.publish(publication(1, 2, ROWS))
    after = sink("sqlite", "a", path=path, table="t")
    after.open(3)
    after.publish(publication(3, 2, ROWS))
    with sqlite3.connect(path) as connection:
        assert connection.execute("select count(*) from t").fetchone() == (1,)
        assert connection.execute("select table_name, run, epoch from _statebed_commits").fetchall() == [("T", 3, 2)]


@pytest.mark.parametrize("name", ["_statebed_commits", "_STATEBED_net", "_statebed_staged"])
def test_tables_of_our_own_are_no_tables_for_results(tmp_path: Path, name: str) -> None:
    make: Callable[[], BaseSink] = lambda: sink("sqlite", "a", path=tmp_path / "r.db", table=name)  # noqa: E731
    with pytest.raises(InputError, match="is reserved for statebed"):
        make()


def test_a_sink_without_a_name_is_named_by_its_rows(tmp_path: Path) -> None:
    """A digest names it otherwise, which is nowhere in the user's program."""
    first, second = (any_sink("overwrite", "window_bdc1dd51b2", tmp_path / name) for name in ("a", "b"))
    first.unnamed_rows = second.unnamed_rows = "group_by(driver, tumbling window of 1 minute).agg"
    refused(first, second, r"two sinks of group_by\(driver, .*\)\.agg have no name")
    named = any_sink("overwrite", "minutes", tmp_path / "a")
    refused(first, named, r"sink minutes and the overwritten files of the sink of group_by\(.*\)\.agg overlap")
