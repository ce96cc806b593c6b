"""The fault-injecting store does exactly the harm it was asked for."""

import threading
from collections.abc import Callable

import pytest

from statebed.errors import OutcomeUnknownError, StoreUnavailableError
from statebed.storage import MemoryStore, ObjectStore, PutOutcome
from statebed.testing.faults import Fault, FaultStore, Operation, SimulatedCrash, Verb, cut_to, flip_byte


@pytest.fixture
def disk() -> MemoryStore:
    disk = MemoryStore()
    disk.put("old", b"0123456789")
    return disk


WRITES: dict[str, Callable[[ObjectStore], object]] = {
    "put_if_absent": lambda store: store.put_if_absent("new", b"x"),
    "put": lambda store: store.put("new", b"x"),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("fault", "written"), [(Fault.CRASH_BEFORE, False), (Fault.CRASH_AFTER, True)], ids=["before", "after"]
)
def test_a_crash_before_a_write_leaves_nothing_and_a_crash_after_it_leaves_it(
    disk: MemoryStore, write: str, fault: Fault, written: bool
) -> None:
    store = FaultStore(disk, {1: fault})
    with pytest.raises(SimulatedCrash):
        WRITES[write](store)
    assert (disk.head("new") is not None) is written


def test_a_crash_of_a_delete_before_and_after(disk: MemoryStore) -> None:
    for fault, gone in ((Fault.CRASH_BEFORE, False), (Fault.CRASH_AFTER, True)):
        with pytest.raises(SimulatedCrash):
            FaultStore(disk, {1: fault}).delete("old")
        assert (disk.head("old") is None) is gone


def test_a_crash_after_a_read_of_what_is_absent_is_a_crash_too(disk: MemoryStore) -> None:
    store = FaultStore(disk, {1: Fault.CRASH_AFTER})
    with pytest.raises(SimulatedCrash):
        store.get("nothing")
    assert store.crashed


def test_a_crash_is_no_exception_that_code_could_survive(disk: MemoryStore) -> None:
    assert not issubclass(SimulatedCrash, Exception)


def test_after_a_crash_nothing_has_an_effect_any_more(disk: MemoryStore) -> None:
    store = FaultStore(disk, {2: Fault.CRASH_BEFORE})
    assert store.get("old") == b"0123456789"
    with pytest.raises(SimulatedCrash):
        store.put("new", b"x")
    with pytest.raises(SimulatedCrash):
        store.delete("old")
    assert store.crashed
    assert disk.head("old") is not None
    assert [operation.verb for operation in store.log] == [Verb.GET, Verb.PUT]


def test_a_lost_answer_took_effect_and_a_lost_write_did_not_and_both_say_the_same(disk: MemoryStore) -> None:
    store = FaultStore(disk, {1: Fault.LOSE_ANSWER, 2: Fault.LOSE_WRITE})
    with pytest.raises(OutcomeUnknownError):
        store.put_if_absent("one", b"x")
    with pytest.raises(OutcomeUnknownError):
        store.put_if_absent("two", b"x")
    assert store.put_if_absent("one", b"x") is PutOutcome.EXISTS
    assert store.put_if_absent("two", b"x") is PutOutcome.CREATED


def test_only_put_if_absent_says_that_the_outcome_is_unknown(disk: MemoryStore) -> None:
    store = FaultStore(disk, lambda _: Fault.LOSE_ANSWER)
    with pytest.raises(StoreUnavailableError) as caught:
        store.put("new", b"x")
    assert type(caught.value) is StoreUnavailableError
    assert disk.get("new") == b"x"
    with pytest.raises(StoreUnavailableError):
        store.delete("old")
    assert disk.head("old") is None


