"""Every error that statebed raises on purpose.

One root, `StatebedError`. Each error has a stable `code`, and says what happened, where, and what to do. Where a
builtin fits (`ValueError`, `FileNotFoundError`, `PermissionError`), it is a second base, so that callers who know
nothing of statebed still catch what they expect.
"""

import linecache
import traceback
from pathlib import Path
from typing import ClassVar

FENCED_EXIT_CODE = 86
"""Exit code of a process whose run was superseded: a supervisor must not restart it."""


class StatebedError(Exception):
    """The root: `code`, `what`, `where` and `fix` are attributes, and the text holds all of them."""

    code: ClassVar[str] = "STATEBED"
    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.what}"]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  what to do: {self.fix}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments and causes do not survive the default pickling of exceptions.
        cause = None if self.__cause__ is None else RemoteTraceback.of(self.__cause__)
        return (_rebuild, (type(self), self.what, self.where, self.fix, cause))


def _rebuild(
    kind: type[StatebedError], what: str, where: str, fix: str, cause: "RemoteTraceback | None" = None
) -> StatebedError:
    error = kind(what, where=where, fix=fix)
    error.__cause__ = cause
    return error


# ---- causes --------------------------------------------------------------------------------------------------

_OWN_CODE = str(Path(__file__).parent)
_MOST_FRAMES = 40
_MOST_LINE = 500
_MOST_CHARACTERS = 8_000
"""Limit, in characters, of a traceback that travels and of an exception text inside another."""


class RemoteTraceback(Exception):  # noqa: N818 - it stands for another exception, as in multiprocessing
    """The traceback of an exception that was raised in another process; its text is the traceback.

    It is the `__cause__` of the error that travelled, so that Python prints it above that error. Frames are kept as
    they are and written when they are shown: code of a notebook has its source on the driver alone.
    """

    def __init__(self, frames: tuple[tuple[str, int, str, str], ...], before: str, ending: str) -> None:
        super().__init__(frames, before, ending)
        self.frames = frames
        """File, line number, function and source line of each."""
        self._before = before
        self._ending = ending

    @classmethod
    def of(cls, error: BaseException) -> "RemoteTraceback":
        """The traceback of an exception, without our own frames that led to the user's code."""
        if isinstance(error, RemoteTraceback):
            return error
        found = traceback.TracebackException.from_exception(error, limit=-_MOST_FRAMES)
        users = _users_frames(found.stack)
        frames = tuple((one.filename, one.lineno or 0, one.name, (one.line or "")[:_MOST_LINE]) for one in users)
        chained = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        before = "" if chained is None else "".join(traceback.format_exception(chained, limit=-_MOST_FRAMES))
        return cls(frames, before[-_MOST_CHARACTERS:], "".join(found.format_exception_only())[:_MOST_CHARACTERS])

    def __str__(self) -> str:
        shown = [
            (file, number, name, line or linecache.getline(file, number).strip())
            for file, number, name, line in self.frames
        ]
        stack = traceback.StackSummary.from_list(shown).format()
        above = f"{self._before}\nWhile that was handled, or because of it:\n\n" if self._before else ""
        return f"\n{above}Traceback (most recent call last):\n{''.join(stack)}{self._ending.rstrip()}"


def _users_frames(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """The frames from the first that is not ours on; all of them if all are ours."""
    first = next((place for place, one in enumerate(stack) if not one.filename.startswith(_OWN_CODE)), 0)
    return stack[first:]


def error_text(error: BaseException) -> str:
    """Type and message of any exception on one line, at most a few thousand characters."""
    try:
        text = str(error)
    except Exception as failed:  # noqa: BLE001 - of any kind: the exception is a user's
        text = f"<str() raised {type(failed).__name__}>"
    cut = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}... ({len(text):,} characters)"
    return f"{type(error).__name__}: {cut}" if cut else type(error).__name__


def raised_at(error: BaseException) -> str:
    """File, line and function where an exception was raised, or where the user's code called what raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [one for one in frames if not one.filename.startswith(_OWN_CODE)] or list(frames)
    return f"{users[-1].filename}, line {users[-1].lineno}, in {users[-1].name}" if users else "unknown"


# ---- input ---------------------------------------------------------------------------------------------------


class InputError(StatebedError, ValueError):
    """An argument, an option or a graph that cannot work; found before anything is written."""

    code = "INPUT"


class UnknownSettingError(InputError, LookupError):
    """A setting that does not exist, in a keyword, Spark's configuration, the environment or statebed.toml."""

    code = "UNKNOWN_SETTING"


