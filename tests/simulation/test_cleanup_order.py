"""The order and reach of clean-up, and what happens when something that must be kept is damaged."""

import pytest
from simulation.world import Content, World

from statebed.checkpoint import DamagePolicy, EpochDraft
from statebed.errors import CleanupError, CorruptRecordError, MissingFileError
from statebed.format import names
from statebed.testing.faults import FaultStore, Operation, Verb


def test_p3_a_zombies_sweep_leaves_alone_what_a_newer_run_is_writing(world: World) -> None:
    """The zombie lists the folder while the newer run has written files whose record is not there yet."""
    newer = world.process()
    drafts: list[tuple[EpochDraft, Content]] = []

    def write_meanwhile(operation: Operation) -> None:
        if armed and operation.verb is Verb.LIST and not drafts:
            newer.open()
            newer.epoch("new ")
            drafts.append(newer.draft("in flight "))

    armed = False
    zombie = world.process(FaultStore(world.disk, before=write_meanwhile)).open()
    for _ in range(5):
        zombie.epoch()
    armed = True
    world.seconds += 100
    zombie.run._cleanups = 0  # the next clean-up is a sweep
    zombie.run.clean_up()
    draft, content = drafts[0]
    world.attempted[newer.run.next_epoch] = [content]
    newer.run.commit(draft)
    world.check_recovery()
    world.check_retained()


def test_p5_records_leave_in_ascending_order_each_confirmed_before_the_next(world: World) -> None:
    store = FaultStore(world.disk)
    process = world.process(store).open()
    for _ in range(8):
        process.epoch(clean_up=False)
    world.seconds += 100
    process.epoch(clean_up=False)
    world.seconds += 100
    before = len(store.log)
    removed = process.run.clean_up()
    assert len(removed.records) >= 4
    touched = [op for op in store.log[before:] if op.path.endswith("checkpoint.metadata")]
    confirmed = [(verb, names.record(epoch)) for epoch in sorted(removed.records) for verb in (Verb.DELETE, Verb.HEAD)]
    assert [(op.verb, op.path) for op in touched] == confirmed


def test_p5_data_leaves_before_the_metadata_that_names_it(world: World) -> None:
    store = FaultStore(world.disk)
    process = world.process(store).open()
    for _ in range(8):
        process.epoch(clean_up=False)
    world.seconds += 100
    process.epoch(clean_up=False)
    process.run._cleanups = 1  # not a sweep: it must know from metadata what is left
    process.run.clean_up()
    deleted = [op.path for op in store.log if op.verb is Verb.DELETE]
    kinds = ["record" if p.endswith("checkpoint.metadata") else p.rsplit(".", 1)[-1] for p in deleted]
    assert kinds.index("metadata") > max(i for i, kind in enumerate(kinds) if kind == "parquet")
    assert kinds.index("record") > max(i for i, kind in enumerate(kinds) if kind != "record")


def test_p7_a_damaged_head_is_refused_and_left_only_when_told_to(world: World) -> None:
    process = world.process().open(epochs=10)
    for _ in range(4):
        process.epoch(publish=False)
    process.commit("damaged ")
    head = process.run.head.epoch
    world.disk.put(names.record(head), world.disk.get(names.record(head))[:-9])
    before = {info.path for info in world.disk.list("")}
    with pytest.raises(CorruptRecordError, match=str(head)):
        world.process().open(epochs=10)
    assert {info.path for info in world.disk.list("")} == before, "a refusal writes nothing"
    fallen = world.process().open(epochs=10, damage=DamagePolicy.FALL_BACK)
    assert (fallen.run.head.epoch, fallen.run.head.base) == (head + 1, head - 1)
    assert [skip.epoch for skip in fallen.run.recovery.skipped] == [head]
    with pytest.raises(CleanupError, match="cannot be read"):
        fallen.run.clean_up()  # what the damaged record names is not known, so nothing may go
    fallen.epoch("after ", clean_up=False)
    del world.attempted[head], world.acknowledged[head]
    world.check_sinks()


def test_p5_files_stay_for_readers_in_their_grace_and_leave_after_it(world: World) -> None:
    process = world.process().open(epochs=1, grace_us=500_000_000)
    opened = process.epoch()
    process.epoch()
    process.epoch()
    assert opened.epoch < process.run.head.min_epoch, "the record that the reader holds is retained no more"
    process.run.clean_up()
    assert world.read(opened) in world.attempted[opened.epoch], "but what it names can still be read"
    world.seconds += 1_000
    process.epoch()
    process.run.clean_up()
    with pytest.raises(MissingFileError):
        world.read(opened)
