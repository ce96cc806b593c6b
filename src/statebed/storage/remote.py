"""Object stores through obstore: Amazon S3 and compatible stores, Google Cloud Storage, Azure Blob Storage.

All use the same code, tested with a real S3 server and Azure's emulator; Google's store is not tested. put_if_absent is
obstore's `mode="create"`, a conditional request. obstore's own retries are off: retries are decided here, where it is
known whether a request may have had an effect. Every request has a timeout and every verb a deadline, after which
StoreUnavailableError (or OutcomeUnknownError) is raised.

EXISTS may be the result of our own earlier attempt, whose response was lost: callers that must know compare nonces. A
store may also respond "conflict" while another request for the same name is in progress, which obstore reports as
"exists". "Exists" is therefore trusted only once the object is visible.

obstore's threads do not survive a fork, and a request in the child would hang forever, so it is refused.
"""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from statebed.errors import (
    BucketMissingError,
    ClockSkewError,
    CredentialsError,
    InputError,
    ObjectMissingError,
    OutcomeUnknownError,
    StatebedError,
    StorageError,
    StoreNotWritableError,
    StoreUnavailableError,
)
from statebed.storage.failures import Failure, FailureKind, classify
from statebed.storage.object_store import Listing, ObjectInfo, PutOutcome
from statebed.storage.obstore_settings import sort_settings, with_profile
from statebed.storage.paths import check_path, check_prefix, check_range, join
from statebed.storage.retry import Retrier
from statebed.storage.verified import UPLOAD_PART_BYTES

T = TypeVar("T")
_DELETES_AT_ONCE = 16