def test_an_unavailable_store_does_nothing(disk: MemoryStore) -> None:
    store = FaultStore(disk, dict.fromkeys(range(1, 9), Fault.UNAVAILABLE))
    verbs: tuple[Callable[[], object], ...] = (
        lambda: store.put_if_absent("new", b""),
        lambda: store.put("new", b""),
        lambda: store.get("old"),
        lambda: store.get_range("old", 0, 1),
        lambda: store.head("old"),
        lambda: store.list(""),
        lambda: store.list_level(""),
        lambda: store.delete("old"),
    )
    for verb in verbs:
        with pytest.raises(StoreUnavailableError):
            verb()
    assert [info.path for info in disk.list("")] == ["old"]
    assert [operation.verb for operation in store.log] == list(Verb)


def test_a_read_can_flip_a_byte_or_be_cut_short_once(disk: MemoryStore) -> None:
    store = FaultStore(disk, {1: Fault.FLIP_BYTE, 2: Fault.CUT_SHORT, 3: Fault.FLIP_BYTE, 4: Fault.CUT_SHORT})
    flipped = store.get("old")
    assert [a == b for a, b in zip(flipped, b"0123456789", strict=True)].count(False) == 1
    assert store.get("old") == b"01234"
    assert store.get_range("old", 2, 4) == b"23" + bytes([ord("4") ^ 0xFF]) + b"5"
    assert store.get_range("old", 2, 4) == b"23"
    assert store.get("old") == b"0123456789"


def test_damage_to_a_path_stays_for_reads_and_size_until_it_is_written_on_the_disk(disk: MemoryStore) -> None:
    store = FaultStore(disk)
    store.damage("old", cut_to(4))
    assert store.get("old") == b"0123"
    assert store.get_range("old", 2, 9) == b"23"
    info = store.head("old")
    assert info is not None
    assert info.size == 4
    store.damage("old", flip_byte(0))
    assert store.get("old") == bytes([ord("0") ^ 0xFF]) + b"123456789"
    assert disk.get("old") == b"0123456789"


@pytest.mark.parametrize("offset", [0, 1, 4, -1, -5])
def test_flip_byte_changes_that_byte_alone(offset: int) -> None:
    data = bytearray(b"abcde")
    data[offset] ^= 0xFF
    assert flip_byte(offset)(b"abcde") == bytes(data)
    assert flip_byte(offset)(b"") == b""


def test_a_plan_may_choose_by_verb_and_path(disk: MemoryStore) -> None:
    def plan(operation: Operation) -> Fault | None:
        return Fault.UNAVAILABLE if operation.verb.writes and operation.path.startswith("bad/") else None

    store = FaultStore(disk, plan)
    store.put("good/a", b"")
    with pytest.raises(StoreUnavailableError):
        store.put("bad/a", b"")
    assert store.get("old")


def test_a_hook_before_an_operation_makes_a_zombie(disk: MemoryStore) -> None:
    paused, resume = threading.Event(), threading.Event()

    def pause(operation: Operation) -> None:
        if operation.verb is Verb.PUT_IF_ABSENT:
            paused.set()
            assert resume.wait(10)

    heard: list[PutOutcome] = []
    zombie = threading.Thread(target=lambda: heard.append(FaultStore(disk, before=pause).put_if_absent("n", b"zombie")))
    zombie.start()
    assert paused.wait(10)
    assert disk.put_if_absent("n", b"successor") is PutOutcome.CREATED
    resume.set()
    zombie.join(10)
    assert heard == [PutOutcome.EXISTS]
    assert disk.get("n") == b"successor"


def test_a_store_that_crashes_while_paused_has_no_effect(disk: MemoryStore) -> None:
    store = FaultStore(disk, before=lambda _: store.crash())
    with pytest.raises(SimulatedCrash):
        store.put("new", b"")
    assert disk.head("new") is None


def test_the_log_numbers_operations_from_one_with_verb_and_path(disk: MemoryStore) -> None:
    store = FaultStore(disk)
    store.head("old")
    list(store.list("folder"))
    store.delete("old")
    assert store.log == (
        Operation(1, Verb.HEAD, "old"),
        Operation(2, Verb.LIST, "folder"),
        Operation(3, Verb.DELETE, "old"),
    )
