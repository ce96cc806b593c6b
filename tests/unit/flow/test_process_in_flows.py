"""A user's own function in a flow."""

import pyarrow as pa
import pyarrow.compute as pc

import statebed as sb


class Alarm(sb.Process):
    """Says so when nothing came for ten microseconds."""

    seen = sb.ValueState("n bigint")
    output = "sensor string, readings bigint"
    side_outputs = {"high": "sensor string, value double"}  # noqa: RUF012 - as users write it

    def on_batch(self, rows: pa.RecordBatch, ctx: sb.Context) -> pa.Table | None:
        known = ctx.get(self.seen)
        counts = pa.array(ctx.key_index).value_counts()
        by_key = dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
        new = pa.array([by_key[place] for place in range(ctx.keys.num_rows)])
        ctx.put(self.seen, pa.table({"n": pc.add(pc.fill_null(known["n"], 0), new)}))
        table = pa.Table.from_batches([rows])
        high = table.filter(pc.field("value") > 100)
        ctx.side("high", high.select(["sensor", "value"]))
        latest = table.group_by("sensor").aggregate([("ts", "max")])
        at = pc.add(latest["ts_max"].cast(pa.int64()), 10).cast(pa.timestamp("us", "UTC"))
        ctx.timer(at=at, keys=latest.select(["sensor"]))
        return None

    def on_timer(self, timers: pa.RecordBatch, ctx: sb.Context) -> pa.Table:
        values = ctx.get(self.seen)
        return pa.table({"sensor": ctx.keys["sensor"], "readings": values["n"]})


def test_a_process_keeps_state_sets_timers_and_has_another_output() -> None:
    flow = sb.Flow("sensors")
    readings = flow.source("readings", "sensor string, value double, ts timestamp", watermark=("ts", "0s"))
    alarms = readings.key_by("sensor", name="alarm").process(Alarm())
    alarms.side("high").named("high")
    with sb.testing.run(flow, parallelism=2) as t:
        t.watermark(0)
        t.feed("readings", [{"sensor": "a", "value": 1.0, "ts": 5}, {"sensor": "b", "value": 101.0, "ts": 9}])
        t.crash()
        t.rescale(3)
        t.feed("readings", [{"sensor": "b", "value": 2.0, "ts": 10}])
        t.watermark(15)
        assert t.output("alarm") == [{"sensor": "a", "readings": 1}]
        assert t.output("high") == [{"sensor": "b", "value": 101.0}]
        t.watermark(20)
        assert {"sensor": "b", "readings": 2} in t.output("alarm")
