"""Broadcast tables in flows: all rows of an epoch see the same table, at any parallelism and after crashes."""

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from effort import every_third

import statebed as sb
from statebed.errors import InputError
from statebed.storage import get_storage_provider

RULES = "rule_id string, threshold double, tags array<string>, gone boolean"
PAYMENTS = "card string, rule string, amount double, ts timestamp"


def fraud(how: str = "inner", **terms: Any) -> sb.Flow:
    flow = sb.Flow("fraud")
    rules = flow.source("rules", RULES).broadcast("rule_id", deleted="gone")
    payments = flow.source("payments", PAYMENTS, watermark=("ts", "0s"))
    payments.lookup(rules, how=how, name="checked", **(terms or {"on": sb.eq("rule", "rule_id")}))
    return flow


def rule(name: str, threshold: float, *, gone: bool = False, tags: list[str] | None = None) -> dict[str, Any]:
    return {"rule_id": name, "threshold": threshold, "tags": tags, "gone": gone}


def payment(card: str, name: str | None, amount: float, at: int) -> dict[str, Any]:
    return {"card": card, "rule": name, "amount": amount, "ts": at}


def by_card(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["card"], row.get("threshold", 0)))


def test_a_row_gets_the_row_of_the_table_that_is_known_in_its_epoch() -> None:
    with sb.testing.run(fraud("left"), parallelism=3) as t:
        t.feed("payments", [payment("early", "high", 5.0, 1)])
        t.feed("rules", [rule("high", 100.0, tags=["a", "b"])])
        t.feed("payments", [payment("b", "high", 7.0, 2), payment("c", None, 7.0, 2)])
        t.feed("rules", [rule("high", 200.0)])
        t.crash()
        t.rescale(2)
        t.feed("payments", [payment("d", "high", 7.0, 3)])
        t.feed("rules", [rule("high", 0.0, gone=True)])
        t.feed("payments", [payment("e", "high", 7.0, 4)])
        rows = by_card(t.output("checked"))
    assert [(row["card"], row["threshold"], row["tags"]) for row in rows] == [
        ("b", 100.0, ["a", "b"]),
        ("c", None, None),
        ("d", 200.0, None),
        ("e", None, None),
        ("early", None, None),
    ]
    assert "gone" not in rows[0]


@pytest.mark.parametrize(
    ("how", "expected"),
    [("inner", ["a", "b"]), ("left", ["a", "b", "c"]), ("semi", ["a", "b"]), ("anti", ["c"])],
)
def test_kinds_of_lookups(how: str, expected: list[str]) -> None:
    with sb.testing.run(fraud(how), parallelism=2) as t:
        t.feed("rules", [rule("x", 1.0), rule("y", 2.0)])
        t.feed("payments", [payment("a", "x", 1.0, 1), payment("b", "y", 1.0, 1), payment("c", "z", 1.0, 1)])
        assert [row["card"] for row in by_card(t.output("checked"))] == expected


def test_a_condition_alone_compares_every_row_with_the_table() -> None:
    with sb.testing.run(fraud(condition="amount > threshold"), parallelism=2) as t:
        t.feed("rules", [rule("x", 10.0), rule("y", 20.0)])
        t.feed("payments", [payment("a", None, 5.0, 1), payment("b", None, 15.0, 1), payment("c", None, 25.0, 1)])
        found = [(row["card"], row["rule_id"]) for row in by_card(t.output("checked"))]
    assert found == [("b", "x"), ("c", "x"), ("c", "y")]


def test_the_last_row_of_a_key_in_an_epoch_counts() -> None:
    flow = sb.Flow("rates")
    rates = flow.source("rates", "currency string, rate double, at timestamp", watermark=("at", "0s")).broadcast(
        "currency"
    )
    bids = flow.source("bids", "bid bigint, currency string, ts timestamp", watermark=("ts", "0s"))
    bids.lookup(rates, on="currency", name="priced")
    with sb.testing.run(flow, parallelism=2) as t:
        t.feed("rates", [{"currency": "EUR", "rate": 1.2, "at": 20}, {"currency": "EUR", "rate": 1.1, "at": 10}])
        t.feed("bids", [{"bid": 1, "currency": "EUR", "ts": 5}])
        (row,) = t.output("priced")
    assert row["rate"] == 1.2


