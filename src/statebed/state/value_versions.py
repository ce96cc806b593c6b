"""Versions of stored values, and the steps from an older one to the present.

A type says which version it is and which type came before it; the newest type thus names the whole way:

    @dataclass(frozen=True)
    class RiderV2:
        VERSION: ClassVar[int] = 2
        PREVIOUS: ClassVar[type[RiderV1]] = RiderV1
        name: str
        trips: int

        @classmethod
        def migrate(cls, previous: RiderV1) -> "RiderV2":
            return cls(previous.name, trips=0)

The way is looked up before any value is read: a version that it does not lead from, or one that is newer than the
code's, is refused.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, runtime_checkable

from statebed.errors import InputError, MigrationError
from statebed.state.codec import Codec


@runtime_checkable
class MigratableState(Protocol):
    """A type of values that knows its version and how to be made from the version before."""

    VERSION: ClassVar[int]
    PREVIOUS: ClassVar[Any]
    """The type of the version before; None for the first."""

    @classmethod
    def migrate(cls, previous: Any) -> Any:
        """The value of this version for one of `PREVIOUS`."""


Decode = Callable[[bytes], Any]


def check_not_newer(stored: int, *, current: int, where: str) -> None:
    """Refuse state of a version that only newer code understands."""
    if stored > current:
        raise MigrationError(
            f"the state has version {stored}, and this code knows versions up to {current}",
            where=where,
            fix="run the newer code, or restart from an epoch that older code wrote",
        )


def check_declared(declared: Any, *, current: int, where: str) -> None:
    """Refuse a type whose version is not the one that its table is configured with."""
    if not _migratable(declared):
        return
    if current != declared.VERSION:
        raise InputError(
            f"the type {declared.__name__} has version {declared.VERSION}, its table is configured with {current}",
            where=where,
            fix=f"use global_table_config_with_version(..., version={declared.VERSION})",
        )


def decoder(declared: Any, *, stored: int, current: int, where: str) -> Decode:
    """Bytes of the version `stored` to a value of the version `current`, in as many steps as it takes."""
    check_not_newer(stored, current=current, where=where)
    check_declared(declared, current=current, where=where)
    if stored == current:
        return Codec(declared).decode
    way = _way(declared, stored=stored, current=current, where=where)
    oldest: Decode = Codec(way[0]).decode

    def decode(data: bytes) -> Any:
        value = oldest(data)
        for step in way[1:]:
            value = step.migrate(value)
        return value

    return decode


def _way(declared: Any, *, stored: int, current: int, where: str) -> list[Any]:
    """The types from the stored version to the current one."""
    known: list[Any] = [declared] if _migratable(declared) else []
    while known and stored < known[-1].VERSION and known[-1].PREVIOUS is not None:
        earlier = known[-1].PREVIOUS
        if not _migratable(earlier) or earlier.VERSION >= known[-1].VERSION:
            raise InputError(
                f"{known[-1].__name__}.PREVIOUS is no type of an earlier version",
                where=where,
                fix="give it VERSION (lower), PREVIOUS (None for the first) and migrate",
            )
        known.append(earlier)
    if not known or stored != known[-1].VERSION:
        versions = ", ".join(str(kind.VERSION) for kind in reversed(known)) or "none"
        raise MigrationError(
            f"no migration leads from version {stored} of the state to {current}: the steps given are for {versions}",
            where=where,
            fix="declare a value type whose chain of PREVIOUS reaches the stored version",
        )
    return known[::-1]


def _migratable(declared: Any) -> bool:
    return all(hasattr(declared, name) for name in ("VERSION", "PREVIOUS", "migrate"))
