"""Processes: states, timers and side outputs, on several subtasks with restarts in between."""

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.operators.operator_epochs import Epochs, plain, rows_of

from statebed.format.schema import TIMESTAMP
from statebed.format.stream_schema import Changes, Input
from statebed.operators.operator import LATE, MAIN, Clock
from statebed.operators.process import Context, ListState, MapState, Process, ProcessOperator, TimerKind, ValueState
from statebed.operators.process.process_operator import MAX_ROUNDS
from statebed.state import MemoryController, TableManager, TaskInfo, Tiers
from statebed.storage import MemoryStore

COLUMNS = pa.schema([("card", pa.string()), ("amount", pa.int64()), ("shop", pa.string())])
PAYMENTS = Input("payments", COLUMNS, ("card",))


class Totals(Process):
    """The total of each card so far; its payments; its payments by shop; a reminder 10 us after its last payment."""

    total = ValueState("sum bigint, alarm timestamp")
    payments = ListState("amount bigint")
    by_shop = MapState(key="string", value="bigint")
    output = "card string, sum bigint, paid array<bigint>, shops bigint, why string"
    side_outputs = {"large": "card string, amount bigint"}  # noqa: RUF012 - as users write it

    def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> pa.Table:
        amounts = pc.fill_null(rows["amount"], 0)
        before = ctx.get(self.total)
        sums = pa.array(np.add.reduceat(amounts.to_numpy(), ctx.key_starts))
        sums = pc.add(pc.fill_null(before["sum"], 0), sums)
        ctx.append(self.payments, pa.table({"amount": rows["amount"]}))
        shops = rows["shop"]
        paid = pc.fill_null(ctx.get_items(self.by_shop, shops), 0)
        ctx.put_items(self.by_shop, shops, pc.add(paid, amounts))
        ctx.remove_items(self.by_shop, pa.array(["none"] * rows.num_rows))
        last = rows.column("_time").take(pa.array(ctx.key_starts + ctx.key_sizes - 1))
        alarm = pa.array(last.cast(pa.int64()).to_numpy(zero_copy_only=False) + 10).cast(TIMESTAMP)
        ctx.cancel(before["alarm"])
        ctx.timer(alarm)
        ctx.put(self.total, pa.table({"sum": sums, "alarm": alarm}))
        large = pc.greater(amounts, 7)
        ctx.side("large", pa.table({"card": rows["card"], "amount": amounts}).filter(large))
        return self.shown(ctx, "paid")

    def on_timer(self, timers: pa.RecordBatch, ctx: Context) -> pa.Table:
        assert ctx.timer_kind is TimerKind.EVENT
        assert timers.schema.names == ["card", "at"]
        result = self.shown(ctx, "quiet")
        for state in (self.total, self.payments, self.by_shop):
            ctx.delete(state)
        return result

    def shown(self, ctx: Context, why: str) -> pa.Table:
        lists = ctx.get(self.payments)
        paid = pa.ListArray.from_arrays(lists.offsets, lists.flatten().field("amount"))
        return pa.table(
            {
                "card": ctx.keys["card"],
                "sum": ctx.get(self.total)["sum"],
                "paid": paid,
                "shops": pc.list_value_length(ctx.get(self.by_shop)).cast(pa.int64()),
                "why": pa.array([why] * ctx.keys.num_rows),
            }
        )


EVENTS = st.tuples(
    st.sampled_from(["a", "b", "c", None]),
    st.one_of(st.none(), st.integers(0, 9)),
    st.sampled_from(["x", "y", "none", None]),
    st.integers(-40, 60),
)
EPOCHS = st.lists(
    st.tuples(st.lists(EVENTS, max_size=10), st.integers(0, 25), st.sampled_from([None, None, 1, 3])),
    min_size=1,
    max_size=6,
)


def run(operator: ProcessOperator, epochs: Any, *, seed: int = 0) -> Any:
    watermark = -45
    with Epochs(operator, chance=random.Random(seed)) as stream:
        for events, step, restart in epochs:
            if restart is not None:
                stream.restart(restart)
            watermark += step
            rows = [dict(zip(COLUMNS.names, one, strict=False)) for one in events]
            outputs = stream.feed(rows_of(PAYMENTS, rows, [one[-1] for one in events]), watermark_us=watermark)
            yield outputs, stream


def nulls_last(value: Any) -> tuple[Any, ...]:
    return (True,) if value is None else (False, value)


