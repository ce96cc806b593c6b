"""Store protocol: the operations on which everything durable in statebed is built.

Paths are relative, '/'-separated and never start or end with '/'. Every implementation returns the same results and
raises the same errors, which one contract suite checks for all of them:

- a missing object: `head` returns None, `get` and `get_range` raise ObjectMissingError, `delete` succeeds;
- a transient failure is retried inside until the deadline, then StoreUnavailableError;
- `put_if_absent` alone may raise OutcomeUnknownError: repeat it until it returns CREATED or EXISTS;
- EXISTS does not mean that another writer was first. A response may be lost and the request repeated, inside the
  store or by the caller, and then finds its own object. Callers that must know compare a nonce in the bytes;
- an object and a folder never have the same name: do not use both "a" and "a/b". File systems refuse it.
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class PutOutcome(enum.Enum):
    """Outcome of a put-if-absent."""

    CREATED = "created"
    EXISTS = "exists"


@dataclass(frozen=True)
class ObjectInfo:
    """Metadata of a stored object."""

    path: str
    size: int
    modified_us: int
    """Microseconds since 1970. For display and age thresholds, never for decisions of the protocol."""
    e_tag: str | None = None
    """Entity tag of the content, without quotes, if the store has one."""


@dataclass(frozen=True)
class Listing:
    """One level of a delimited listing, sorted by name."""

    objects: tuple[ObjectInfo, ...]
    folders: tuple[str, ...]
    """Paths without the trailing '/'. Some S3-compatible stores still list a folder after its last object was deleted.
    """


class ObjectStore(Protocol):
    """Named objects of bytes. Thread-safe. `url` contains no credentials."""

    @property
    def url(self) -> str:
        """URL that opens the same store again, also in another process. Safe to print."""

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        """Create the object durably, or leave the existing one; of concurrent callers, one gets CREATED."""

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object durably. Only for bytes that do not depend on the writer."""

    def get(self, path: str) -> bytes:
        """Return the whole object."""

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, or fewer if the object ends before."""

    def head(self, path: str) -> ObjectInfo | None:
        """Return size and time of the object, or None if it does not exist."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object below the folder `prefix` ("" is the root), at any depth, sorted by path."""

    def list_level(self, prefix: str) -> Listing:
        """Return the objects and folders directly below the folder `prefix`."""

    def delete(self, path: str) -> None:
        """Delete the object durably; a missing object is not an error."""

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete objects durably, in any order and several at a time; missing objects are not an error."""
