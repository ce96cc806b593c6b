"""The memory controller: who is charged, what leaves first, and what happens when nothing can."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from statebed.errors import InputError, SpillError, SpillTimeoutError
from statebed.state.memory.controller import Hold, MemoryController, Purpose, SpillOffer
from statebed.state.memory.eviction import Candidate, borrowed, choose_victims
from statebed.state.memory.sizes import held_bytes

KB = 1024


def block(nbytes: int) -> pa.Table:
    return pa.table({"a": pa.Array.from_buffers(pa.int8(), nbytes, [None, pa.py_buffer(np.zeros(nbytes, np.int8))])})


class Sealed:
    """A segment that can leave, and says when it did."""

    def __init__(
        self,
        memory: MemoryController,
        owner: str,
        nbytes: int,
        gone: list[str],
        *,
        name: str = "",
        first: Callable[[], None] = lambda: None,
    ) -> None:
        self._memory = memory
        self._gone = gone
        self._first = first
        self.name = name or owner
        self.hold: Hold = memory.hold(owner, Purpose.SEGMENTS, block(nbytes))
        self.offer: SpillOffer = memory.offer(owner, nbytes, self.spill)

    def spill(self) -> None:
        self._first()
        self._gone.append(self.name)
        self.hold.release()


def test_the_coldest_segment_over_all_owners_leaves_first() -> None:
    memory, gone = MemoryController(100 * KB, high=0.9, low=0.5), list[str]()
    segments = [Sealed(memory, owner, 20 * KB, gone, name=f"{owner}{n}") for n in (1, 2) for owner in ("a", "b")]
    segments[0].offer.touch()  # a1 is now the hottest of the four
    memory.hold("c", Purpose.WRITES, block(20 * KB))
    assert gone == ["b1", "a2", "b2"]
    assert memory.used == 40 * KB


def test_nothing_leaves_below_the_high_watermark() -> None:
    memory, gone = MemoryController(100 * KB, high=0.9, low=0.5), list[str]()
    for _ in range(4):
        Sealed(memory, "a", 20 * KB, gone)
    memory.reserve("a", Purpose.INDEXES, 10 * KB)
    assert not gone
    assert memory.snapshot().events == {}


def test_what_was_borrowed_goes_back_before_a_guarantee_is_touched() -> None:
    memory = MemoryController(100 * KB, high=0.9, low=0.5, guarantees={"small": 30 * KB})
    gone = list[str]()
    Sealed(memory, "small", 20 * KB, gone)
    for _ in range(4):
        Sealed(memory, "large", 18 * KB, gone)
    assert set(gone) == {"large"}
    assert memory.snapshot().borrowed["large"] > 0
    assert "small" not in memory.snapshot().borrowed


def test_an_owner_within_its_guarantee_keeps_what_it_has() -> None:
    one = Candidate(1, "a", nbytes=10, last_used=1)
    two = Candidate(2, "b", nbytes=10, last_used=2)
    used = {"a": 10, "b": 10}
    assert choose_victims([one, two], to_free=20, used=used, guarantees={"a": 10}) == [two]
    assert choose_victims([one, two], to_free=99, used=used) == [one, two]
    assert choose_victims([], to_free=1) == []


def test_what_exceeds_a_guarantee_leaves_before_owners_without_one() -> None:
    cold = Candidate(1, "without", nbytes=10, last_used=1)
    warm, hot = (Candidate(number, "a", nbytes=10, last_used=number) for number in (2, 3))
    used = {"without": 10, "a": 20}
    assert choose_victims([cold, warm, hot], to_free=30, used=used, guarantees={"a": 15}) == [warm, cold]


def test_a_share_of_an_operator_holds_for_all_its_tables_and_subtasks() -> None:
    memory = MemoryController(100 * KB, high=0.9, low=0.5, guarantees={"joined": 60 * KB, "joined.right": 10 * KB})
    gone = list[str]()
    for subtask in range(2):
        Sealed(memory, f"joined-left-{subtask}", 20 * KB, gone)
    for _ in range(6):
        Sealed(memory, "totals-groups-0", 18 * KB, gone)
        Sealed(memory, "joined-right-0", 8 * KB, gone)
    assert not [owner for owner in gone if owner.startswith("joined-left")]
    held = memory.snapshot().held
    assert held["joined"] == 40 * KB
    assert held["joined.right"] <= 10 * KB + 8 * KB


def test_what_is_borrowed_is_what_exceeds_the_guarantee() -> None:
    assert borrowed({"a": 5, "b": 7}, {"a": 6, "b": 3}) == {"b": 4}


def test_an_insert_that_nothing_can_make_room_for_is_not_refused() -> None:
    memory = MemoryController(10 * KB)
    memory.hold("a", Purpose.SEGMENTS, block(50 * KB))
    assert memory.used == 50 * KB
    assert memory.snapshot().events["overcommits"] == 1


def test_shared_data_is_charged_once_and_the_charge_moves_to_who_still_holds_it() -> None:
    memory, shared = MemoryController(100 * KB), block(10 * KB)
    first = memory.hold("a", Purpose.SEGMENTS, shared)
    second = memory.hold("b", Purpose.READS, shared.slice(5))
    assert memory.snapshot().accounts == {("a", Purpose.SEGMENTS): 10 * KB}
    first.release()
    first.release()
    assert memory.snapshot().accounts == {("b", Purpose.READS): 10 * KB}
    second.release()
    assert memory.used == 0


def test_reservations_grow_shrink_and_end() -> None:
    memory = MemoryController(100 * KB)
    tombstones = memory.reserve("a", Purpose.TOMBSTONES, 100)
    tombstones.resize(300)
    assert memory.snapshot().accounts == {("a", Purpose.TOMBSTONES): 300}
    with memory.reserve("a", Purpose.MERGES, 50):
        assert memory.used == 350
    tombstones.resize(10)
    assert memory.used == 10
    assert memory.snapshot().peak == 350


def test_a_batch_larger_than_the_budget_is_split_into_pieces_that_fit() -> None:
    memory = MemoryController(64 * KB)
    large = pa.table({"n": pa.array(range(100_000), pa.int64())})
    found = list(memory.split(large))
    assert pa.concat_tables(found).equals(large)
    assert max(held_bytes(piece) for piece in found) <= memory.budget // 16


def test_growth_is_taken_back_when_the_disk_fails_and_the_segment_stays_offered() -> None:
    memory, gone = MemoryController(100 * KB), list[str]()
    broken = [True]

    def fail() -> None:
        if broken[0]:
            raise SpillError("the disk is full")

    Sealed(memory, "a", 80 * KB, gone, first=fail)
    with pytest.raises(SpillError, match="the disk is full"):
        memory.hold("b", Purpose.SEGMENTS, block(30 * KB))
    assert memory.snapshot().accounts == {("a", Purpose.SEGMENTS): 80 * KB}
    broken[0] = False
    memory.hold("b", Purpose.SEGMENTS, block(30 * KB))
    assert gone == ["a"]
    assert memory.snapshot().events == {"failed_spills": 1, "spills": 1, "spilled_bytes": 80 * KB}


def test_waiting_for_a_segment_on_its_way_ends_at_the_deadline_with_a_typed_error() -> None:
    memory, gone = MemoryController(100 * KB, wait_seconds=0.2), list[str]()
    started, resume = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        assert resume.wait(30)

    Sealed(memory, "slow", 80 * KB, gone, first=hang)
    mover = threading.Thread(target=memory.hold, args=("b", Purpose.SEGMENTS, block(15 * KB)))
    mover.start()
    assert started.wait(30)
    begin = time.monotonic()
    with pytest.raises(SpillTimeoutError, match=r"(?s)0\.2 s.*segments of slow"):
        memory.hold("c", Purpose.SEGMENTS, block(30 * KB))
    assert 0.2 <= time.monotonic() - begin < 10
    assert memory.used == 95 * KB  # without the 30 KB that were refused
    assert memory.snapshot().spilling == 80 * KB
    resume.set()
    mover.join(30)
    memory.hold("c", Purpose.SEGMENTS, block(30 * KB))
    assert memory.used == 45 * KB


def test_a_thread_inside_the_budget_does_not_wait_for_a_segment_on_its_way() -> None:
    memory, gone = MemoryController(100 * KB, wait_seconds=30), list[str]()
    started, resume = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        assert resume.wait(30)

    Sealed(memory, "slow", 80 * KB, gone, first=hang)
    mover = threading.Thread(target=memory.hold, args=("b", Purpose.SEGMENTS, block(15 * KB)))
    mover.start()
    assert started.wait(30)
    memory.hold("c", Purpose.SEGMENTS, block(2 * KB))
    assert not gone
    resume.set()
    mover.join(30)
    assert gone == ["slow"]


def test_what_moving_charges_does_not_wait_for_moving() -> None:
    memory, gone = MemoryController(100 * KB, wait_seconds=5), list[str]()

    def charge_while_moving() -> None:
        memory.reserve("a", Purpose.WRITES, 50 * KB).release()

    Sealed(memory, "a", 80 * KB, gone, first=charge_while_moving)
    memory.hold("b", Purpose.SEGMENTS, block(30 * KB))
    assert gone == ["a"]


def test_the_lock_is_free_while_a_segment_is_moved() -> None:
    memory, gone = MemoryController(100 * KB), list[str]()
    seen: list[int] = []

    def look_from_another_thread() -> None:
        looking = threading.Thread(target=lambda: seen.append(memory.snapshot().spilling), daemon=True)
        looking.start()
        looking.join(10)

    Sealed(memory, "a", 80 * KB, gone, first=look_from_another_thread)
    memory.hold("b", Purpose.SEGMENTS, block(30 * KB))
    assert seen == [80 * KB]


def test_a_segment_in_use_stays_and_another_moves_in_its_place() -> None:
    memory, gone = MemoryController(100 * KB, high=0.9, low=0.5, wait_seconds=5), list[str]()
    hold = memory.hold("busy", Purpose.SEGMENTS, block(40 * KB))
    free = [False]

    def spill() -> bool:
        if free[0]:
            gone.append("busy")
            hold.release()
        return free[0]

    memory.offer("busy", 40 * KB, spill)
    Sealed(memory, "idle", 20 * KB, gone)
    memory.hold("c", Purpose.SEGMENTS, block(35 * KB))
    assert gone == ["idle"]  # the colder one was asked first
    assert memory.snapshot().events["busy"] == 1
    free[0] = True
    memory.make_room()  # there is pressure until the low watermark is reached
    assert gone == ["idle", "busy"]


def test_when_everything_is_in_use_nobody_waits_and_nothing_is_refused() -> None:
    memory = MemoryController(100 * KB, wait_seconds=5)
    memory.reserve("busy", Purpose.SEGMENTS, 80 * KB)
    memory.offer("busy", 80 * KB, lambda: False)
    begin = time.monotonic()
    memory.reserve("c", Purpose.SEGMENTS, 80 * KB)
    assert time.monotonic() - begin < 2
    assert memory.used == 160 * KB


def test_an_offer_may_change_its_size_even_while_it_moves() -> None:
    memory, gone = MemoryController(100 * KB), list[str]()
    segment = Sealed(memory, "a", 80 * KB, gone, first=lambda: memory.resize(segment.offer, 5 * KB))
    memory.hold("b", Purpose.SEGMENTS, block(30 * KB))
    assert gone == ["a"]
    assert memory.snapshot().spilling == 0


def test_of_equally_cold_segments_the_largest_leaves_first() -> None:
    memory, gone = MemoryController(100 * KB, high=0.9, low=0.8), list[str]()
    segments = [Sealed(memory, "a", size * KB, gone, name=str(size)) for size in (20, 40, 25)]
    moment = memory.moment()
    for segment in segments:
        segment.offer.touch(moment)
    memory.reserve("b", Purpose.WRITES, 10 * KB)
    assert gone == ["40"]


def test_a_charge_that_is_set_makes_no_room() -> None:
    memory, gone = MemoryController(100 * KB), list[str]()
    Sealed(memory, "a", 80 * KB, gone)
    memory.charge("b", Purpose.WRITES, 0).set(50 * KB)
    assert not gone
    assert memory.used == 130 * KB


def test_a_withdrawn_segment_is_not_moved() -> None:
    memory, gone = MemoryController(100 * KB), list[str]()
    memory.withdraw(Sealed(memory, "a", 80 * KB, gone).offer)
    memory.hold("b", Purpose.SEGMENTS, block(30 * KB))
    assert not gone
    assert memory.used == 110 * KB


@pytest.mark.parametrize(
    "arguments",
    [{"budget": 0}, {"budget": 10, "low": 0.9, "high": 0.5}, {"budget": 10, "guarantees": {"a": 6, "b": 5}}],
)
def test_a_budget_that_cannot_work_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(InputError):
        MemoryController(**arguments)  # type: ignore[arg-type]  # wrong on purpose


def test_p4_many_threads_at_ten_times_the_budget_finish_within_it() -> None:
    memory, gone = MemoryController(1 << 20, wait_seconds=30), list[str]()
    errors: list[BaseException] = []

    def insert(owner: str) -> None:
        try:
            for _ in range(40):
                Sealed(memory, owner, 32 * KB, gone, first=lambda: time.sleep(0.0002))
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=insert, args=(f"t{n}",), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors
    assert memory.snapshot().peak <= memory.budget + 8 * 32 * KB
    assert memory.used <= memory.budget
    assert len(gone) * 32 * KB + memory.used == 8 * 40 * 32 * KB


def test_who_held_the_memory_at_its_peak_is_known_afterwards() -> None:
    memory = MemoryController(1000)
    with memory.reserve("rides", Purpose.READS, 100), memory.reserve("rides", Purpose.MERGES, 300):
        pass
    told = memory.snapshot()
    assert (told.used, told.peak) == (0, 400)
    assert told.at_peak == {("rides", Purpose.READS): 100, ("rides", Purpose.MERGES): 300}
    assert told.accounts == {}
    memory.restart_peak()
    memory.reserve("fares", Purpose.SEGMENTS, 50)
    assert memory.snapshot().peak == 50
    assert memory.snapshot().at_peak == {("fares", Purpose.SEGMENTS): 50}