@settings(max_examples=examples(10), deadline=None)
@given(epochs=EPOCHS)
def test_p6_a_process_is_what_a_loop_over_rows_makes_of_its_states_and_timers(epochs: Any) -> None:
    cards: dict[Any, dict[str, Any]] = {}
    late, watermark = None, -45
    for (events, step, _), (outputs, _) in zip(
        epochs, run(ProcessOperator("totals", PAYMENTS, Totals()), epochs), strict=True
    ):
        watermark += step
        expected, large = [], []
        touched = set()
        admitted = [one for one in events if late is None or one[3] > late]
        assert outputs[LATE].num_rows == len(events) - len(admitted)
        for card, amount, shop, time in sorted(
            admitted, key=lambda one: (one[3], nulls_last(one[1]), nulls_last(one[2]))
        ):
            own = cards.setdefault(card, {"sum": 0, "paid": [], "shops": {}})
            own["sum"] += amount or 0
            own["paid"].append(amount)
            own["shops"][shop] = amount
            own["alarm"] = time + 10
            touched.add(card)
            if (amount or 0) > 7:
                large.append((card, amount))
        for card in touched:
            own = cards[card]
            own["shops"].pop("none", None)
            expected.append((card, own["sum"], list(own["paid"]), len(own["shops"]), "paid", watermark))
        for card in [card for card, own in cards.items() if own["alarm"] <= watermark]:
            own = cards.pop(card)
            expected.append((card, own["sum"], own["paid"], len(own["shops"]), "quiet", watermark))
        found = [tuple(row.values()) for row in plain(outputs[MAIN])]
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
        shown = [(row["card"], row["amount"]) for row in plain(outputs["large"])]
        assert sorted(map(repr, shown)) == sorted(map(repr, large))
        late = watermark


@settings(max_examples=examples(4), deadline=None)
@given(epochs=EPOCHS)
def test_p6_a_process_gives_the_same_bytes_in_any_order_of_arrival(epochs: Any) -> None:
    operator = ProcessOperator("totals", PAYMENTS, Totals())
    first, second = (
        [
            repr(([plain(one) for one in outs.values()], stream.record))
            for outs, stream in run(operator, epochs, seed=seed)
        ]
        for seed in (1, 2)
    )
    assert first == second


def test_state_of_keys_that_went_quiet_is_released() -> None:
    operator = ProcessOperator("totals", PAYMENTS, Totals())
    with Epochs(operator) as stream:
        for start in range(0, 400, 20):
            rows = [{"card": f"{start}-{one}", "amount": 1, "shop": "x"} for one in range(10)]
            stream.feed(rows_of(PAYMENTS, rows, [start + one for one in range(10)]), watermark_us=start + 15)
            for table in operator.tables:
                assert stream.state_rows(table) <= 10


class Chain(Process):
    """Each timer sets the next one, one microsecond later, until 100."""

    output = "card string, at timestamp"

    def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> None:
        ctx.timer(pa.scalar(0, TIMESTAMP))
        ctx.timer(0)  # again: there is one timer for each key and time

    def on_timer(self, timers: pa.RecordBatch, ctx: Context) -> pa.Table:
        at = timers["at"].cast(pa.int64()).to_numpy(zero_copy_only=False) + 1
        ctx.timer(pa.array(at, pa.int64(), mask=at >= 100), ctx.key_index)
        return pa.table({"card": timers["card"], "at": timers["at"], "_time": timers["at"]})


def test_timers_that_are_due_when_they_are_set_fire_in_the_same_step_as_far_as_rounds_go() -> None:
    with Epochs(ProcessOperator("chain", PAYMENTS, Chain())) as stream:
        out = stream.feed(rows_of(PAYMENTS, [{"card": "a"}], [5]), watermark_us=3)
        assert [row["_time"] for row in plain(out[MAIN])] == [0, 1, 2, 3]
        stream.restart(3)
        times = [row["_time"] for row in plain(stream.feed(rows_of(PAYMENTS, [], []), watermark_us=200)[MAIN])]
        assert times == list(range(4, 4 + MAX_ROUNDS))
        for _ in range(6):
            stream.feed(rows_of(PAYMENTS, [], []), watermark_us=200)
        assert stream.state_rows(TimerKind.EVENT.value) == 0


