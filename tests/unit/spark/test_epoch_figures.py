"""Measurements of tasks become the figures of an epoch; one value of each subtask counts."""

import pickle
import time

from pyspark.accumulators import Accumulator

from statebed.format import checkpoint_pb2 as pb
from statebed.spark.epoch.epoch_figures import READING, EpochMeasurements, Meter, _LastOfEach
from statebed.subtasks.figures import SubtaskFigures, WaitTimer


def figures(name: str, *, merge_us: int = 0, write_us: int = 0, host: str = "a", peak: int = 0) -> SubtaskFigures:
    table = pb.TableFigures(table="t", rows=10, spills=1)
    operator = pb.OperatorFigures(operator_id=name, tables=[table], busy_us=merge_us + write_us, bytes_written=7)
    memory = pb.HostFigures(host=host, peak_bytes=peak, spilled_bytes=5, holders={f"{name}.t segments": peak})
    return SubtaskFigures(operator, merge_us, write_us, memory)


def meter(epoch: int, channel: Accumulator | None = None, query: str = "q") -> Meter:  # type: ignore[type-arg]
    return Meter(channel or Accumulator(1, {}, _LastOfEach()), query, epoch)


def test_a_subtask_that_ran_twice_counts_once() -> None:
    one = meter(4)
    one.add("op", 0, figures("op"))
    one.add("op", 0, figures("op"))
    one.add("op", 1, figures("op"))
    one.add(READING, 0, 0.25)
    one.add(READING, 0, 0.25)
    taken = one.take()
    assert [table.rows for table in taken.operators(["op"])[0].tables] == [20]
    assert taken.operators(["op"])[0].bytes_written == 14
    assert taken.read_seconds == [0.25]


def test_what_a_late_task_of_an_earlier_epoch_brings_is_forgotten() -> None:
    old = meter(4)
    old.take()
    new = Meter(old.channel, "q", 5)
    old.add("op", 0, figures("op"))
    assert new.take() == EpochMeasurements([], [])
    assert not new.channel.value


def test_queries_that_share_the_channel_do_not_see_each_other() -> None:
    one = meter(4)
    other = Meter(one.channel, "another", 4)
    other.add("op", 0, figures("op"))
    assert one.take() == EpochMeasurements([], [])
    assert len(other.take().subtasks) == 1


def test_measured_figures_travel_by_pickle() -> None:
    one = figures("op", merge_us=3)
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - made here


def test_phases_sum_up_to_the_action_and_levels_follow_each_other() -> None:
    taken = EpochMeasurements(
        [figures("a", merge_us=30, write_us=10), figures("a", merge_us=10), figures("b", merge_us=5, write_us=5)],
        [20e-6, 10e-6],
    )
    phases = taken.phases(100, [["a"], ["b"]], slots=2)
    assert phases == {"read": 20, "shuffle": 30, "merge": 35, "write": 15}


def test_more_subtasks_than_slots_take_turns() -> None:
    taken = EpochMeasurements([figures("a", merge_us=10) for _ in range(6)])
    assert taken.phases(100, [["a"]], slots=2)["merge"] == 30


def test_phases_never_exceed_the_action() -> None:
    taken = EpochMeasurements([figures("a", merge_us=300, write_us=100)])
    assert taken.phases(100, [["a"]], slots=1) == {"read": 0, "shuffle": 0, "merge": 75, "write": 25}


def test_a_host_is_shown_by_its_fullest_process() -> None:
    taken = EpochMeasurements([figures("a", peak=3), figures("b", peak=9), figures("b", host="z", peak=1)])
    first, second = taken.hosts()
    assert (first.host, first.peak_bytes, dict(first.holders), first.spilled_bytes) == ("a", 9, {"b.t segments": 9}, 10)
    assert second.host == "z"


def test_few_holders_are_named_and_the_rest_is_summed_up() -> None:
    one = figures("a", peak=1)
    one.memory.holders.update({f"t{number} segments": 100 - number for number in range(30)})
    [host] = EpochMeasurements([one]).hosts()
    assert len(host.holders) == 21
    assert host.holders["others"] == sum(range(71, 81)) + 1


def test_a_clock_runs_while_one_waits_and_stands_still_while_one_works() -> None:
    def slow() -> list[int]:
        time.sleep(0.02)
        return [1]

    waiting = WaitTimer()
    for _ in waiting.over(one for _ in range(2) for one in slow()):
        time.sleep(0.05)
    assert 0.04 <= waiting.seconds < 0.1