class InvalidNameError(InputError):
    """A job, operator, table, sink or savepoint name that cannot be part of an object name."""

    code = "INVALID_NAME"


class UnknownSchemeError(InputError):
    """A state URL whose scheme no store serves."""

    code = "UNKNOWN_SCHEME"


class SecretInUrlError(InputError):
    """A state URL that carries a user name, a password or a query: secrets in URLs end up in logs."""

    code = "SECRET_IN_URL"


class UnsupportedTypeError(InputError, TypeError):
    """A key or value of a type that cannot be stored, or that is not the declared one."""

    code = "UNSUPPORTED_TYPE"


class UnknownTableError(InputError, LookupError):
    """A table that is not registered, or is of another kind than the one asked for."""

    code = "UNKNOWN_TABLE"


class StateNotFoundError(InputError, LookupError):
    """An operator or a table that the epoch which is read does not have."""

    code = "STATE_NOT_FOUND"


class IncompatibleSchemaError(InputError):
    """A table is defined in a way in which its stored rows could not be read right; found before anything is read."""

    code = "INCOMPATIBLE_SCHEMA"


class NotOwnerError(InputError, PermissionError):
    """A subtask tried to write a key that belongs to another subtask."""

    code = "NOT_OWNER"


# ---- storage -------------------------------------------------------------------------------------------------


class StorageError(StatebedError):
    """The store did not do what was asked."""

    code = "STORAGE"


class ObjectMissingError(StorageError, FileNotFoundError):
    """An object that was asked for is not there."""

    code = "OBJECT_MISSING"


class BucketMissingError(StorageError, FileNotFoundError):
    """The bucket or container itself is not there; statebed never makes one."""

    code = "BUCKET_MISSING"


class StoreNotWritableError(StorageError, PermissionError):
    """The folder or bucket cannot be written."""

    code = "STORE_NOT_WRITABLE"


class CredentialsError(StorageError, PermissionError):
    """The store refused who we are, or nobody said who we are."""

    code = "CREDENTIALS"


class ClockSkewError(StorageError):
    """The store refuses requests because this machine's clock differs too much from its own."""

    code = "CLOCK_SKEW"


class StoreUnavailableError(StorageError):
    """The store kept failing until the deadline; nothing is known to be wrong with the request itself."""

    code = "STORE_UNAVAILABLE"


class LostWriteError(StorageError):
    """The store acknowledged a write but does not have its bytes: cut short, changed or lost. Nothing names them."""

    code = "LOST_WRITE"


class OutcomeUnknownError(StoreUnavailableError):
    """A write was sent and its answer lost: it may or may not have happened."""

    code = "OUTCOME_UNKNOWN"


class PutIfAbsentError(StorageError):
    """The store ignores the condition of a conditional put, so no commit on it can be trusted."""

    code = "PUT_IF_ABSENT"


class SpillError(StorageError, OSError):
    """State could not be moved to local disk, and is in memory as before the call; or it could not be read there."""

    code = "SPILL"


# ---- format --------------------------------------------------------------------------------------------------


class FormatError(StatebedError):
    """Stored bytes are not what the format says."""

    code = "FORMAT"


class CorruptObjectError(FormatError):
    """A stored object fails its checksum, has another size, or does not parse."""

    code = "CORRUPT_OBJECT"


class CorruptRecordError(CorruptObjectError):
    """A checkpoint record is cut short or damaged."""

    code = "CORRUPT_RECORD"


class MissingFileError(FormatError, FileNotFoundError):
    """A record or a metadata object names a file that is not there."""

    code = "MISSING_FILE"


class NewerFormatError(FormatError):
    """Written by a newer statebed than this one."""

    code = "NEWER_FORMAT"


# ---- protocol ------------------------------------------------------------------------------------------------


class ProtocolError(StatebedError):
    """The log does not allow what was asked."""

    code = "PROTOCOL"


class FencedError(ProtocolError):
    """A newer run owns the job: this one must stop and must not be restarted."""

    code = "FENCED"
    exit_code = FENCED_EXIT_CODE


class StateGoneError(ProtocolError):
    """Records of a live run disappeared and no newer run explains it: an unmounted volume, a deleted folder.

    The run stops without acknowledging anything more. It may be restarted once the state is back.
    """

    code = "STATE_GONE"


class OpenContentionError(ProtocolError):
    """A run could not open because the job's live run committed epochs faster than it could take over."""

    code = "OPEN_CONTENTION"


