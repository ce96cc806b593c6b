"""Several runs at once, stepped one store operation at a time in many seeded orders.

The scheduler lets one run proceed for a while, then another; a run that is left in the middle of an operation is a
zombie by the time it proceeds. The oracle watches the disk itself, so a breach is found where it happens.
"""

import contextlib
import random
import threading
from collections.abc import Callable

import pytest
from effort import examples
from model.protocol_world import Engine, World

from statebed.checkpoint import Origin, Retention, RollbackPolicy, RunOptions
from statebed.errors import CleanupError, ProtocolError, StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.testing.faults import FaultStore, Operation

RETENTION = Retention(epochs=2, reader_grace="10 s")
TURN_TIMEOUT_S = 30.0


class Actor(threading.Thread):
    """One process, which takes a step only when it is its turn."""

    def __init__(self, name: str, story: Callable[["Actor"], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._story = story
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self.done = False
        self.failure: BaseException | None = None

    def run(self) -> None:
        self._wait()
        try:
            self._story(self)
        except ProtocolError:
            pass  # fenced, or refused: how most of these stories end
        except BaseException as failure:  # noqa: BLE001  # a failed assertion must reach the test's own thread
            self.failure = failure
        self.done = True
        self._back.release()

    def before(self, _: Operation) -> None:
        """Called before every store operation; look-ups on helper threads belong to the step that asked for them."""
        if threading.current_thread() is self:
            self._back.release()
            self._wait()

    def turn(self) -> None:
        """Let it take one step; returns when that is done."""
        self._go.release()
        assert self._back.acquire(timeout=TURN_TIMEOUT_S), f"{self.name} is stuck"

    def _wait(self) -> None:
        assert self._go.acquire(timeout=TURN_TIMEOUT_S), f"{self.name} was never given its turn"


def play(world: World, actors: list[Actor], rng: random.Random) -> None:
    """Step the actors in a seeded order until all are done; bursts are long enough to leave others far behind."""
    for actor in actors:
        actor.start()
    while alive := [actor for actor in actors if not actor.done]:
        actor = rng.choice(alive)
        for _ in range(rng.choice((1, 1, 2, 3, 8, 30, 120))):
            if actor.done:
                break
            actor.turn()
            if rng.random() < 0.02:
                world.clock.now_us += rng.randrange(20) * 1_000_000
    for actor in actors:
        actor.join(TURN_TIMEOUT_S)
        if actor.failure is not None:
            raise actor.failure


def start(world: World, actor: Actor, origin: Origin | None = None) -> Engine:
    options = RunOptions(origin=origin or Origin(), retention=RETENTION, rollback=RollbackPolicy.ALLOW)
    engine = world.engine(FaultStore(world.disk, before=actor.before), options)
    engine.open_sinks()
    return engine


def work(world: World, engine: Engine, rng: random.Random, epochs: int) -> None:
    """Commit, publish, clean up; a clean-up that cannot read what it must keep does not end a run."""
    for number in range(epochs):
        if rng.random() < 0.2:
            with contextlib.suppress(ProtocolError):
                name = rng.choice("ab")
                engine.run.add_request(pb.Request(savepoint=pb.SavepointRequest(name=name)))
        if rng.random() < 0.15:
            with contextlib.suppress(ProtocolError):
                engine.run.add_request(pb.Request(drop_savepoint=pb.DropSavepointRequest(name=rng.choice("ab"))))
        tag = f"{threading.current_thread().name}-{number}"
        engine.commit(tag, changed={rng.randrange(2)}, dropped=rng.randrange(2), compact=rng.random() < 0.2)
        engine.publisher.publish_pending()
        world.clock.now_us += rng.randrange(8) * 1_000_000
        if rng.random() < 0.7:
            with contextlib.suppress(CleanupError):
                engine.run.clean_up()


def worker(world: World, name: str, seed: int, *, epochs: int, origin: Callable[[], Origin]) -> Actor:
    def story(actor: Actor) -> None:
        with contextlib.suppress(StatebedError):  # refused or fenced while opening or working
            work(world, start(world, actor, origin()), random.Random(seed), epochs)
        world.check()

    return Actor(name, story)


def older(world: World, rng: random.Random) -> Origin:
    head = world.oracle.head
    if head.pins and rng.random() < 0.4:
        return Origin(savepoint=rng.choice(list(head.pins)).savepoint)
    return Origin(epoch=rng.randint(head.min_epoch, head.epoch))


def prelude(world: World, rng: random.Random) -> None:
    """A job with a short history, so that there is something to clean up and to go back to."""
    actor = Actor("prelude", lambda a: work(world, start(world, a), rng, 4))
    play(world, [actor], random.Random(0))


def quiesce(world: World) -> None:
    """A last run: everything is readable, and nothing is left behind."""
    left: list[str] = []

    def story(actor: Actor) -> None:
        engine = start(world, actor)
        for number in range(3):
            engine.commit(f"end-{number}", changed={0, 1}, dropped=99)
            engine.publisher.publish_pending()
        world.clock.now_us += 1_000_000_000
        engine.run.clean_up()
        left.extend(world.orphans())

    play(world, [Actor("end", story)], random.Random(0))
    world.check()
    assert left == []


Cast = Callable[[World, random.Random], list[Actor]]


def two_runs_open_while_one_commits(world: World, rng: random.Random) -> list[Actor]:
    return [worker(world, f"run{i}", rng.randrange(99), epochs=6, origin=Origin) for i in range(3)]


def forks_open_while_garbage_is_collected(world: World, rng: random.Random) -> list[Actor]:
    live = worker(world, "live", rng.randrange(99), epochs=9, origin=Origin)
    forks = [worker(world, f"fork{i}", rng.randrange(99), epochs=3, origin=lambda: older(world, rng)) for i in range(2)]
    return [live, *forks]


def many_zombies_are_left_behind(world: World, rng: random.Random) -> list[Actor]:
    return [worker(world, f"zombie{i}", rng.randrange(99), epochs=5, origin=Origin) for i in range(6)]


@pytest.mark.parametrize(
    "cast", [two_runs_open_while_one_commits, forks_open_while_garbage_is_collected, many_zombies_are_left_behind]
)
def test_p1_p3_p5_hold_in_every_order_of_store_operations(cast: Cast) -> None:
    for seed in range(examples(25)):
        world, rng = World(), random.Random(seed)
        try:
            prelude(world, rng)
            play(world, cast(world, rng), rng)
            quiesce(world)
        except BaseException as failure:
            failure.add_note(f"seed {seed}")
            raise
