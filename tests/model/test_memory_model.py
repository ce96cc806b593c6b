"""The memory controller's accounts against a model that recounts everything that is alive, each time."""

import pyarrow as pa
from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from statebed.state.memory.controller import Hold, MemoryController, Purpose, Reservation, SpillOffer
from statebed.state.memory.sizes import held_bytes

OWNERS = st.sampled_from(["bids", "rides"])
PURPOSES = st.sampled_from(Purpose)
BUDGET = 20_000


class MemoryModel(RuleBasedStateMachine):
    """Parents are shared by slices that several owners hold; offers leave when there is pressure."""

    holds: Bundle[Hold] = Bundle("holds")
    reservations: Bundle[Reservation] = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryController(BUDGET, high=0.8, low=0.5)
        self.parents = [pa.array(range(100 * (n + 1)), pa.int64()) for n in range(4)]
        self.alive: dict[int, tuple[str, pa.Table]] = {}
        self.reserved: dict[int, int] = {}
        self.sealed: dict[int, SpillOffer] = {}

    @rule(target=holds, parent=st.integers(0, 3), start=st.integers(0, 90), owner=OWNERS, purpose=PURPOSES)
    def hold(self, parent: int, start: int, owner: str, purpose: Purpose) -> Hold:
        data = pa.table({"n": self.parents[parent].slice(start, 5)})
        hold = self.memory.hold(owner, purpose, data)
        self.alive[id(hold)] = (owner, data)
        return hold

    @rule(hold=consumes(holds))
    def release(self, hold: Hold) -> None:
        hold.release()
        del self.alive[id(hold)]

    @rule(target=reservations, nbytes=st.integers(0, 4000), owner=OWNERS, purpose=PURPOSES)
    def reserve(self, nbytes: int, owner: str, purpose: Purpose) -> Reservation:
        reservation = self.memory.reserve(owner, purpose, nbytes)
        self.reserved[id(reservation)] = nbytes
        return reservation

    @rule(reservation=reservations, nbytes=st.integers(0, 4000))
    def resize(self, reservation: Reservation, nbytes: int) -> None:
        reservation.resize(nbytes)
        self.reserved[id(reservation)] = nbytes

    @rule(owner=OWNERS, nbytes=st.integers(1, 5000))
    def seal(self, owner: str, nbytes: int) -> None:
        reservation = self.memory.reserve(owner, Purpose.SEGMENTS, nbytes)
        key = id(reservation)
        self.reserved[key] = nbytes

        def spill() -> None:
            assert self.sealed[key].last_used == min(offer.last_used for offer in self.sealed.values())
            reservation.release()
            del self.reserved[key], self.sealed[key]

        self.sealed[key] = self.memory.offer(owner, nbytes, spill)
        self.memory.make_room()

    @rule(index=st.integers(0, 20))
    def touch(self, index: int) -> None:
        if self.sealed:
            list(self.sealed.values())[index % len(self.sealed)].touch()

    @invariant()
    def what_is_used_is_what_is_alive(self) -> None:
        data = [table for _, table in self.alive.values()]
        assert self.memory.used == held_bytes(*data) + sum(self.reserved.values())

    @invariant()
    def accounts_add_up_and_nobody_pays_for_what_others_alone_hold(self) -> None:
        accounts = self.memory.snapshot().accounts
        assert sum(accounts.values()) == self.memory.used
        assert all(nbytes > 0 for nbytes in accounts.values())
        for owner in ("bids", "rides"):
            held = held_bytes(*(table for who, table in self.alive.values() if who == owner))
            paid = sum(nbytes for (who, _), nbytes in accounts.items() if who == owner)
            assert paid <= held + sum(self.reserved.values())

    @invariant()
    def the_budget_is_kept_while_anything_can_leave(self) -> None:
        assert not self.sealed or self.memory.used <= self.memory.high_bytes


MemoryModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30)
TestMemoryModel = MemoryModel.TestCase