_VARIABLES = {
    "aws": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "google": "GOOGLE_APPLICATION_CREDENTIALS",
    "azure": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_CREDENTIALS_FIX = "give credentials by the environment: {variables}; if they are right, check this machine's clock"
_SETTINGS_FIX = "correct the options or the environment ({variables}); a http:// endpoint needs AWS_ALLOW_HTTP=true"
_REACH_FIX = "look whether the store is up and reachable from here (endpoint, network, proxy)"
_LOG_FIX = "look at the store's own log for this request"
_ERRORS: dict[FailureKind, tuple[type[StatebedError], str]] = {
    FailureKind.MISSING: (ObjectMissingError, ""),
    FailureKind.EXISTS: (StorageError, _LOG_FIX),
    FailureKind.BUCKET_MISSING: (BucketMissingError, "make the bucket, or correct its name in the URL"),
    FailureKind.BAD_CREDENTIALS: (CredentialsError, _CREDENTIALS_FIX),
    FailureKind.NO_CREDENTIALS: (CredentialsError, _CREDENTIALS_FIX),
    FailureKind.CLOCK_SKEW: (ClockSkewError, "set the clock of this machine, for example by NTP; then start again"),
    FailureKind.DENIED: (CredentialsError, "allow this identity to read there, or use another one"),
    FailureKind.PAST_THE_END: (StorageError, _LOG_FIX),
    FailureKind.UNREACHABLE: (StoreUnavailableError, _REACH_FIX),
    FailureKind.TRANSIENT: (StoreUnavailableError, _REACH_FIX),
    FailureKind.SETTINGS: (InputError, _SETTINGS_FIX),
    FailureKind.OTHER: (StorageError, _LOG_FIX),
}


class _FailedError(Exception):
    """Failure of one attempt."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class RemoteStore:
    """Store in the bucket and folder of a URL such as s3://bucket/folder."""

    def __init__(self, url: str, options: Mapping[str, str], *, retrier: Retrier | None = None) -> None:
        self._url = url
        self._retrier = retrier or Retrier()
        scheme = url.partition("://")[0]
        with_credentials = with_profile(options, os.environ) if scheme in {"s3", "s3a"} else options
        self._settings = sort_settings(scheme, with_credentials, os.environ)
        self._store = self._open()
        self._bulk_delete = True

    def __repr__(self) -> str:
        return f"RemoteStore({self._url!r})"

    @property
    def url(self) -> str:
        return self._url

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        check_path(path)
        sent = False

        def attempt() -> PutOutcome:
            nonlocal sent
            failure = _failure_of(lambda: obstore.put(self._store, path, data, mode="create"))
            if failure is None:
                return PutOutcome.CREATED
            if failure.kind is FailureKind.EXISTS:
                sent = True
                if self._head_once(path) is not None:
                    return PutOutcome.EXISTS
                failure = Failure(FailureKind.TRANSIENT, "another request was under way", retryable=True)
            sent = sent or failure.kind is FailureKind.TRANSIENT
            raise _FailedError(failure)

        try:
            return self._repeat(attempt)
        except _FailedError as error:
            failure = error.failure
        if sent:  # whatever the last attempt returned, an earlier one may have had an effect
            raise OutcomeUnknownError(
                f"the store gave no clear response until the deadline ({failure.reason})",
                where=join(self._url, path),
                fix="repeat the same put: it then returns created or exists",
            )
        raise self._error(failure, path, writes=True)

    def put(self, path: str, data: bytes) -> None:
        check_path(path)
        self._call(path, lambda: obstore.put(self._store, path, data, chunk_size=UPLOAD_PART_BYTES), writes=True)

    def get(self, path: str) -> bytes:
        check_path(path)
        return self._call(path, lambda: obstore.get(self._store, path).bytes().to_bytes())

    def get_range(self, path: str, start: int, length: int) -> bytes:
        check_path(path)
        check_range(start, length)
        if length == 0:  # an empty range cannot be requested, but a missing object is still an error
            if self.head(path) is None:
                raise self._error(Failure(FailureKind.MISSING, ""), path, writes=False)
            return b""

        def attempt() -> bytes:
            try:
                return _translated(lambda: obstore.get_range(self._store, path, start=start, length=length).to_bytes())
            except _FailedError as error:
                if error.failure.kind is FailureKind.PAST_THE_END:
                    return b""
                raise

        return self._call(path, attempt)

    def head(self, path: str) -> ObjectInfo | None:
        check_path(path)
        return self._call(path, lambda: self._head_once(path))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        # Sorted here: some S3-compatible stores list by folder, where 'a/b' comes before 'a-b'.
        metas = self._call(prefix, lambda: obstore.list(self._store, prefix or None).collect())
        return iter(_objects(metas, prefix))

    def list_level(self, prefix: str) -> Listing:
        check_prefix(prefix)
        listing = self._call(prefix, lambda: obstore.list_with_delimiter(self._store, prefix or None))
        return Listing(
            objects=_objects(listing["objects"], prefix),
            folders=tuple(sorted(str(folder).rstrip("/") for folder in listing["common_prefixes"])),
        )

    def delete(self, path: str) -> None:
        check_path(path)

        def attempt() -> None:
            failure = _failure_of(lambda: obstore.delete(self._store, path))
            if failure is not None and failure.kind is not FailureKind.MISSING:
                raise _FailedError(failure)

        self._call(path, attempt, writes=True)

    def delete_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            check_path(path)
        if len(paths) > 1 and self._deletes_in_bulk(paths):
            return
        with ThreadPoolExecutor(_DELETES_AT_ONCE, thread_name_prefix="statebed-delete") as pool:
            list(pool.map(self.delete, paths))

    def _deletes_in_bulk(self, paths: Sequence[str]) -> bool:
        """Try to delete objects with bulk requests, which not every store has; return whether that worked."""
        if not self._bulk_delete:
            return False
        try:
            self._repeat(lambda: _translated(lambda: obstore.delete(self._store, paths)))
        except _FailedError as error:
            # On some stores a missing object fails the whole request: the objects are then deleted one by one.
            self._bulk_delete = error.failure.kind in {FailureKind.MISSING, FailureKind.TRANSIENT}
            return False
        return True

    def _head_once(self, path: str) -> ObjectInfo | None:
        try:
            return _info(_translated(lambda: obstore.head(self._store, path)), path)
        except _FailedError as error:
            if error.failure.kind is FailureKind.MISSING:
                return None
            raise

    def _call(self, path: str, attempt: Callable[[], T], *, writes: bool = False) -> T:
        try:
            return self._repeat(lambda: _translated(attempt))
        except _FailedError as error:
            failure = error.failure
        raise self._error(failure, path, writes=writes)

    def _repeat(self, attempt: Callable[[], T]) -> T:
        if _process_of_first_request() != os.getpid():
            raise StorageError(
                "this process was forked from one that had already used an object store, which is not supported",
                where=self._url,
                fix="start processes by 'spawn', or use the store only after the fork",
            )
        return self._retrier.call(attempt, retryable=_is_retryable)

    def _open(self) -> Any:
        # Any: obstore's own types for settings and stores are not repeated here.
        store_settings: Any = self._settings.store
        client_settings: Any = self._settings.client
        failure = None
        try:
            return _translated(
                lambda: from_url(
                    self._url,
                    config=store_settings,
                    client_options=client_settings,
                    retry_config={"max_retries": 0},
                )
            )
        except _FailedError as error:
            failure = replace(error.failure, kind=FailureKind.SETTINGS)
        raise self._error(failure, "", writes=False)

    def _error(self, failure: Failure, path: str, *, writes: bool) -> StatebedError:
        kind, fix = _ERRORS[failure.kind]
        if failure.kind is FailureKind.DENIED and writes:
            kind, fix = StoreNotWritableError, "allow this identity to write there"
        what = f"{failure.kind.value} ({failure.reason})" if failure.reason else failure.kind.value
        if kind is StoreUnavailableError:
            what += f", until the deadline of {self._retrier.policy.deadline:g} s"
        return kind(what, where=join(self._url, path), fix=fix.format(variables=_VARIABLES[self._settings.cloud]))


@functools.cache
def _process_of_first_request() -> int:
    return os.getpid()


def _translated(attempt: Callable[[], T]) -> T:
    """Return the attempt's result; raise its failure without obstore's text, which may contain a signed URL."""
    try:
        return attempt()
    except (BaseError, OSError, ValueError) as error:
        failure = classify(error)
    raise _FailedError(failure)


def _failure_of(attempt: Callable[[], object]) -> Failure | None:
    try:
        _translated(attempt)
    except _FailedError as error:
        return error.failure
    return None


def _is_retryable(error: Exception) -> bool:
    return isinstance(error, _FailedError) and error.failure.retryable


def _objects(metas: Iterable[Mapping[str, Any]], prefix: str) -> tuple[ObjectInfo, ...]:
    # Some S3-compatible stores list an empty folder as an object with the folder's own name.
    infos = (_info(meta) for meta in metas)
    return tuple(sorted((info for info in infos if info.path != prefix), key=lambda info: info.path))


def _info(meta: Mapping[str, Any], path: str | None = None) -> ObjectInfo:
    modified_us = int(meta["last_modified"].timestamp() * 1_000_000)
    e_tag = meta.get("e_tag")
    return ObjectInfo(
        path if path is not None else str(meta["path"]),
        int(meta["size"]),
        modified_us,
        None if e_tag is None else str(e_tag).strip('"'),
    )