def test_a_changelog_is_applied_as_it_says() -> None:
    flow = sb.Flow("limits")
    changes = flow.source("limits", "card string, cap bigint, ts timestamp", watermark=("ts", "0s"))
    latest = changes.deduplicate("card", keep="last", name="latest")
    payments = flow.source("payments", "card string, amount bigint, ts timestamp", watermark=("ts", "0s"))
    payments.lookup(latest.select("card", "cap").broadcast("card", name="caps"), on="card", name="checked")
    with sb.testing.run(flow, parallelism=2) as t:
        t.feed("limits", [{"card": "a", "cap": 1, "ts": 1}, {"card": "b", "cap": 1, "ts": 1}])
        t.feed("limits", [{"card": "a", "cap": 2, "ts": 2}])
        t.feed("payments", [{"card": "a", "amount": 5, "ts": 3}, {"card": "b", "amount": 6, "ts": 3}])
        found = sorted((row["card"], row["amount"], row["cap"]) for row in t.output("checked"))
    assert found == [("a", 5, 2), ("b", 6, 1)]


def test_a_silent_table_does_not_hold_back_the_watermark() -> None:
    flow = sb.Flow("fraud")
    rules = flow.source("rules", "rule_id string, at timestamp", watermark=("at", "0s")).broadcast("rule_id")
    payments = flow.source("payments", PAYMENTS, watermark=("ts", "0s"))
    checked = payments.lookup(rules, on=sb.eq("rule", "rule_id"), how="left", name="checked")
    checked.group_by("card", sb.tumbling("1 second"), name="per_second").agg(n=sb.count())
    with sb.testing.run(flow) as t:
        t.feed("payments", [payment("a", "x", 1.0, 500_000)])
        t.feed("payments", [payment("a", "x", 1.0, 2_500_000)])
        t.feed("payments", [payment("a", "x", 1.0, 2_600_000)])
        assert [row["n"] for row in t.output("per_second")] == [1]


class Judge(sb.Process):
    """Counts the payments of a card that are above the lowest threshold."""

    seen = sb.ValueState("n bigint")
    output = "card string, n bigint, rules bigint"

    def on_batch(self, rows: pa.RecordBatch, ctx: sb.Context) -> pa.Table:
        rules = ctx.table("rules")
        least = pc.min(rules["threshold"]).as_py()
        above = pc.greater(rows["amount"], float("inf") if least is None else least)
        counts = (
            pa.table({"place": ctx.key_index, "above": above.cast(pa.int64())})
            .group_by("place")
            .aggregate([("above", "sum")])
        )
        new = counts.sort_by("place")["above_sum"]
        n = pc.add(pc.fill_null(ctx.get(self.seen)["n"], 0), new)
        ctx.put(self.seen, pa.table({"n": n}))
        return pa.table({"card": ctx.keys["card"], "n": n, "rules": [rules.num_rows] * ctx.keys.num_rows})


def test_a_process_reads_rules_that_change_while_it_runs() -> None:
    flow = sb.Flow("fraud")
    rules = flow.source("rules", RULES).broadcast("rule_id", deleted="gone")
    payments = flow.source("payments", PAYMENTS, watermark=("ts", "0s"))
    payments.key_by("card").process(Judge(), tables=[rules], name="judge")
    with sb.testing.run(flow, parallelism=3) as t:
        t.feed("payments", [payment("a", None, 50.0, 1)])
        t.feed("rules", [rule("x", 10.0), rule("y", 100.0)])
        t.feed("payments", [payment("a", None, 50.0, 2), payment("b", None, 5.0, 2)])
        t.rescale(2)
        t.feed("rules", [rule("x", 0.0, gone=True)])
        t.feed("payments", [payment("a", None, 50.0, 3), payment("b", None, 500.0, 3)])
        found = sorted((row["card"], row["n"], row["rules"]) for row in t.output("judge"))
    assert found == [("a", 0, 0), ("a", 1, 1), ("a", 1, 2), ("b", 0, 2), ("b", 1, 1)]


@pytest.mark.parametrize("seed", every_third(range(6)))
def test_any_history_equals_a_dictionary(seed: int) -> None:
    chance = random.Random(seed)
    known: dict[str, float] = {}
    expected: list[tuple[str, float]] = []
    with sb.testing.run(fraud(), parallelism=2) as t:
        for step in range(25):
            changed = {f"r{chance.randrange(8)}": (chance.random(), chance.random() < 0.3) for _ in range(3)}
            t.feed("rules", [rule(name, value, gone=gone) for name, (value, gone) in changed.items()])
            for name, (value, gone) in changed.items():
                known.pop(name, None)
                if not gone:
                    known[name] = value
            asked = [f"r{chance.randrange(8)}" for _ in range(4)]
            t.feed("payments", [payment(f"{step}-{place}", name, 1.0, step + 1) for place, name in enumerate(asked)])
            expected += [(f"{step}-{place}", known[name]) for place, name in enumerate(asked) if name in known]
            if chance.random() < 0.2:
                t.crash()
            if chance.random() < 0.2:
                t.rescale(chance.randrange(1, 5))
        found = [(row["card"], row["threshold"]) for row in t.output("checked")]
    assert sorted(found) == sorted(expected)


