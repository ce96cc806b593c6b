"""The log of records: reads and appends. Decisions come from `statebed.protocol`; this module performs their I/O."""

from collections.abc import Iterator

from statebed.checkpoint.environment import Environment
from statebed.checkpoint.objects import fetch
from statebed.errors import (
    CorruptObjectError,
    CorruptRecordError,
    EpochNotRetainedError,
    NewerFormatError,
    ObjectMissingError,
    OutcomeUnknownError,
    ProtocolError,
    StatebedError,
    StoreUnavailableError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.repeated_reads import read_checked
from statebed.format.sealed import open_sealed, seal
from statebed.protocol.base_choice import DamagePolicy, LogSlot, Observation, Recovery, check_unbroken, recover
from statebed.protocol.commit import Claim, check_nonce, claim_of, explain_loss, is_in_log
from statebed.storage import ObjectStore, PutOutcome

APPEND_ATTEMPTS = 10
"""Number of attempts to put a record whose response was lost, before the outcome is reported as unknown."""
RECOVERY_ATTEMPTS = 5
"""Number of attempts to read the end of the log, in case it changes while it is read."""


class CheckpointLog:
    """Records of one job; `store` is scoped to the job's folder."""

    def __init__(self, store: ObjectStore, job_id: str, environment: Environment | None = None) -> None:
        self.store = store
        self.job_id = names.check_name("job", job_id)
        self.environment = environment or Environment()

    # ---- reading ---------------------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Return the numbers that have a folder, ascending; a folder may lack its record."""
        folders = self.store.list_level(names.CHECKPOINTS).folders
        return sorted(number for folder in folders if (number := names.epoch_of(folder)) is not None)

    def read(self, epoch: int) -> pb.CheckpointMetadata:
        """Return a record and verify it. If verification fails, the read is repeated once."""
        return read_checked(lambda: self.parse(self.read_bytes(epoch), epoch))

    def read_bytes(self, epoch: int) -> bytes:
        try:
            return self.store.get(names.record(epoch))
        except ObjectMissingError as error:
            raise EpochNotRetainedError(
                f"there is no record of epoch {epoch}",
                where=f"{self.store.url}/{names.record(epoch)}",
                fix="`statebed ls` lists the existing epochs",
            ) from error

    def parse(self, data: bytes, epoch: int) -> pb.CheckpointMetadata:
        """Parse and verify the bytes of the record at `epoch`."""
        where = f"{self.store.url}/{names.record(epoch)}"
        record = open_sealed(pb.CheckpointMetadata, data, where=where, damaged=CorruptRecordError)
        if record.epoch != epoch or record.job_id != self.job_id:
            raise CorruptRecordError(
                f"the object of epoch {epoch} holds a record of job {record.job_id!r}, epoch {record.epoch}",
                where=where,
                fix="objects were copied by hand: restore the job's folder to its previous state",
            )
        return record

    def exists(self, epoch: int) -> bool:
        return self.store.head(names.record(epoch)) is not None

    def is_current(self, record: pb.CheckpointMetadata) -> bool:
        """Return whether this very record exists; a superseded run may have replaced it after it was cleaned up."""
        try:
            existing = self.record_at_number(record.epoch)
        except CorruptRecordError:
            return True  # damaged since, but no one can have replaced it
        return existing is not None and existing.nonce == record.nonce

    def record_at_number(self, epoch: int) -> pb.CheckpointMetadata | None:
        """Return the record at a taken number, or None if it was cleaned up since or has a newer format."""
        try:
            return self.read(epoch)
        except (EpochNotRetainedError, NewerFormatError):
            return None

    def recover(self, damage: DamagePolicy = DamagePolicy.REFUSE, *, proofs: bool = False) -> Recovery:
        """Find the end of the log, and list the numbers skipped to find it.

        A number without a record is lost, not free, if its folder has a published marker. With `proofs`, answered
        requests and compacted files also count as evidence (two more listings). With `DamagePolicy.FALL_BACK`, the
        record before the head may be missing.
        """
        for attempt in range(RECOVERY_ATTEMPTS):
            recovery = recover(list(self._observe_down(proofs=proofs)))
            head = recovery.head
            if recovery.lost and attempt == 0:
                continue  # a record that seems lost may have been cleaned up or committed during the read
            if recovery.damaged or head is None:
                break
            # The log may have advanced during the read; a record that is really missing stays missing.
            if check_unbroken(
                head,
                previous_exists=head.epoch == 1 or self.exists(head.epoch - 1),
                last_look=damage is DamagePolicy.REFUSE and attempt == RECOVERY_ATTEMPTS - 1,
            ):
                break
        return recovery

    def head(self) -> pb.CheckpointMetadata | None:
        """Return the newest readable record, or None for a job that never ran."""
        return self.recover().head

    def records(self) -> Iterator[pb.CheckpointMetadata]:
        """Yield every readable record, ascending. For tools: reads the whole log."""
        for number in self.numbers():
            observation = self.observe(number)
            if observation.record is not None:
                yield observation.record

    def observe(self, epoch: int) -> Observation:
        """Return the state of one number: a record, nothing, or damage."""
        try:
            return Observation(epoch, LogSlot.RECORD, self.read(epoch))
        except EpochNotRetainedError:
            return Observation(epoch, LogSlot.NOTHING)
        except CorruptObjectError as error:
            return Observation(epoch, LogSlot.DAMAGE, problem=error.what)

    def savepoint(self, pin: pb.Pin) -> pb.CheckpointMetadata:
        """Return the record that a savepoint pins."""
        where = f"{self.store.url}/{pin.path}"
        data = fetch(self.store, pin.path, size=pin.size, crc=pin.crc32c)
        return open_sealed(pb.CheckpointMetadata, data, where=where, damaged=CorruptRecordError)

    def _observe_down(self, *, proofs: bool) -> Iterator[Observation]:
        proven = self._proven() if proofs else {}
        for number in sorted({*self.numbers(), *proven}, reverse=True):
            observation = self.observe(number)
            if observation.slot is LogSlot.NOTHING:
                observation = self._lost(number, proven.get(number, "")) or observation
            yield observation
            if observation.slot is LogSlot.RECORD:
                return

    def _lost(self, number: int, proof: str) -> Observation | None:
        """Observe a number without a record as lost if `proof` or a published marker shows that it was committed."""
        listed = () if proof else self.store.list_level(names.epoch_folder(number)).objects
        evidence = proof or next((info.path for info in listed if names.sink_of_marker(info.path) is not None), "")
        # The record may have been committed between the two requests.
        if not evidence or self.exists(number):
            return self.observe(number) if evidence else None
        return Observation(
            number, LogSlot.LOST, problem=f"the record is missing, although {evidence} was written after it"
        )

    def _proven(self) -> dict[int, str]:
        """Return numbers proven to be committed by objects outside `checkpoints/`, each with the path of its proof."""
        paths = [info.path for info in self.store.list_level(names.REQUESTS).objects]
        paths += self.store.list_level(names.COMPACTIONS).folders
        return {number: path for path in paths if (number := self.committed_by(path))}

    def committed_by(self, path: str) -> int:
        """Return the number of the record that was committed before the object at `path`, or 0 if unknown."""
        epoch, writer = names.epoch_of(path), names.run_of_compaction(path)
        if epoch is not None:
            return epoch if names.sink_of_marker(path) is not None else 0
        if writer is not None:
            return writer
        return self._answered_by(path) if names.request_of_answer(path) is not None else 0

    def _answered_by(self, path: str) -> int:
        try:
            return int(open_sealed(pb.Answer, self.store.get(path), where=path).epoch)
        except StatebedError:
            return 0  # damaged, or already fetched by the client

    # ---- appending -------------------------------------------------------------------------------------------

    def append(
        self, record: pb.CheckpointMetadata, *, follows: pb.CheckpointMetadata | None = None
    ) -> pb.CheckpointMetadata | None:
        """Put the record at its number. Return None on success, else the record of the other run that took the number.

        `follows` is the preceding record as the run knows it; without it, any preceding record is accepted.
        """
        check_nonce(record)
        data = seal(record)
        path = names.record(record.epoch)
        for attempt in range(APPEND_ATTEMPTS):
            try:
                outcome = self.store.put_if_absent(path, data)
            except StoreUnavailableError as error:
                if attempt == 0 and not isinstance(error, OutcomeUnknownError):
                    raise  # nothing was written: the run may try again with a new nonce
                self._wait(attempt)
                continue
            try:
                return self._judge(record, outcome, follows)
            except StoreUnavailableError:
                self._wait(attempt)  # the record may exist, so this is no longer a plain failure
        raise OutcomeUnknownError(
            f"it is unknown whether record {record.epoch} was committed: {APPEND_ATTEMPTS} responses were lost",
            where=f"{self.store.url}/{path}",
            fix="start the job again: opening a run finds out, and continues from what exists",
        )

    def _judge(
        self, record: pb.CheckpointMetadata, outcome: PutOutcome, follows: pb.CheckpointMetadata | None
    ) -> pb.CheckpointMetadata | None:
        # Read back even a record that was just created: a store may acknowledge a write that it truncated or lost.
        existing = self.record_at_number(record.epoch)
        if existing is None and not self.exists(record.epoch):
            if outcome is PutOutcome.EXISTS:
                raise self.explain_loss(record.epoch, known=follows, written=record)
            raise StoreUnavailableError("the store acknowledged a record but does not have it")
        if existing is None or claim_of(existing, nonce=record.nonce) is Claim.OTHERS:
            return existing or pb.CheckpointMetadata(job_id=self.job_id, epoch=record.epoch)
        self._check_in_log(record, follows)
        return None

    def _check_in_log(self, record: pb.CheckpointMetadata, follows: pb.CheckpointMetadata | None) -> None:
        previous = record.epoch - 1
        if previous == 0:
            previous_is_current = True
        elif follows is not None and follows.epoch == previous:
            previous_is_current = self.is_current(follows)
        else:
            previous_is_current = self.exists(previous)
        # A live run wrote the preceding record itself; a run that opens has only read it, perhaps long ago.
        later_exists = record.kind == pb.RUN_START and any(n > record.epoch for n in self._record_numbers())
        if not is_in_log(previous_is_current=previous_is_current, later_exists=later_exists):
            lost = record.epoch if previous_is_current else previous
            raise self.explain_loss(lost, known=follows, written=record)

    def explain_loss(
        self, lost: int, *, known: pb.CheckpointMetadata | None, written: pb.CheckpointMetadata
    ) -> ProtocolError:
        """Return the error of a run that misses record `lost`: it is superseded, or its state is gone.

        `known` is the newest record that the run found or committed, `written` the last one that it put.
        """
        numbers = self._record_numbers()
        later = [number for number in numbers if number > written.epoch]
        newest = None
        if not later:
            observed = (self.observe(number).record for number in reversed(numbers))
            newest = next((record for record in observed if record and record.nonce != written.nonce), None)
        return explain_loss(lost, job_id=self.job_id, known=known, later=max(later, default=None), newest=newest)

    def _record_numbers(self) -> list[int]:
        """Return the numbers that have a record, ascending."""
        # A single listing: with one lookup per number, records could be cleaned up in between.
        listed = (info.path for info in self.store.list(names.CHECKPOINTS))
        return [epoch for path in listed if (epoch := names.epoch_of(path)) and path == names.record(epoch)]

    def _wait(self, attempt: int) -> None:
        self.environment.sleep(min(0.05 * 2**attempt, 2.0))
