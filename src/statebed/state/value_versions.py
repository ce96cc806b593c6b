"""Versions of stored values, and the migration steps from an older version to the current one.

A type declares its version and the type that came before it, so the newest type names the whole chain:

    @dataclass(frozen=True)
    class RiderV2:
        VERSION: ClassVar[int] = 2
        PREVIOUS: ClassVar[type[RiderV1]] = RiderV1
        name: str
        trips: int

        @classmethod
        def migrate(cls, previous: RiderV1) -> "RiderV2":
            return cls(previous.name, trips=0)

The chain is resolved before any value is read. A version that is not part of it, or one that is newer than the code, is
refused.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, runtime_checkable

from statebed.errors import InputError, MigrationError
from statebed.state.codec import Codec


@runtime_checkable
class MigratableState(Protocol):
    """A type of values that has a version and can be built from the previous version."""

    VERSION: ClassVar[int]
    PREVIOUS: ClassVar[Any]
    """Type of the previous version, or None for the first."""

    @classmethod
    def migrate(cls, previous: Any) -> Any:
        """Return the value of this version for one of type `PREVIOUS`."""


Decode = Callable[[bytes], Any]


def check_not_newer(stored: int, *, current: int, where: str) -> None:
    """Raise MigrationError if the stored version is newer than the code."""
    if stored > current:
        raise MigrationError(
            f"the state has version {stored}, but this code only knows versions up to {current}",
            where=where,
            fix="run the newer code, or restart from an epoch that older code wrote",
        )


def check_declared(declared: Any, *, current: int, where: str) -> None:
    """Raise InputError if the type's version is not the one that its table is configured with."""
    if not _migratable(declared):
        return
    if current != declared.VERSION:
        raise InputError(
            f"the type {declared.__name__} has version {declared.VERSION}, but its table is configured with {current}",
            where=where,
            fix=f"use global_table_config_with_version(..., version={declared.VERSION})",
        )


def decoder(declared: Any, *, stored: int, current: int, where: str) -> Decode:
    """Return a function that decodes bytes of version `stored` and migrates the value to version `current`."""
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
    """Return the types from the stored version to the current one."""
    known: list[Any] = [declared] if _migratable(declared) else []
    while known and stored < known[-1].VERSION and known[-1].PREVIOUS is not None:
        earlier = known[-1].PREVIOUS
        if not _migratable(earlier) or earlier.VERSION >= known[-1].VERSION:
            raise InputError(
                f"{known[-1].__name__}.PREVIOUS is not a type of an earlier version",
                where=where,
                fix="give it VERSION (lower), PREVIOUS (None for the first) and migrate",
            )
        known.append(earlier)
    if not known or stored != known[-1].VERSION:
        versions = ", ".join(str(kind.VERSION) for kind in reversed(known)) or "none"
        raise MigrationError(
            f"no migration from version {stored} of the state to {current}: the declared versions are {versions}",
            where=where,
            fix="declare a value type whose chain of PREVIOUS reaches the stored version",
        )
    return known[::-1]


def _migratable(declared: Any) -> bool:
    return all(hasattr(declared, name) for name in ("VERSION", "PREVIOUS", "migrate"))
