"""Runs flows without Spark, in milliseconds: feed rows, advance the watermark, crash, rescale, and read the output.

    with statebed.testing.run(flow, parallelism=2) as t:
        t.feed("rides", [{"driver": "ann", "fare": 7.5, "ts": "2026-01-01T12:00:30Z"}])
        t.watermark("2026-01-01T12:05:00Z")
        t.crash()
        t.rescale(3)
        assert t.output("per_minute") == [...]

The operators, the state engine and the protocol are the ones used everywhere else; state is kept in memory unless a
store is given.
"""

from statebed.testing.run import TestRun, evaluate, evaluate_over, run, write_example

__all__ = ["TestRun", "evaluate", "evaluate_over", "run", "write_example"]
