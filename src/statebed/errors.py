"""Every error that statebed raises on purpose.

The base class is `StatebedError`. Each error has a stable `code`, and says what is wrong, where, and what to do. If a
builtin exception fits (`ValueError`, `FileNotFoundError`, `PermissionError`), it is a second base class, so that
callers who do not know statebed catch what they expect.
"""

import linecache
import traceback
from pathlib import Path
from typing import ClassVar

FENCED_EXIT_CODE = 86
"""Exit code of a process whose run was fenced. A supervisor must not restart it."""


class StatebedError(Exception):
    """Base class of all errors, with the attributes `code`, `what`, `where` and `fix`, which its text contains.

    >>> try:
    ...     sb.tumbling("soon")
    ... except sb.StatebedError as error:
    ...     bool(error.what and error.fix)
    True
    """

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
_COMPILED = (".pxi", ".pyx")
"""Endings of files of compiled libraries, such as pyarrow, whose lines a user does not have."""
_MAX_FRAMES = 40
_MAX_LINE = 500
_MAX_CHARACTERS = 8_000
"""Maximum number of characters of a traceback sent between processes, and of an exception text inside another."""


class RemoteTraceback(Exception):  # noqa: N818 - it stands for another exception, as in multiprocessing
    """Traceback of an exception that was raised in another process; its text is the traceback.

    It is the `__cause__` of the error that was sent, so that Python prints it above that error. Frames are stored as
    they are and formatted when they are shown, because the source of notebook code exists only on the driver.
    """

    def __init__(self, frames: tuple[tuple[str, int, str, str], ...], before: str, ending: str) -> None:
        super().__init__(frames, before, ending)
        self.frames = frames
        """File, line number, function and source line of each frame."""
        self._before = before
        self._ending = ending

    @classmethod
    def of(cls, error: BaseException) -> "RemoteTraceback":
        """Return the traceback of an exception, without statebed's frames that led to the user's code."""
        if isinstance(error, RemoteTraceback):
            return error
        summary = traceback.TracebackException.from_exception(error, limit=-_MAX_FRAMES)
        users = _users_frames(summary.stack)
        frames = tuple(
            (frame.filename, frame.lineno or 0, frame.name, (frame.line or "")[:_MAX_LINE]) for frame in users
        )
        chained = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        before = "" if chained is None else "".join(traceback.format_exception(chained, limit=-_MAX_FRAMES))
        return cls(frames, before[-_MAX_CHARACTERS:], "".join(summary.format_exception_only())[:_MAX_CHARACTERS])

    def __str__(self) -> str:
        shown = [
            (file, number, name, line or linecache.getline(file, number).strip())
            for file, number, name, line in self.frames
        ]
        stack = traceback.StackSummary.from_list(shown).format()
        above = f"{self._before}\nWhile that was handled, or because of it:\n\n" if self._before else ""
        return f"\n{above}Traceback (most recent call last):\n{''.join(stack)}{self._ending.rstrip()}"


def _users_frames(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Return the frames from the first that is not statebed's; all frames if all are statebed's."""
    first = next((place for place, frame in enumerate(stack) if not frame.filename.startswith(_OWN_CODE)), 0)
    return stack[first:]


def error_text(error: BaseException) -> str:
    """Return the type and message of an exception on one line, at most a few thousand characters."""
    try:
        text = str(error)
    except Exception as failed:  # noqa: BLE001 - of any kind: the exception is a user's
        text = f"<str() raised {type(failed).__name__}>"
    cut = text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}... ({len(text):,} characters)"
    return f"{type(error).__name__}: {cut}" if cut else type(error).__name__


def raised_at(error: BaseException) -> str:
    """Return file, line and function that raised an exception, or the user's code that called it."""
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if not frame.filename.startswith(_OWN_CODE)] or list(frames)
    users = [frame for frame in foreign if not frame.filename.endswith(_COMPILED)] or foreign
    return f"{users[-1].filename}, line {users[-1].lineno}, in {users[-1].name}" if users else "unknown"


# ---- input ---------------------------------------------------------------------------------------------------


class InputError(StatebedError, ValueError):
    """An argument, an option or a graph is invalid. Detected before anything is written.

    >>> try:
    ...     sb.tumbling("0 minutes")
    ... except sb.InputError as error:
    ...     error.code
    'INPUT'
    """

    code = "INPUT"


class UnknownSettingError(InputError, LookupError):
    """A setting does not exist: in a keyword, Spark's configuration, the environment or statebed.toml."""

    code = "UNKNOWN_SETTING"


class InvalidNameError(InputError):
    """The name of a job, operator, table, sink or savepoint cannot be part of an object name."""

    code = "INVALID_NAME"


