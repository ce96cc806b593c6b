"""Handling of requests by the live run: reads them, holds their effects until the next record, answers after it.

Clients use `send_request`. The objects are `requests/{id}` and, written once by the live run, `requests/{id}.answer`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from statebed.checkpoint.environment import Environment
from statebed.checkpoint.log import CheckpointLog
from statebed.errors import (
    CorruptObjectError,
    ObjectMissingError,
    ProtocolError,
    RequestTimeoutError,
    StatebedError,
    StorageError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.format.sealed import open_sealed, seal
from statebed.logs import id_logger
from statebed.protocol.requests import AddSavepoint, Effect, decide_request, next_pins
from statebed.storage import ObjectStore, put_verified

POLL_SECONDS = 0.2
ANSWERS_KEPT_US = 24 * 3600 * 1_000_000
"""Age at which an answer that was not fetched is deleted."""

M = TypeVar("M", pb.Request, pb.Answer)
_logger = id_logger(__name__)


@dataclass(frozen=True)
class _PendingRequest:
    request_id: str
    """Empty for requests of the run itself."""
    effect: Effect | None
    refusal: StatebedError | None = None
    epoch: int = 0
    """Record that granted or refused the request, or 0 if it is not settled yet."""
    copied: bytes = b""
    """Record that a savepoint copies. It is read when the request is granted, so that it cannot make a commit fail."""


class PendingRequests:
    """Requests that were read but not answered yet."""

    def __init__(self, log: CheckpointLog) -> None:
        self._log = log
        self._open: dict[str, _PendingRequest] = {}
        self._own: list[_PendingRequest] = []

    def read(self, head: pb.CheckpointMetadata, records: Iterable[pb.CheckpointMetadata]) -> None:
        """Read and decide every new request."""
        listing = self._log.store.list_level(names.REQUESTS)
        modified = {info.path: info.modified_us for info in listing.objects}
        granted = {request_id: record.epoch for record in records for request_id in record.granted_requests}
        for path in sorted(modified):
            if (answered := names.request_of_answer(path)) is not None:
                self._forget_old(answered, modified[path])
            request_id = names.request_of(path)
            if request_id is None or request_id in self._open or names.answer(request_id) in modified:
                continue
            if request_id in granted:
                self._open[request_id] = _PendingRequest(request_id, None, epoch=granted[request_id])
            else:
                self._open[request_id] = self._decide(request_id, path, head)

    def add(self, request: pb.Request, head: pb.CheckpointMetadata) -> None:
        """Add a request of the run itself; raise at once if it is refused."""
        self._own.append(self._grant("", request, head))

    def granted(self) -> list[tuple[str, Effect]]:
        """Return the request ids and effects that wait for the next record."""
        return [(p.request_id, p.effect) for p in self._waiting() if p.effect is not None]

    def pins(self, head: pb.CheckpointMetadata, number: int) -> list[pb.Pin]:
        """Return the pins of record `number`, after writing the copies that new pins refer to."""
        added = [
            self._copy_record(number, pending.effect, pending.copied)
            for pending in self._waiting()
            if isinstance(pending.effect, AddSavepoint)
        ]
        return next_pins(head.pins, added=added, effects=self._effects())

    def settle(self, record: pb.CheckpointMetadata) -> None:
        """Mark everything decided before `record` was committed as settled, so that it does not take effect again."""
        self._own.clear()
        for pending in self._open.values():
            settled = replace(pending, effect=None, epoch=pending.epoch or record.epoch, copied=b"")
            self._open[pending.request_id] = settled

    def answer(self, record: pb.CheckpointMetadata) -> None:
        """Answer all settled requests. If the store fails, the answer is retried after a later record."""
        for pending in list(self._open.values()):
            refusal = pending.refusal
            answer = pb.Answer(
                request_id=pending.request_id,
                run=record.run,
                epoch=pending.epoch,
                granted=refusal is None,
                code=refusal.code if refusal else "",
                what=refusal.what if refusal else "",
                fix=refusal.fix if refusal else "",
                time_us=self._log.environment.now_us(),
            )
            try:
                self._log.store.put_if_absent(names.answer(pending.request_id), seal(answer))
            except StorageError as error:
                logger = _logger.about(job=self._log.job_id, epoch=pending.epoch)
                logger.warning("request %s will be answered later: %s", pending.request_id, error.what)
                continue
            del self._open[pending.request_id]

    def _waiting(self) -> list[_PendingRequest]:
        return [*self._own, *self._open.values()]

    def _effects(self) -> list[Effect]:
        return [effect for _, effect in self.granted()]

    def _grant(self, request_id: str, request: pb.Request, head: pb.CheckpointMetadata) -> _PendingRequest:
        effect = decide_request(request, head=head, waiting=self._effects())
        if not isinstance(effect, AddSavepoint):
            return _PendingRequest(request_id, effect)
        data = self._log.read_bytes(effect.epoch)
        self._log.parse(data, effect.epoch)
        return _PendingRequest(request_id, effect, copied=data)

    def _decide(self, request_id: str, path: str, head: pb.CheckpointMetadata) -> _PendingRequest:
        try:
            request = _opened(pb.Request, self._log.store, path, fix="it had no effect: send it again")
            return self._grant(request_id, request, head)
        except StatebedError as refusal:
            return _PendingRequest(request_id, None, refusal)

    def _copy_record(self, number: int, effect: AddSavepoint, data: bytes) -> pb.Pin:
        path = names.savepoint(number, effect.name, digest(data))
        put_verified(self._log.store, path, data)
        return pb.Pin(savepoint=effect.name, epoch=effect.epoch, path=path, size=len(data), crc32c=crc32c(data))

    def _forget_old(self, request_id: str, answered_us: int) -> None:
        if answered_us < self._log.environment.now_us() - ANSWERS_KEPT_US:
            _remove(self._log.store, request_id)


def send_request(
    store: ObjectStore, request: pb.Request, *, timeout_s: float, environment: Environment | None = None
) -> pb.Answer:
    """Send a request to the live run and return its answer; raise ProtocolError if it is refused."""
    environment = environment or Environment()
    sent = pb.Request()
    sent.CopyFrom(request)  # the caller's object stays unchanged, so that sending it again is another request
    sent.request_id = sent.request_id or environment.fresh_id()
    sent.created_time_us = environment.now_us()
    store.put_if_absent(names.request(sent.request_id), seal(sent))
    answer = _wait(store, sent.request_id, timeout_s, environment)
    _remove(store, sent.request_id)
    if not answer.granted:
        raise ProtocolError(
            f"the live run refused the request ({answer.code}): {answer.what}", where=store.url, fix=answer.fix
        )
    return answer


def _opened(kind: type[M], store: ObjectStore, path: str, *, fix: str) -> M:
    """Read a request or an answer; if it is damaged, `fix` says what the sender does."""
    where = f"{store.url}/{path}"
    try:
        return open_sealed(kind, store.get(path), where=where)
    except CorruptObjectError as error:
        raise CorruptObjectError(error.what, where=where, fix=fix) from error


def _wait(store: ObjectStore, request_id: str, timeout_s: float, environment: Environment) -> pb.Answer:
    deadline = environment.steady_seconds() + timeout_s
    path = names.answer(request_id)
    while True:
        try:
            return _opened(pb.Answer, store, path, fix="find out with `statebed show` whether it had its effect")
        except ObjectMissingError:
            if environment.steady_seconds() >= deadline:
                break
        environment.sleep(POLL_SECONDS)
    store.delete(names.request(request_id))
    raise RequestTimeoutError(
        f"no live run answered within {timeout_s:g} s; the request was withdrawn",
        where=store.url,
        fix="a busy run answers with its next epoch: wait longer. If the job is not running, open a run: Run.open",
    )


def _remove(store: ObjectStore, request_id: str) -> None:
    for path in (names.request(request_id), names.answer(request_id)):
        store.delete(path)