class Clocks(Process):
    """A timer of processing time 10 us after each epoch with rows."""

    output = "card string, kind string"
    seen = ValueState("n bigint", ttl="15 us", ttl_clock="epoch_time")

    def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> pa.Table:
        known = ctx.has(self.seen)
        ctx.put(self.seen, pa.table({"n": [1] * ctx.keys.num_rows}))
        ctx.processing_timer(pa.scalar(ctx.epoch_time.value + 10))
        ctx.processing_timer(pa.scalar(ctx.epoch_time.value + 12))
        ctx.cancel_processing(pa.scalar(ctx.epoch_time.value + 12))
        return pa.table({"card": ctx.keys["card"], "kind": ["known" if one else "new" for one in known]})

    def on_timer(self, timers: pa.RecordBatch, ctx: Context) -> pa.Table:
        assert ctx.timer_kind is TimerKind.PROCESSING
        return pa.table({"card": timers["card"], "kind": ["timer"] * timers.num_rows})


def test_timers_of_processing_time_and_a_time_to_live_follow_the_time_of_the_epoch() -> None:
    with Epochs(ProcessOperator("clocks", PAYMENTS, Clocks())) as stream:

        def kinds(rows: list[dict[str, Any]], time: int) -> list[str]:
            table = rows_of(PAYMENTS, rows, [None] * len(rows))
            return [row["kind"] for row in plain(stream.feed(table, epoch_time_us=time)[MAIN])]

        assert kinds([{"card": "a"}], 100) == ["new"]
        assert kinds([], 109) == []
        stream.restart(3)
        assert sorted(kinds([{"card": "b"}], 110)) == ["new", "timer"]
        assert kinds([{"card": "a"}], 114) == ["known"]
        assert sorted(kinds([], 140)) == ["timer", "timer"]
        assert kinds([{"card": "a"}], 141) == ["new"]


class Expiring(Process):
    """Last payment of each card, kept for 10 us of event time."""

    last = ValueState("amount bigint", ttl="10 us")
    output = "card string, before bigint"

    def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> pa.Table:
        before = ctx.get(self.last)["amount"]
        ctx.put(self.last, pa.table({"amount": rows["amount"].take(pa.array(ctx.key_starts))}))
        return pa.table({"card": ctx.keys["card"], "before": before})


def test_a_time_to_live_of_event_time_counts_from_the_rows_of_the_key() -> None:
    with Epochs(ProcessOperator("expiring", PAYMENTS, Expiring())) as stream:

        def before(amount: int, time: int, watermark: int) -> list[int | None]:
            rows = rows_of(PAYMENTS, [{"card": "a", "amount": amount}], [time])
            return [row["before"] for row in plain(stream.feed(rows, watermark_us=watermark)[MAIN])]

        assert before(1, 0, 9) == [None]
        assert before(2, 12, 21) == [1]
        assert before(3, 30, 22) == [2]
        stream.feed(rows_of(PAYMENTS, [], []), watermark_us=40)
        assert stream.state_rows("last") == 0
        out = stream.feed(rows_of(PAYMENTS, [{"card": "a", "amount": 1}], [None]), watermark_us=40)
        assert out[LATE].num_rows == 1, "without event time there is nothing to count from"


class Others(Process):
    """Writes for keys that are not in the batch, and reads what it wrote."""

    value = ValueState("n bigint")
    listed = ListState("n bigint")
    mapped = MapState(key="string", value="bigint")
    output = "n bigint, m bigint, items array<bigint>, entries array<string>"

    def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> pa.Table:
        ctx.put(self.value, pa.table({"n": [1, 2]}), pa.table({"card": ["y", "z"]}))
        ctx.put(self.value, pa.table({"n": [5]}), np.array([True]))
        ctx.append(self.listed, pa.table({"n": [3, 4]}), np.array([0, 0]))
        entries = pa.array([[{"key": "b", "value": 1}, {"key": "a", "value": 2}, {"key": "b", "value": 3}]])
        ctx.put(self.mapped, entries)
        items = ctx.get(self.mapped).flatten()
        shown = pc.binary_join_element_wise(items.field("key"), items.field("value").cast(pa.string()), "=")
        return pa.table(
            {
                "n": ctx.get(self.value, pa.table({"card": ["z"]}))["n"],
                "m": ctx.get(self.value)["n"],
                "items": [ctx.get(self.listed).flatten().field("n").to_pylist()],
                "entries": [shown.to_pylist()],
            }
        )