class UnknownSchemeError(InputError):
    """No store supports the scheme of the state URL."""

    code = "UNKNOWN_SCHEME"


class SecretInUrlError(InputError):
    """The state URL contains a user name, a password or a query. Secrets in URLs end up in logs."""

    code = "SECRET_IN_URL"


class UnsupportedTypeError(InputError, TypeError):
    """A key or value has a type that cannot be stored, or not the declared type."""

    code = "UNSUPPORTED_TYPE"


class UnknownTableError(InputError, LookupError):
    """The table is not registered, or is of another kind than requested."""

    code = "UNKNOWN_TABLE"


class StateNotFoundError(InputError, LookupError):
    """The epoch does not have the operator or table."""

    code = "STATE_NOT_FOUND"


class IncompatibleSchemaError(InputError):
    """The definition of a table does not fit its stored rows. Detected before anything is read."""

    code = "INCOMPATIBLE_SCHEMA"


class NotOwnerError(InputError, PermissionError):
    """A subtask tried to write a key that belongs to another subtask."""

    code = "NOT_OWNER"


# ---- storage -------------------------------------------------------------------------------------------------


class StorageError(StatebedError):
    """The store failed or did not behave as required."""

    code = "STORAGE"


class ObjectMissingError(StorageError, FileNotFoundError):
    """A requested object does not exist."""

    code = "OBJECT_MISSING"


class BucketMissingError(StorageError, FileNotFoundError):
    """The bucket or container does not exist. statebed never creates one."""

    code = "BUCKET_MISSING"


class StoreNotWritableError(StorageError, PermissionError):
    """The folder or bucket is not writable."""

    code = "STORE_NOT_WRITABLE"


class CredentialsError(StorageError, PermissionError):
    """The store refused the credentials, or there are none."""

    code = "CREDENTIALS"


class ClockSkewError(StorageError):
    """The store refuses requests because this machine's clock differs too much from its own."""

    code = "CLOCK_SKEW"


class StoreUnavailableError(StorageError):
    """The store kept failing until the deadline. The request itself is not known to be wrong."""

    code = "STORE_UNAVAILABLE"


class LostWriteError(StorageError):
    """The store acknowledged a write, but truncated, changed or lost its bytes. Nothing refers to them."""

    code = "LOST_WRITE"


class OutcomeUnknownError(StoreUnavailableError):
    """The response to a write was lost: the write may or may not have happened."""

    code = "OUTCOME_UNKNOWN"


class PutIfAbsentError(StorageError):
    """The store ignores the condition of a conditional put, so no commit on it is safe."""

    code = "PUT_IF_ABSENT"


class SpillError(StorageError, OSError):
    """State could not be spilled to local disk and is still in memory, or spilled state could not be read."""

    code = "SPILL"


# ---- format --------------------------------------------------------------------------------------------------


class FormatError(StatebedError):
    """Stored bytes do not conform to the format."""

    code = "FORMAT"


class CorruptObjectError(FormatError):
    """A stored object fails its checksum, has another size, or does not parse."""

    code = "CORRUPT_OBJECT"


class CorruptRecordError(CorruptObjectError):
    """A checkpoint record is truncated or damaged."""

    code = "CORRUPT_RECORD"


class MissingFileError(FormatError, FileNotFoundError):
    """A record or metadata object refers to a file that does not exist."""

    code = "MISSING_FILE"


class NewerFormatError(FormatError):
    """The state was written by a newer version of statebed."""

    code = "NEWER_FORMAT"


# ---- protocol ------------------------------------------------------------------------------------------------


class ProtocolError(StatebedError):
    """The state of the log does not allow the operation."""

    code = "PROTOCOL"


class FencedError(ProtocolError):
    """A newer run owns the job. This one must stop and must not be restarted.

    >>> issubclass(sb.FencedError, sb.StatebedError)
    True
    """

    code = "FENCED"
    exit_code = FENCED_EXIT_CODE


class StateGoneError(ProtocolError):
    """The records of a live run disappeared without a newer run: an unmounted volume, a deleted folder.

    The run stops without acknowledging anything more. It may be restarted once the state is back.
    """

    code = "STATE_GONE"


class OpenContentionError(ProtocolError):
    """A run could not open because the job's live run committed epochs faster than it could take over."""

    code = "OPEN_CONTENTION"


class JobNotFoundError(ProtocolError, LookupError):
    """The location has no record of this job."""

    code = "JOB_NOT_FOUND"


class EpochNotRetainedError(ProtocolError, LookupError):
    """The epoch does not exist or is no longer retained: below min_epoch, above the head, or not restorable."""

    code = "EPOCH_NOT_RETAINED"


