"""Migration of stored values from an older version to the current one, step by step."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from statebed.errors import InputError, MigrationError
from statebed.state import Codec, MigratableState
from statebed.state.value_versions import check_declared, decoder


@dataclass(frozen=True)
class V1:
    VERSION: ClassVar[int] = 1
    PREVIOUS: ClassVar[Any] = None
    name: str

    @classmethod
    def migrate(cls, previous: Any) -> "V1":
        raise AssertionError("the first version comes from none")


@dataclass(frozen=True)
class V2:
    VERSION: ClassVar[int] = 2
    PREVIOUS: ClassVar[Any] = V1
    name: str
    trips: int

    @classmethod
    def migrate(cls, previous: V1) -> "V2":
        return cls(previous.name, trips=10)


@dataclass(frozen=True)
class V3:
    VERSION: ClassVar[int] = 3
    PREVIOUS: ClassVar[Any] = V2
    label: str

    @classmethod
    def migrate(cls, previous: V2) -> "V3":
        return cls(f"{previous.name}:{previous.trips}")


@dataclass(frozen=True)
class Lonely:
    """Version 3 of a program that forgot how version 1 looked."""

    VERSION: ClassVar[int] = 3
    PREVIOUS: ClassVar[Any] = None
    label: str

    @classmethod
    def migrate(cls, previous: Any) -> "Lonely":
        raise AssertionError("must not run")


def test_a_value_takes_every_step_from_its_version_to_the_present_one() -> None:
    assert isinstance(V3("x"), MigratableState)
    decode = decoder(V3, stored=1, current=3, where="here")
    assert decode(Codec[V1](V1).encode(V1("ann"))) == V3("ann:10")
    decode = decoder(V3, stored=2, current=3, where="here")
    assert decode(Codec[V2](V2).encode(V2("ann", 7))) == V3("ann:7")
    decode = decoder(V3, stored=3, current=3, where="here")
    assert decode(Codec[V3](V3).encode(V3("ann"))) == V3("ann")


@pytest.mark.parametrize("declared", [Lonely, V3, Any, int])
def test_a_missing_step_is_refused_before_any_value_is_seen(declared: Any) -> None:
    with pytest.raises(MigrationError, match="no migration from version 0"):
        decoder(declared, stored=0, current=3, where="here")


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(MigrationError, match="version 4"):
        decoder(V3, stored=4, current=3, where="here")


def test_a_type_of_another_version_than_its_table_is_refused() -> None:
    with pytest.raises(InputError, match="version=3"):
        check_declared(V3, current=2, where="here")


def test_a_chain_that_does_not_descend_is_refused() -> None:
    class Turning(V3):
        VERSION: ClassVar[int] = 5

    class Cycle(V3):
        VERSION: ClassVar[int] = 4
        PREVIOUS: ClassVar[Any] = Turning

    with pytest.raises(InputError, match="earlier version"):
        decoder(Cycle, stored=1, current=4, where="here")