def test_what_is_written_is_read_again_for_any_keys_of_the_subtask() -> None:
    with Epochs(ProcessOperator("others", PAYMENTS, Others())) as stream:
        out = stream.feed(rows_of(PAYMENTS, [{"card": "a"}], [1]), watermark_us=0)
    assert plain(out[MAIN]) == [{"n": 2, "m": 5, "items": [3, 4], "entries": ["a=2", "b=3"], "_time": 0}]


class Passing(Process):
    """Passes changes on."""

    output = "card string, n bigint"
    changes = Changes.CHANGELOG

    def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> pa.Table:
        return pa.table({"card": rows["card"], "n": rows["amount"], "_weight": rows["_weight"]})


def test_a_changelog_comes_with_weights_and_may_be_given_back() -> None:
    changed = Input("payments", COLUMNS, ("card",), Changes.CHANGELOG)
    with Epochs(ProcessOperator("passing", changed, Passing())) as stream:
        rows = [{"card": "a", "amount": 1, "_weight": weight} for weight in (2, -1, 4)]
        out = stream.feed(rows_of(changed, rows, [1, 1, 1]), watermark_us=5)
        assert plain(out[MAIN]) == [{"card": "a", "n": 1, "_time": 5, "_weight": 5}]
        out = stream.feed(rows_of(changed, rows[1:2], [1]), watermark_us=5)
        assert plain(out[MAIN])[0]["_weight"] == -1
        assert out[LATE].num_rows == 0


def test_a_memory_budget_smaller_than_the_state_changes_nothing_of_a_process(tmp_path: Path) -> None:
    chance = random.Random(2)
    epochs = [
        [(f"card {chance.randrange(4000)}", chance.randrange(9), "s" * 40 + str(chance.randrange(9)), start + one % 7)
         for one in range(750)]
        for start in range(0, 60, 10)
    ]  # fmt: skip

    def outputs(tiers: Tiers | None) -> list[list[dict[str, Any]]]:
        found = []
        with Epochs(ProcessOperator("totals", PAYMENTS, Totals()), tiers=tiers) as stream:
            for number, events in enumerate(epochs):
                rows = [dict(zip(COLUMNS.names, one, strict=False)) for one in events]
                table = rows_of(PAYMENTS, rows, [one[-1] for one in events])
                found += [plain(one) for one in stream.feed(table, watermark_us=number * 10 - 5).values()]
        return found

    tiers = Tiers(MemoryController(1 << 18), folder=tmp_path)
    try:
        small = outputs(tiers)
    finally:
        tiers.close()
    assert sum(map(len, small)) > 2_500
    assert small == outputs(None)


def test_an_operator_holds_its_definition_and_nothing_of_a_step() -> None:
    operator = ProcessOperator("totals", PAYMENTS, Totals())
    with Epochs(operator) as stream:
        stream.feed(rows_of(PAYMENTS, [{"card": "a", "amount": 1, "shop": "x"}], [1]), watermark_us=0)
    assert not vars(operator.process)
    assert not [value for value in vars(operator).values() if isinstance(value, pa.Table | pa.Array | np.ndarray)]
    again = pickle.loads(pickle.dumps(operator))  # noqa: S301 - what was pickled here
    assert again.definition.fingerprint == operator.definition.fingerprint


def test_a_step_says_when_the_next_timer_of_processing_time_is_due_however_far_ahead() -> None:
    class Far(Process):
        output = "card string"

        def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> pa.Table:
            ctx.processing_timer(pa.scalar(ctx.epoch_time.value + int(rows["amount"][0].as_py())))
            return pa.table({"card": ctx.keys["card"]})

        def on_timer(self, timers: pa.RecordBatch, ctx: Context) -> pa.Table:
            return pa.table({"card": timers["card"]})

    operator = ProcessOperator("far", PAYMENTS, Far())
    task = TaskInfo("job", "far", 0, 1)
    with TableManager(task, operator.tables, MemoryStore()) as tables:

        def following(wait: int | None, now: int) -> int | None:
            rows = [] if wait is None else [{"card": str(wait), "amount": wait}]
            table = rows_of(PAYMENTS, rows, [None] * len(rows))
            return operator.step(tables, [table.to_batches()], Clock(None, None, now)).next_timer_us

        assert following(None, 0) is None
        year = 365 * 24 * 3600 * 1_000_000
        assert following(year, 100) == year + 100
        assert following(7, 100) == 107
        assert following(None, 107) == year + 100
        assert following(None, year + 100) is None
