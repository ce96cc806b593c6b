"""The live run's side of requests: read them, hold what they change until the next record, answer after it.

The client's side is `ask_live_run`. Objects: `requests/{id}` and, put once by the live run, `requests/{id}.answer`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from statebed.checkpoint.environment import Environment
from statebed.checkpoint.log import CheckpointLog
from statebed.errors import ObjectMissingError, ProtocolError, RequestTimeoutError, StatebedError, StorageError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.format.sealed import open_sealed, seal
from statebed.logs import id_logger
from statebed.protocol.requests import AddSavepoint, Effect, decide_request, next_pins
from statebed.storage import ObjectStore, put_verified

POLL_SECONDS = 0.2
ANSWERS_KEPT_US = 24 * 3600 * 1_000_000
"""An answer that nobody fetched is removed after this time."""

_logger = id_logger(__name__)


@dataclass(frozen=True)
class _PendingRequest:
    request_id: str
    """Empty for requests that the run asked itself."""
    effect: Effect | None
    refusal: StatebedError | None = None
    epoch: int = 0
    """The record that granted or refused it already, if one did."""
    copied: bytes = b""
    """The record that a savepoint is to copy: read when it is granted, so that no commit fails for its sake."""


class PendingRequests:
    """Requests read and not yet answered."""

    def __init__(self, log: CheckpointLog) -> None:
        self._log = log
        self._open: dict[str, _PendingRequest] = {}
        self._own: list[_PendingRequest] = []

    def read(self, head: pb.CheckpointMetadata, records: Iterable[pb.CheckpointMetadata]) -> None:
        """Decide every request that is new."""
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
        """A request of the run's own; a refusal is raised at once."""
        self._own.append(self._grant("", request, head))

    def granted(self) -> list[tuple[str, Effect]]:
        """Request ids and effects that wait for the next record."""
        return [(p.request_id, p.effect) for p in self._waiting() if p.effect is not None]

    def pins(self, head: pb.CheckpointMetadata, number: int) -> list[pb.Pin]:
        """The pins of record `number`; the copies that new ones point to are written first."""
        added = [
            self._copy_record(number, petition.effect, petition.copied)
            for petition in self._waiting()
            if isinstance(petition.effect, AddSavepoint)
        ]
        return next_pins(head.pins, added=added, effects=self._effects())

    def settle(self, record: pb.CheckpointMetadata) -> None:
        """Everything that was decided before `record` was committed took effect with it, and must not again."""
        self._own.clear()
        for petition in self._open.values():
            settled = replace(petition, effect=None, epoch=petition.epoch or record.epoch, copied=b"")
            self._open[petition.request_id] = settled

    def answer(self, record: pb.CheckpointMetadata) -> None:
        """Answer what is settled; what the store does not take now is answered after a later record."""
        for petition in list(self._open.values()):
            refusal = petition.refusal
            answer = pb.Answer(
                request_id=petition.request_id,
                run=record.run,
                epoch=petition.epoch,
                granted=refusal is None,
                code=refusal.code if refusal else "",
                what=refusal.what if refusal else "",
                fix=refusal.fix if refusal else "",
                time_us=self._log.environment.now_us(),
            )
            try:
                self._log.store.put_if_absent(names.answer(petition.request_id), seal(answer))
            except StorageError as error:
                told = _logger.about(job=self._log.job_id, epoch=petition.epoch)
                told.warning("request %s is answered later: %s", petition.request_id, error.what)
                continue
            del self._open[petition.request_id]

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
            data = self._log.store.get(path)
            request = open_sealed(pb.Request, data, where=f"{self._log.store.url}/{path}")
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


def ask_live_run(
    store: ObjectStore, request: pb.Request, *, timeout_s: float, environment: Environment | None = None
) -> pb.Answer:
    """Put a request before the live run and wait for its answer; a refusal is raised."""
    environment = environment or Environment()
    asked = pb.Request()
    asked.CopyFrom(request)  # the caller's stays as it is: asked again, it is another request
    asked.request_id = asked.request_id or environment.fresh_id()
    asked.created_time_us = environment.now_us()
    store.put_if_absent(names.request(asked.request_id), seal(asked))
    answer = _wait(store, asked.request_id, timeout_s, environment)
    _remove(store, asked.request_id)
    if not answer.granted:
        raise ProtocolError(f"the live run refused ({answer.code}): {answer.what}", where=store.url, fix=answer.fix)
    return answer


def _wait(store: ObjectStore, request_id: str, timeout_s: float, environment: Environment) -> pb.Answer:
    deadline = environment.steady_seconds() + timeout_s
    path = names.answer(request_id)
    while True:
        try:
            return open_sealed(pb.Answer, store.get(path), where=f"{store.url}/{path}")
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
