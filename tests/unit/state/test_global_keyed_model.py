"""Global keyed tables against a plain dict: writes, checkpoints, crashes, restores, rescaling, compaction, clean-up."""

from collections.abc import Mapping

from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from unit.state.table_cluster import TABLE, Cluster, managers_at

from statebed.state import Compaction
from statebed.state.global_keyed.table import MAX_FILES

keys = st.one_of(st.integers(0, 6), st.sampled_from(["a", "b", 1.0, True, None, ("a", 1)]))
values = st.one_of(st.integers(), st.text(max_size=3), st.none(), st.lists(st.integers(0, 3), max_size=2))
parallelisms = st.integers(1, 3)

Contents = Mapping[str, tuple[object, object]]
"""Contents by the representation of keys, because 1, 1.0 and True are one key of a dict."""


class GlobalKeyedMachine(RuleBasedStateMachine):
    @initialize(parallelism=parallelisms)
    def start(self, parallelism: int) -> None:
        self.cluster = Cluster(parallelism)
        self.now: dict[str, tuple[object, object]] = {}
        self.committed: dict[str, tuple[object, object]] = {}
        self.history: dict[int, Contents] = {}

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.close()

    @rule(writes=st.lists(st.tuples(keys, values), min_size=1, max_size=5))
    def insert(self, writes: list[tuple[object, object]]) -> None:
        for key, value in writes:
            self.cluster.owner(key).insert(key, value)
            self.now[repr(key)] = (key, value)

    @rule(key=keys)
    def remove(self, key: object) -> None:
        _, before = self.now.pop(repr(key), (key, None))
        assert self.cluster.owner(key).remove(key) == before

    @rule(key=keys, value=values)
    def delete_put_delete(self, key: object, value: object) -> None:
        view = self.cluster.owner(key)
        view.remove(key)
        view.insert(key, value)
        assert view.remove(key) == value
        self.now.pop(repr(key), None)

    @rule(epochs=st.integers(1, 10))
    def commit(self, epochs: int) -> None:
        for _ in range(epochs):
            # A key that changes every epoch, so that files pile up and are merged.
            self.insert([("always", len(self.history))])
            record = self.cluster.commit()
            self.committed = dict(self.now)
            self.history[record.epoch] = dict(self.now)

    @rule()
    def commit_without_change(self) -> None:
        record = self.cluster.commit()
        self.committed = dict(self.now)
        self.history[record.epoch] = dict(self.now)

    @rule(parallelism=parallelisms)
    def crash(self, parallelism: int) -> None:
        self.cluster.restart(parallelism)
        self.now = dict(self.committed)

    @rule(parallelism=parallelisms)
    def crash_before_the_record(self, parallelism: int) -> None:
        self.cluster.store_epoch()
        self.crash(parallelism)

    @rule()
    def compact(self) -> None:
        for manager in self.cluster.managers:
            manager.send(Compaction((TABLE,)))

    @rule()
    def collect(self) -> None:
        self.cluster.run.clean_up()

    @precondition(lambda self: self.cluster.run.chain)
    @rule(data=st.data(), parallelism=parallelisms)
    def read_a_retained_epoch(self, data: st.DataObject, parallelism: int) -> None:
        epoch = data.draw(st.sampled_from(self.cluster.run.chain))
        for manager in managers_at(self.cluster.store, self.cluster.run.record(epoch), parallelism):
            with manager:
                view = manager.get_global_keyed_state(TABLE)
                assert {repr(key): (key, value) for key, value in view.items()} == self.history[epoch]

    @invariant()
    def every_subtask_reads_its_own_keys_as_they_are_and_others_as_committed(self) -> None:
        for view in self.cluster.views():
            expected = {
                name: (key, value)
                for contents, wanted in ((self.now, True), (self.committed, False))
                for name, (key, value) in contents.items()
                if view.owns(key) is wanted
            }
            assert {repr(key): (key, value) for key, value in view.items()} == expected
            assert len(view) == len(expected)
            for key, value in expected.values():
                assert view.get(key) == value
                assert key in view

    @invariant()
    def files_are_bounded(self) -> None:
        for manager in self.cluster.managers:
            for epoch in manager.held_epochs:
                completed = manager.completed(epoch)
                assert completed is not None
                assert completed.files <= MAX_FILES


TestGlobalKeyedMachine = GlobalKeyedMachine.TestCase
TestGlobalKeyedMachine.settings = settings(max_examples=examples(15), stateful_step_count=20, deadline=None)