class JobNotFoundError(ProtocolError, LookupError):
    """No record of this job at this location."""

    code = "JOB_NOT_FOUND"


class EpochNotRetainedError(ProtocolError, LookupError):
    """An epoch that does not exist (any more): below min_epoch, above the head, or not a restorable one."""

    code = "EPOCH_NOT_RETAINED"


class BrokenLogError(ProtocolError):
    """A number between min_epoch and the head has no record: something outside statebed removed it."""

    code = "BROKEN_LOG"


class RollbackError(ProtocolError):
    """A fork would abandon epochs that sinks already have."""

    code = "ROLLBACK_PAST_PUBLISHED"


class SinkStartError(ProtocolError):
    """A start would lose epochs of a sink: they are gone from its target or undelivered, and nobody gave them up."""

    code = "SINK_START"


class ReplayError(ProtocolError):
    """Spark's checkpoint and the state log disagree."""

    code = "REPLAY"


class SavepointError(ProtocolError):
    """A savepoint that exists already, or does not exist."""

    code = "SAVEPOINT"


class CollectionError(ProtocolError):
    """Clean-up was asked for more than a committed record allows, or could not read what it must keep."""

    code = "COLLECTION"


class NothingIntactError(ProtocolError):
    """A repair found no epoch and no savepoint that is whole."""

    code = "NOTHING_INTACT"


class RequestTimeoutError(ProtocolError, TimeoutError):
    """The live run did not answer a request in time."""

    code = "REQUEST_TIMEOUT"


# ---- running -------------------------------------------------------------------------------------------------


class SumOverflowError(StatebedError, OverflowError):
    """A sum that its type cannot hold; sums never wrap."""

    code = "SUM_OVERFLOW"


class ExpressionError(StatebedError, ArithmeticError):
    """A row for which an expression has no answer: a division by zero, an overflow, a text that is no number."""

    code = "EXPRESSION"


class AggregateError(StatebedError):
    """A user-defined aggregate that failed, or that gave other columns than it declares."""

    code = "AGGREGATE"


class ProcessError(StatebedError):
    """The user's own code of a process failed; the error that it raised is the cause of this one."""

    code = "PROCESS"


class NondeterminismError(StatebedError):
    """Two attempts at the same subtask and epoch gave different bytes."""

    code = "NONDETERMINISM"


class SubtaskError(StatebedError):
    """A subtask did not report, or reported twice, or what it reported cannot be."""

    code = "SUBTASK"


class EpochTimeoutError(StatebedError, TimeoutError):
    """An epoch took longer than `epoch_timeout` and was cancelled; nothing of it is committed."""

    code = "EPOCH_TIMEOUT"


class MigrationError(StatebedError):
    """Stored state has a version that no step of this code leads from; found before anything is read."""

    code = "MIGRATION"


class CheckpointTimeoutError(StatebedError, TimeoutError):
    """Earlier checkpoints or merges did not end in time; what waits for them was not done."""

    code = "CHECKPOINT_TIMEOUT"


class CloseTimeoutError(StatebedError, TimeoutError):
    """What runs beside was not done in time to be closed; it keeps its memory and files until it is closed again."""

    code = "CLOSE_TIMEOUT"


class SpillTimeoutError(StatebedError, TimeoutError):
    """State that is on its way to local disk did not get there in time; the rows of the failed call were not taken."""

    code = "SPILL_TIMEOUT"


class SinkError(StatebedError):
    """A sink did not take an epoch; the epoch is committed, and is offered again when the job is started again."""

    code = "SINK"


class SinkUnavailableError(SinkError):
    """The database of a sink cannot be reached, or broke the connection off; it was tried several times."""

    code = "SINK_UNAVAILABLE"


class ExecutorError(StatebedError):
    """An executor cannot run subtasks of this job; found before a run is opened."""

    code = "EXECUTOR"


class SparkStoppedError(StatebedError):
    """Somebody stopped Spark while a query ran on it."""

    code = "SPARK_STOPPED"


class UnboundedStateWarning(UserWarning):
    """An operator remembers every key for ever."""


class MissingDependencyError(StatebedError, ImportError):
    """A package or program that this part of statebed needs is not installed."""

    code = "MISSING_DEPENDENCY"


class JavaMissingError(MissingDependencyError):
    """Spark needs Java 17 or newer, and none was found."""

    code = "JAVA_MISSING"


class ExportError(StatebedError, OSError):
    """Rows could not be written to the file or folder that was named."""

    code = "EXPORT"


class DemoError(StatebedError):
    """The demo could not show what it set out to show."""

    code = "DEMO"
