"""What an object store's failure means, read from obstore's exception.

obstore gives most failures one type and puts the rest into a text: the status, the store's error code, the
kind of transport error. This module alone reads that text. What it hands on is free of the text itself, which
may hold a signed URL and so a secret.
"""

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass

from obstore.exceptions import (
    AlreadyExistsError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_TRANSPORT = re.compile(r"HttpError \{\s*kind: (\w+)")
_WHO_AM_I = re.compile(r"https?://(169\.254\.|metadata\.google\.internal|\[fd00:ec2)")
"""Hosts that tell a machine in a cloud its credentials: asked when nobody else gave any."""

_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_NOT_ALLOWED = {"AccessDenied", "AuthorizationPermissionMismatch"}
_SKEWED = {"RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture"}
_SKEW_TEXT = re.compile(r"[Rr]equest date header too old|Token must be a short-lived token|Signature not yet current")
"""How Azure, Google and S3 say it where they have no code of its own for it."""
_REQUEST_TIME = re.compile(r"<RequestTime>([0-9A-Za-z:.+-]{1,40})</RequestTime>")
_SERVER_TIME = re.compile(r"<ServerTime>([0-9A-Za-z:.+-]{1,40})</ServerTime>")
_TRANSIENT_CODES = {"RequestTimeout", "SlowDown", "InternalError", "ServerBusy", "OperationAborted"}
_TRANSIENT_STATUS = {408, 409, 425, 429}
_UNAUTHORISED = {401, 403}
_SERVER_ERROR = 500
_RANGE_NOT_SATISFIABLE = 416


_PLAIN_HTTP = "BadScheme"
_START_TOO_LARGE = "StartTooLarge"
_INCOMPLETE = re.compile(r"(\w+(?: \w+)? must be specified)")


class FailureKind(enum.Enum):
    """What went wrong, in the words of our errors."""

    MISSING = "there is no such object"
    EXISTS = "the object exists"
    BUCKET_MISSING = "there is no such bucket"
    BAD_CREDENTIALS = "the store refused the credentials"
    NO_CREDENTIALS = "no credentials were found"
    CLOCK_SKEW = "the store refused the request because the clock of this machine is wrong"
    DENIED = "the store knows us but does not allow this"
    PAST_THE_END = "the range begins at or after the end of the object"
    UNREACHABLE = "no connection to the store, so nothing was sent"
    TRANSIENT = "the store failed, or its answer was lost"
    SETTINGS = "a setting of the store cannot be"
    OTHER = "the store refused"


@dataclass(frozen=True)
class Failure:
    """One failure: its kind, and a short text that holds no secret."""

    kind: FailureKind
    reason: str
    retryable: bool = False


@dataclass(frozen=True)
class _Seen:
    """What the exception and its text say."""

    error: Exception
    text: str
    status: int
    """0 where the store gave no answer."""

    code: str
    transport: str

    @property
    def is_transient(self) -> bool:
        if not self.status:
            return self.transport != ""
        return self.status >= _SERVER_ERROR or self.status in _TRANSIENT_STATUS or self.code in _TRANSIENT_CODES

    @property
    def is_refusal(self) -> bool:
        return isinstance(self.error, PermissionDeniedError | UnauthenticatedError) or self.status in _UNAUTHORISED

    @property
    def is_skewed(self) -> bool:
        """Whether the store compared the time of the request with its own, and refused it."""
        return self.code in _SKEWED or _SKEW_TEXT.search(self.text) is not None

    @property
    def skew(self) -> str:
        """Both times, where the store names them: plain timestamps, no secret."""
        ours, theirs = _first(_REQUEST_TIME, self.text), _first(_SERVER_TIME, self.text)
        return f"here it is {ours}, at the store {theirs}" if ours and theirs else ""

    @property
    def reason(self) -> str:
        """A short text without a secret: of the settings only a wrong one's name is quoted."""
        if isinstance(self.error, UnknownConfigurationKeyError):
            return self.text.splitlines()[0]
        if _INCOMPLETE.search(self.text):
            return _first(_INCOMPLETE, self.text)
        if _PLAIN_HTTP in self.text:
            return "the endpoint is http://, which has to be allowed on purpose"
        parts = (
            f"status {self.status}" if self.status else "",
            self.code,
            f"transport: {self.transport}" if self.transport else "",
            self.skew,
        )
        return ", ".join(part for part in parts if part) or "no details"


_RULES: tuple[tuple[Callable[[_Seen], bool], FailureKind], ...] = (
    (lambda seen: isinstance(seen.error, UnknownConfigurationKeyError), FailureKind.SETTINGS),
    (lambda seen: _PLAIN_HTTP in seen.text, FailureKind.SETTINGS),
    (lambda seen: _WHO_AM_I.search(seen.text) is not None, FailureKind.NO_CREDENTIALS),
    (lambda seen: isinstance(seen.error, AlreadyExistsError), FailureKind.EXISTS),
    (lambda seen: seen.code in _NO_BUCKET, FailureKind.BUCKET_MISSING),
    (lambda seen: isinstance(seen.error, NotFoundError | FileNotFoundError), FailureKind.MISSING),
    (lambda seen: seen.is_skewed, FailureKind.CLOCK_SKEW),
    (lambda seen: seen.is_refusal and seen.code in _NOT_ALLOWED, FailureKind.DENIED),
    (lambda seen: seen.is_refusal, FailureKind.BAD_CREDENTIALS),
    (
        lambda seen: seen.status == _RANGE_NOT_SATISFIABLE or _START_TOO_LARGE in seen.text,
        FailureKind.PAST_THE_END,
    ),
    (lambda seen: seen.transport == "Connect", FailureKind.UNREACHABLE),
    (lambda seen: seen.is_transient, FailureKind.TRANSIENT),
    (lambda _: True, FailureKind.OTHER),
)
"""The first rule that holds says what it is."""


def classify(error: Exception) -> Failure:
    """Say what the failure means."""
    text = str(error)
    seen = _Seen(
        error=error,
        text=text,
        status=int(_first(_STATUS, text) or 0),
        code=_first(_CODE, text),
        transport=_first(_TRANSPORT, text),
    )
    kind = next(kind for holds, kind in _RULES if holds(seen))
    retryable = kind in {FailureKind.UNREACHABLE, FailureKind.TRANSIENT} or (
        # A machine outside a cloud has nobody to ask: no answer at all is an answer.
        kind is FailureKind.NO_CREDENTIALS and seen.status > 0 and seen.is_transient
    )
    return Failure(kind, seen.reason, retryable=retryable)


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""