def test_the_stored_table_is_read_with_its_columns(tmp_path: Path) -> None:
    flow = sb.Flow("fraud")
    columns = "day date, threshold double, at timestamp, cents decimal(10, 2), tags array<string>, gone boolean"
    rules = flow.source("rules", f"rule_id string, {columns}").broadcast("rule_id", "day", deleted="gone")
    payments = flow.source("payments", PAYMENTS, watermark=("ts", "0s"))
    payments.lookup(rules, on=sb.eq("rule", "rule_id"), name="checked")
    day, at = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
    high = {"rule_id": "high", "day": day, "threshold": 1.5, "at": at, "cents": Decimal("3.25"), "tags": ["a", "ü"]}
    low = {"rule_id": "low", "day": day, "threshold": None, "at": None, "cents": None, "tags": None}
    with sb.testing.run(flow, store=get_storage_provider(tmp_path), parallelism=2) as t:
        t.feed("rules", [{**high, "gone": False}, {**low, "gone": False}])
        t.feed("rules", [{**high, "threshold": 2.5, "gone": False}, {**low, "gone": True}])
    before, now = (sb.read_state(tmp_path, operator="checked", table="rules", epoch=epoch) for epoch in (2, None))
    shown = {**high, "tags": '["a", "ü"]'}
    assert now.to_arrow().to_pylist() == [{**shown, "threshold": 2.5}]
    assert before.keys(("low", "2026-01-02")).to_arrow().to_pylist() == [low]
    assert before.filter("threshold > 1").select("rule_id").to_arrow().to_pylist() == [{"rule_id": "high"}]
    assert sum(batch.num_rows for part in before.slices() for batch in part.batches()) == 2
    assert (now.kind, now.key_columns) == ("broadcast", ["rule_id", "day"])
    assert now.schema.field("at").type == pa.timestamp("us", "UTC")
    assert now.count() == 1
    changes = sb.diff_state(tmp_path, operator="checked", table="rules", since=before.epoch).to_arrow().to_pylist()
    assert sorted((row["change"], row["rule_id"], row["threshold"]) for row in changes) == [
        ("delete", "low", None),
        ("update_after", "high", 2.5),
        ("update_before", "high", 1.5),
    ]


def test_mistakes() -> None:
    flow = sb.Flow("fraud")
    rules = flow.source("rules", RULES)
    payments = flow.source("payments", PAYMENTS, watermark=("ts", "0s"))
    with pytest.raises(InputError, match=r"keys of the table \['id'\]"):
        rules.broadcast("id")
    with pytest.raises(InputError, match="a broadcast table needs a key"):
        rules.broadcast()
    with pytest.raises(InputError, match="`deleted` must name a boolean column, got 'threshold'"):
        rules.broadcast("rule_id", deleted="threshold")
    table = rules.broadcast("rule_id", deleted="gone")
    with pytest.raises(InputError, match="neither equal columns nor a condition"):
        payments.lookup(table)
    with pytest.raises(InputError, match="`how` cannot be 'full'"):
        payments.lookup(table, on=sb.eq("rule", "rule_id"), how="full")
    with pytest.raises(InputError, match="must be a broadcast stream, got Stream"):
        payments.lookup(rules, on=sb.eq("rule", "rule_id"))  # type: ignore[arg-type]  # as a user may write it
    updated = payments.key_by("card").agg(n=sb.count())
    with pytest.raises(InputError, match="the stream is a changelog"):
        updated.lookup(table, on=sb.eq("card", "rule_id"))
    with pytest.raises(InputError, match="the keys left amount double and table rule_id string do not match"):
        payments.lookup(table, on=sb.eq("amount", "rule_id"))
    with pytest.raises(InputError, match="belongs to another flow"):
        payments.lookup(sb.Flow("other").source("rules", RULES).broadcast("rule_id"), on=sb.eq("rule", "rule_id"))
    assert repr(table).startswith("<BroadcastStream rules by rule_id of <Stream of rules: rule_id string")
