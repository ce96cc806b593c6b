"""Broadcast tables on Spark: every subtask has the table, over restarts at other parallelisms, and it can be read."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import statebed as sb

PAYMENTS = "card string, rule string, amount double, ts timestamp"
RULES = "rule_id string, threshold double, gone boolean"


def test_lookups_and_their_table_survive_restarts_at_other_parallelisms(spark: Any, tmp_path: Path) -> None:
    written: list[dict[str, Any]] = []

    def add(source: str, number: int, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
        (tmp_path / source).mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / source / f"{number:03d}.parquet")

    def add_rules(number: int, *rules: tuple[str, float, bool]) -> None:
        names = ["rule_id", "threshold", "gone"]
        schema = pa.schema([("rule_id", pa.string()), ("threshold", pa.float64()), ("gone", pa.bool_())])
        add("rules", number, [dict(zip(names, one, strict=True)) for one in rules], schema)

    def add_payments(number: int) -> None:
        schema = pa.schema(
            [("card", pa.string()), ("rule", pa.string()), ("amount", pa.float64()), ("ts", pa.timestamp("us", "UTC"))]
        )
        rows = [
            {"card": f"{number}-{place}", "rule": f"r{place % 4}", "amount": 1.0, "ts": number * 1_000_000 + place}
            for place in range(40)
        ]
        add("payments", number, rows, schema)

    def run(parallelism: int) -> None:
        job = sb.Job("fraud", state=tmp_path / "state", spark=spark, parallelism=parallelism)
        rules = job.source(spark.readStream.schema(RULES).parquet(str(tmp_path / "rules")), name="rules")
        payments = job.source(
            spark.readStream.schema(PAYMENTS).parquet(str(tmp_path / "payments")),
            name="payments",
            watermark=("ts", "0s"),
        )
        checked = payments.lookup(
            rules.broadcast("rule_id", deleted="gone"), on=sb.eq("rule", "rule_id"), how="left", name="checked"
        )
        checked.write(lambda df, _: written.extend(row.asDict() for row in df.collect()), name="out")
        assert job.start(available_now=True).await_termination(180)

    add_rules(0, ("r0", 0.5, False), ("r1", 1.5, False), ("r2", 2.5, False))
    add_payments(0)
    run(2)
    add_rules(1, ("r1", 0.0, True), ("r2", 7.5, False))
    add_payments(1)
    run(3)
    add_payments(2)
    run(2)
    assert len(written) == 120
    first, then = {"r0": 0.5, "r1": 1.5, "r2": 2.5}, {"r0": 0.5, "r2": 7.5}
    for row in written:
        known = first if row["card"].startswith("0-") else then
        assert row["threshold"] == known.get(row["rule"]), row
    rows = sb.read_state(tmp_path / "state", job="fraud", operator="checked", table="rules").to_arrow()
    stored = {row["rule_id"]: row["threshold"] for row in rows.to_pylist()}
    assert stored == {"r0": 0.5, "r2": 7.5}
