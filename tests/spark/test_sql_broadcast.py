"""Broadcast tables in SQL: a small table that changes while the job runs, joined with a stream."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import statebed as sb
from statebed.errors import StatebedError

TABLES = """
CREATE TABLE rules (rule_id STRING, kind STRING, threshold DOUBLE, gone BOOLEAN, PRIMARY KEY (rule_id))
WITH (connector = 'parquet', path = '{folder}/rules', broadcast = 'true', deleted = 'gone');
CREATE TABLE payments (card STRING, kind STRING, amount DOUBLE, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'parquet', path = '{folder}/payments');
"""
QUERIES = """
CREATE TABLE flagged (card STRING, rule STRING, threshold DOUBLE)
WITH (connector = 'parquet', path = '{folder}/flagged');
CREATE TABLE everything (card STRING, rule STRING, kind STRING, gone BOOLEAN)
WITH (connector = 'parquet', path = '{folder}/everything');
CREATE TABLE per_rule (rule STRING, n BIGINT) WITH (connector = 'parquet', path = '{folder}/per_rule');
INSERT INTO flagged
SELECT p.card, r.rule_id, r.threshold FROM payments AS p JOIN rules AS r ON p.kind = r.kind AND p.amount > r.threshold;
INSERT INTO everything
SELECT p.card, r.rule_id, r.kind, r.gone FROM payments AS p LEFT JOIN rules AS r ON r.kind = p.kind;
INSERT INTO per_rule
SELECT /*+ NAME('by_rule') */ id, count(*) FROM (SELECT rule_id AS id, kind AS k FROM rules) AS r
JOIN payments AS p ON p.kind = r.k GROUP BY id, window(p.ts, '1 minute');
"""


def write(folder: Path, number: int, rules: list[tuple[Any, ...]], payments: list[tuple[Any, ...]]) -> None:
    names = ["rule_id", "kind", "threshold", "gone"]
    times = pa.array([row[3] * 60_000_000 for row in payments], pa.timestamp("us", "UTC"))
    columns = [pa.array([row[place] for row in payments]) for place in range(3)]
    tables = {
        "rules": pa.Table.from_pylist([dict(zip(names, rule, strict=True)) for rule in rules]),
        "payments": pa.Table.from_arrays([*columns, times], names=["card", "kind", "amount", "ts"]),
    }
    for name, table in tables.items():
        (folder / name).mkdir(exist_ok=True)
        if table.num_rows:
            pq.write_table(table, folder / name / f"{number}.parquet")


def run(spark: Any, folder: Path) -> list[str]:
    job = sb.Job("fraud", state=folder / "state", parallelism=2, spark=spark)
    job.execute((TABLES + QUERIES).format(folder=folder), file="fraud.sql")
    assert job.start(available_now=True).await_termination(200)
    return list(job.graph.operators)


def rows(folder: Path, name: str) -> list[tuple[Any, ...]]:
    table = sb.read_table(str(folder / name))
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def test_a_table_that_changes_is_joined_as_it_is_now(spark: Any, tmp_path: Path) -> None:
    write(
        tmp_path,
        0,
        [("big", "online", 100.0, False), ("any", "shop", 0.0, False)],
        [("a", "online", 150.0, 0), ("b", "online", 50.0, 0), ("c", "other", 1.0, 0)],
    )
    assert set(run(spark, tmp_path)) >= {"flagged_lookup", "everything_lookup", "by_rule_lookup", "by_rule"}
    assert rows(tmp_path, "flagged") == [("a", "big", 100.0)]
    assert rows(tmp_path, "everything") == [
        ("a", "big", "online", False),
        ("b", "big", "online", False),
        ("c", None, None, None),
    ]
    # The rule becomes stricter, the other one is removed; the results before stay as they are.
    write(
        tmp_path,
        1,
        [("big", "online", 200.0, False), ("any", "shop", 0.0, True)],
        [("d", "online", 150.0, 5), ("e", "online", 250.0, 5), ("f", "shop", 9.0, 5)],
    )
    run(spark, tmp_path)
    assert rows(tmp_path, "flagged") == [("a", "big", 100.0), ("e", "big", 200.0)]
    assert ("f", None, None, None) in rows(tmp_path, "everything")
    assert rows(tmp_path, "per_rule") == [("big", 2)]
    stored = sb.read_state(tmp_path / "state", job="fraud", operator="flagged_lookup").to_arrow()
    assert stored.to_pylist() == [{"rule_id": "big", "kind": "online", "threshold": 200.0}]


MISTAKES = {
    "SELECT p.card FROM payments p JOIN (SELECT * FROM rules WHERE threshold > 1) r ON p.kind = r.kind": (
        "can only be joined",
        "filter or aggregate the results",
    ),
    "SELECT rule_id AS id FROM rules": ("the changes instead of the rows", "FROM job.operator.rules"),
    "SELECT count(*) FROM rules GROUP BY kind": ("can only be joined", "join it first"),
    "SELECT p.card FROM payments p FULL JOIN rules r ON p.kind = r.kind": ("full join keeps rows", "left join"),
    "SELECT p.card FROM rules r LEFT JOIN payments p ON p.kind = r.kind": ("left join keeps rows", "side whose rows"),
    "SELECT p.card FROM payments p JOIN rules FOR SYSTEM_TIME AS OF p.ts AS r ON p.kind = r.kind": (
        "only the newest rows",
        "leave FOR SYSTEM_TIME AS OF out",
    ),
    "SELECT p.card FROM payments p JOIN rules r ON p.kind = upper(r.kind)": ("not a column of the", "CREATE TABLE"),
    "SELECT a.kind FROM rules a JOIN rules b ON a.kind = b.kind": ("both sides", "remove the option"),
    "CREATE TABLE t (a BIGINT) WITH (connector = 'datagen', broadcast = 'true')": ("no primary key", "PRIMARY KEY"),
    "CREATE TABLE t (a BIGINT) WITH (connector = 'datagen', broadcast = 'maybe')": ("must be true or false", "'true'"),
    "CREATE TABLE t (a BIGINT) WITH (connector = 'datagen', deleted = 'a')": ("option of broadcast", "broadcast ="),
    "CREATE TABLE t (a BIGINT, PRIMARY KEY (a)) WITH (connector = 'print', broadcast = 'true')": ("be read", "remove"),
    "CREATE TABLE t (a BIGINT, PRIMARY KEY (a)) WITH (connector = 'datagen', broadcast = 'true', deleted = 'b')": (
        "there is no column 'b'",
        "the columns are a",
    ),
}


def test_a_mistake_with_a_broadcast_table_is_shown_in_the_text(spark: Any, tmp_path: Path) -> None:
    write(tmp_path, 0, [], [])
    for text, (what, fix) in MISTAKES.items():
        job = sb.Job("wrong", state=tmp_path, spark=spark)
        with pytest.raises(StatebedError) as raised:
            job.execute(TABLES.format(folder=tmp_path) + text, file="p.sql")
        assert what in raised.value.what, text
        assert fix in raised.value.fix, text
        assert "^" in raised.value.where, text
