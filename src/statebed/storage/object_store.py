"""The store protocol: the few verbs that everything durable in statebed rests on.

Paths are relative, '/'-separated and never start or end with '/'. Every implementation gives the same answers
and the same errors, which one contract suite checks over all of them:

- a missing object: `head` gives None, `get` and `get_range` raise ObjectMissingError, `delete` succeeds;
- a transient failure is retried inside until the deadline, then StoreUnavailableError;
- `put_if_absent` alone may raise OutcomeUnknownError: repeat it until it says CREATED or EXISTS;
- EXISTS does not mean that somebody else was first. An answer may be lost and the request repeated, inside the
  store or by the caller, and then finds its own object. Who must know compares a nonce in the bytes;
- an object and a folder never have the same name: do not use "a" and "a/b" both. File systems refuse it.
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class PutOutcome(enum.Enum):
    """What a put-if-absent did."""

    CREATED = "created"
    EXISTS = "exists"


@dataclass(frozen=True)
class ObjectInfo:
    """One stored object, as listed or looked up."""

    path: str
    size: int
    modified_us: int
    """Microseconds since 1970; for people and age thresholds, never for decisions of the protocol."""
    e_tag: str | None = None
    """The store's tag of the content, without quotes, where it has one."""


@dataclass(frozen=True)
class Listing:
    """One level of a delimited listing, sorted by name."""

    objects: tuple[ObjectInfo, ...]
    folders: tuple[str, ...]
    """Paths without the closing '/'. Some S3-likes go on showing a folder whose last object is gone."""


class ObjectStore(Protocol):
    """Bytes under names. Thread-safe. Holds no credentials in `url`."""

    @property
    def url(self) -> str:
        """Where this is: opens the same store again, in another process too; safe to print."""

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        """Create the object durably, or leave the one that exists; one of many callers hears CREATED."""

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object durably. Only for bytes that are the same whoever writes them."""

    def get(self, path: str) -> bytes:
        """The whole object."""

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; shorter where the object ends."""

    def head(self, path: str) -> ObjectInfo | None:
        """Size and time of the object, or None."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below the folder `prefix` ("" is the root), at any depth, sorted by path."""

    def list_level(self, prefix: str) -> Listing:
        """The objects and folders directly below the folder `prefix`."""

    def delete(self, path: str) -> None:
        """Remove the object; one that is not there is no error. Returns when the removal is durable."""

    def delete_many(self, paths: Sequence[str]) -> None:
        """Remove objects as `delete` does, in any order and several at a time; returns when all are gone durably."""