class BrokenLogError(ProtocolError):
    """A number between min_epoch and the head has no record, because something other than statebed removed it."""

    code = "BROKEN_LOG"


class RollbackError(ProtocolError):
    """A fork would abandon epochs that sinks already have."""

    code = "ROLLBACK_PAST_PUBLISHED"


class SinkStartError(ProtocolError):
    """The start would lose epochs of a sink: they are missing from its target or undelivered, without permission."""

    code = "SINK_START"


class ReplayError(ProtocolError):
    """Spark's checkpoint and the state log disagree."""

    code = "REPLAY"


class SavepointError(ProtocolError):
    """The savepoint already exists, or does not exist."""

    code = "SAVEPOINT"


class CleanupError(ProtocolError):
    """Clean-up was requested beyond what a committed record allows, or cannot read an object that must be kept."""

    code = "CLEANUP"


class NothingIntactError(ProtocolError):
    """A repair found no intact epoch and no intact savepoint."""

    code = "NOTHING_INTACT"


class RequestTimeoutError(ProtocolError, TimeoutError):
    """The live run did not answer a request in time."""

    code = "REQUEST_TIMEOUT"


# ---- running -------------------------------------------------------------------------------------------------


class SumOverflowError(StatebedError, OverflowError):
    """A sum exceeds the range of its type. Sums never wrap."""

    code = "SUM_OVERFLOW"


class ResultTooLargeError(StatebedError, OverflowError):
    """A collected result has more than 2 GiB of text or 2**31 items, which a column cannot hold."""

    code = "RESULT_TOO_LARGE"


class ExpressionError(StatebedError, ArithmeticError):
    """An expression has no result for a row: a division by zero, an overflow, text that is not a number."""

    code = "EXPRESSION"


class AggregateError(StatebedError):
    """A user-defined aggregate failed, or returned other columns than it declares."""

    code = "AGGREGATE"


class ProcessError(StatebedError):
    """The user's code of a process failed. Its exception is the cause of this one."""

    code = "PROCESS"


class NondeterminismError(StatebedError):
    """Two attempts at the same subtask and epoch produced different bytes."""

    code = "NONDETERMINISM"


class SubtaskError(StatebedError):
    """A subtask did not report, reported twice, or reported something impossible."""

    code = "SUBTASK"


class EpochTimeoutError(StatebedError, TimeoutError):
    """An epoch took longer than `epoch_timeout` and was cancelled. Nothing of it is committed."""

    code = "EPOCH_TIMEOUT"


class MigrationError(StatebedError):
    """The code has no migration from the version of the stored state. Detected before anything is read."""

    code = "MIGRATION"


class CheckpointTimeoutError(StatebedError, TimeoutError):
    """Earlier checkpoints or compactions did not finish in time. The waiting operation was not performed."""

    code = "CHECKPOINT_TIMEOUT"


class CloseTimeoutError(StatebedError, TimeoutError):
    """Background work did not finish in time for a close. It keeps its memory and files until the next close."""

    code = "CLOSE_TIMEOUT"


class SpillTimeoutError(StatebedError, TimeoutError):
    """State was not spilled to local disk in time. The rows of the failed call were not stored."""

    code = "SPILL_TIMEOUT"


class SinkError(StatebedError):
    """A sink failed to accept an epoch. The epoch is committed, and published again when the job is restarted."""

    code = "SINK"
    is_of_target = False
    """Whether the target fails for any rows (disk full, table dropped), so that leaving some out would not help."""


class SinkUnavailableError(SinkError):
    """The database of a sink is unreachable or closed the connection, after several attempts."""

    code = "SINK_UNAVAILABLE"


class ExecutorError(StatebedError):
    """An executor cannot run subtasks of this job. Detected before a run is opened."""

    code = "EXECUTOR"


class SparkStoppedError(StatebedError):
    """Spark was stopped while a query was running on it."""

    code = "SPARK_STOPPED"


class UnboundedStateWarning(UserWarning):
    """An operator never forgets a key, so its state grows without limit.

    >>> import warnings
    >>> warnings.simplefilter("error", sb.UnboundedStateWarning)  # refuse state that grows for ever
    """


class MissingDependencyError(StatebedError, ImportError):
    """A package or program that this part of statebed needs is not installed."""

    code = "MISSING_DEPENDENCY"


class JavaMissingError(MissingDependencyError):
    """Spark needs Java 17 or newer, but none was found."""

    code = "JAVA_MISSING"


class ExportError(StatebedError, OSError):
    """Rows could not be written to the given file or folder."""

    code = "EXPORT"


class DemoError(StatebedError):
    """The demo did not produce the expected result."""

    code = "DEMO"
