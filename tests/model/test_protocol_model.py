"""The protocol against its model: several runs at once, most of them zombies, crashes and lost answers anywhere."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from effort import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from model.protocol_world import Engine, World

from statebed.checkpoint import DamagePolicy, Origin, Retention, RollbackPolicy, RunOptions
from statebed.errors import (
    CleanupError,
    FencedError,
    FormatError,
    OutcomeUnknownError,
    ProtocolError,
    StatebedError,
    StoreUnavailableError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.storage import ObjectStore
from statebed.testing.faults import Fault, FaultStore, Operation, SimulatedCrash, Verb

MAX_RUNS = 3
RETENTION = Retention(epochs=3, reader_grace="10 s")
FAULTS = [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.UNAVAILABLE, Fault.LOSE_ANSWER, Fault.LOSE_WRITE]
faults = st.none() | st.tuples(st.integers(1, 25), st.sampled_from(FAULTS))
which = st.integers(0, MAX_RUNS - 1)
Plan = tuple[int, Fault] | None


class Line:
    """A process's way to the disk, on which one operation of the present step may fail."""

    def __init__(self, disk: ObjectStore) -> None:
        self.store = FaultStore(disk, self._fault)
        self._countdown = 0
        self._planned: Fault | None = None

    def plan(self, plan: Plan) -> None:
        self._countdown, self._planned = plan or (0, None)

    def _fault(self, operation: Operation) -> Fault | None:
        self._countdown -= 1
        if self._countdown != 0 or self._planned is None:
            return None
        if self._planned in {Fault.LOSE_ANSWER, Fault.LOSE_WRITE} and operation.verb is not Verb.PUT_IF_ABSENT:
            return Fault.UNAVAILABLE
        return self._planned


@dataclass
class Process:
    line: Line
    engine: Engine
    sinks_open: bool = False


class ProtocolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.processes: list[Process] = []
        self.steps = 0
        self.opened = 0

    # ---- steps ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.opened < 1 + len(self.world.oracle.log) // 3)
    @rule(origin=st.sampled_from(["head", "older", "savepoint"]), back=st.integers(1, 8), plan=faults)
    def open(self, origin: str, back: int, plan: Plan) -> None:
        options = RunOptions(
            origin=self._origin(origin, back),
            retention=RETENTION,
            damage=DamagePolicy.FALL_BACK,
            rollback=RollbackPolicy.ALLOW,
        )
        self._open(options, plan)

    @precondition(lambda self: self.world.oracle.log)
    @rule(plan=faults)
    def refuse_rollback_past_what_is_published(self, plan: Plan) -> None:
        oracle = self.world.oracle
        chain = oracle.ancestry(oracle.head.epoch)
        retained = [epoch for epoch in chain if epoch >= oracle.head.min_epoch]
        if len(retained) < 2 or oracle.broken or self.world.sink.position is None:
            return
        base = retained[0]
        options = RunOptions(origin=Origin(epoch=base), retention=RETENTION)
        published = [e for e in retained[1:] if self.world.store.head(f"checkpoints/{e:012d}/published-out")]
        before = oracle.head.epoch
        self._open(options, plan)
        assert not published or oracle.head.epoch == before, "rolled back past published epochs unasked"

    @precondition(lambda self: self.processes)
    @rule(at=which, changed=st.sets(st.integers(0, 1)), dropped=st.integers(0, 1), compact=st.booleans(), plan=faults)
    def commit(self, at: int, changed: set[int], dropped: int, compact: bool, plan: Plan) -> None:
        process = self._pick(at)
        if process is None or not process.sinks_open:
            return
        self.steps += 1
        live = process.engine.run.number == self.world.oracle.head.run
        done = self._step(
            process,
            plan,
            lambda: process.engine.commit(f"s{self.steps}", changed=changed, dropped=dropped, compact=compact),
        )
        assert live or not done, "P3: a superseded run committed"

    @precondition(lambda self: self.processes)
    @rule(epochs=st.integers(1, 5), publish=st.booleans(), clean_up=st.booleans(), data=st.data())
    def work(self, epochs: int, publish: bool, clean_up: bool, data: st.DataObject) -> None:
        """Do the usual work of a run; the newest run is mostly the live one."""
        for _ in range(epochs):
            self.commit(0, data.draw(st.sets(st.integers(0, 1))), 0, compact=False, plan=None)
            if publish and self.processes:
                self.publish(0, None)
            self.advance(4)
        if clean_up and self.processes:
            self.clean_up(0, None)

    @precondition(lambda self: self.processes)
    @rule(at=which, plan=faults)
    def publish(self, at: int, plan: Plan) -> None:
        process = self._pick(at)
        if process is None or not process.sinks_open:
            return
        if self._step(process, plan, process.engine.publisher.publish_pending):
            self._check_published(process)

    @precondition(lambda self: self.processes)
    @rule(at=which, name=st.sampled_from("abc"), back=st.integers(0, 4))
    def ask_for_savepoint(self, at: int, name: str, back: int) -> None:
        epoch = max(1, self.world.oracle.head.epoch - back)
        request = pb.Request(savepoint=pb.SavepointRequest(name=name, epoch=epoch))
        self._ask(self._pick(at), request)

    @precondition(lambda self: self.processes)
    @rule(at=which, name=st.sampled_from("abc"))
    def ask_to_drop_savepoint(self, at: int, name: str) -> None:
        self._ask(self._pick(at), pb.Request(drop_savepoint=pb.DropSavepointRequest(name=name)))

    @precondition(lambda self: self.processes)
    @rule(at=which, plan=faults)
    def clean_up(self, at: int, plan: Plan) -> None:
        process = self._pick(at)
        if process is not None:
            self._step(process, plan, process.engine.run.clean_up)

    @rule(seconds=st.integers(1, 15))
    def advance(self, seconds: int) -> None:
        self.world.clock.now_us += seconds * 1_000_000

    @precondition(lambda self: self.world.oracle.log and not self.world.oracle.broken)
    @rule()
    def damage_newest_file(self) -> None:
        oracle, store = self.world.oracle, self.world.store
        newest = [path for path in oracle.named[oracle.head.epoch] if "/data/" in path]
        introduced = [path for path in newest if path.startswith(f"checkpoints/{oracle.head.epoch:012d}/")]
        if introduced:
            oracle.broken[introduced[0]] = store.get(introduced[0])
            store.put(introduced[0], store.get(introduced[0])[:-1])

    # ---- what must hold ------------------------------------------------------------------------------------

    @invariant()
    def promises_hold(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if not self.world.oracle.log:
            return
        for path, data in self.world.oracle.broken.items():
            if self.world.store.head(path):
                self.world.store.put(path, data)  # restored from a backup
        self.world.oracle.broken.clear()
        self._open(RunOptions(retention=RETENTION, damage=DamagePolicy.FALL_BACK, rollback=RollbackPolicy.ALLOW), None)
        process = self.processes[-1]
        for step in range(RETENTION.epochs + 1):
            process.engine.commit(f"last{step}", changed={0, 1}, dropped=9)
            process.engine.publisher.publish_pending()
        self.world.clock.now_us += 1_000 * 1_000_000
        process.engine.run._cleanups = 0  # the next clean-up is a sweep
        process.engine.run.clean_up()
        process.engine.run._cleanups = 0
        process.engine.run.clean_up()
        self.world.check()
        assert not self.world.orphans()
        oracle = self.world.oracle
        records = [
            int(info.path.split("/")[1])
            for info in self.world.store.list("checkpoints")
            if "/checkpoint.m" in info.path
        ]
        assert records == [n for n in oracle.log if n >= oracle.head.min_epoch], "records are not contiguous"
        assert len(oracle.retained()) == RETENTION.epochs

    # ---- helpers -------------------------------------------------------------------------------------------

    def _origin(self, kind: str, back: int) -> Origin:
        log = self.world.oracle.log
        pins = self.world.oracle.head.pins if log else ()
        if kind == "savepoint" and pins:
            return Origin(savepoint=pins[back % len(pins)].savepoint)
        if kind == "older" and log:
            return Origin(epoch=max(1, self.world.oracle.head.epoch - back))
        return Origin()

    def _open(self, options: RunOptions, plan: Plan) -> None:
        line = Line(self.world.disk)
        line.plan(plan)
        self.opened += 1
        try:
            process = Process(line, self.world.engine(line.store, options))
        except (SimulatedCrash, StoreUnavailableError):
            return
        except (FormatError, ProtocolError):
            assert options.origin != Origin() or self.world.oracle.broken, "opening at the head was refused"
            return
        self.processes = [*self.processes, process][-MAX_RUNS:]
        if self._step(process, None if plan is None else (plan[0] // 3, plan[1]), process.engine.open_sinks):
            process.sinks_open = True
            self._check_published(process)

    def _check_published(self, process: Process) -> None:
        if process.engine.run.number == self.world.oracle.head.run:
            assert set(process.engine.run.chain) <= set(self.world.sink.rows), "the sink lacks retained epochs"

    def _pick(self, at: int) -> Process | None:
        return self.processes[-1 - at % len(self.processes)] if self.processes else None

    def _ask(self, process: Process | None, request: pb.Request) -> None:
        with contextlib.suppress(ProtocolError):
            if process is not None:
                process.engine.run.add_request(request)

    def _step(self, process: Process, plan: Plan, action: Callable[[], object]) -> bool:
        """Whether the step was acknowledged."""
        oracle = self.world.oracle
        superseded = process.engine.run.number != oracle.head.run
        process.line.plan(plan)
        try:
            action()
        except SimulatedCrash:
            self.processes.remove(process)
        except FencedError:
            assert superseded, "the live run was fenced"
            self.processes.remove(process)
        except OutcomeUnknownError:
            self.processes.remove(process)
        except CleanupError:
            assert superseded or plan, "the live run cannot clean up"
        except StoreUnavailableError:
            pass
        except StatebedError:
            assert superseded or plan, "the live run failed for no reason"
            self.processes.remove(process)
        else:
            return True
        finally:
            process.line.plan(None)
        return False


def test_p1_p2_p3_p5_hold_for_any_mix_of_live_runs_zombies_crashes_and_forks() -> None:
    run_state_machine_as_test(
        ProtocolMachine,
        settings=settings(
            max_examples=examples(50),
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
