"""Classification of object store failures, from obstore's exceptions.

obstore uses one type for most failures and puts the rest into a text: the status, the store's error code, the kind of
transport error. Only this module reads that text. It does not pass the text on, because it may contain a signed URL,
which is a secret.
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
"""Hosts of cloud metadata services, which provide credentials if none are configured."""

_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_NOT_ALLOWED = {"AccessDenied", "AuthorizationPermissionMismatch"}
_SKEWED = {"RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture"}
_SKEW_TEXT = re.compile(r"[Rr]equest date header too old|Token must be a short-lived token|Signature not yet current")
"""Texts of Azure, Google and S3 for clock skew, where they have no code for it."""
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
    """Kind of failure; the value is its text in errors."""

    MISSING = "there is no such object"
    EXISTS = "the object exists"
    BUCKET_MISSING = "there is no such bucket"
    BAD_CREDENTIALS = "the store refused the credentials"
    NO_CREDENTIALS = "no credentials were found"
    CLOCK_SKEW = "the store refused the request because the clock of this machine is wrong"
    DENIED = "the store accepted the credentials but does not allow this"
    PAST_THE_END = "the range starts at or after the end of the object"
    UNREACHABLE = "no connection to the store, so nothing was sent"
    TRANSIENT = "the store failed, or its response was lost"
    SETTINGS = "a setting of the store is invalid"
    OTHER = "the store refused"


@dataclass(frozen=True)
class Failure:
    """A failure: its kind, and a short text without secrets."""

    kind: FailureKind
    reason: str
    retryable: bool = False


@dataclass(frozen=True)
class _ErrorFacts:
    """Facts from the exception and its text."""

    error: Exception
    text: str
    status: int
    """HTTP status, or 0 if the store did not respond."""

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
        """Whether the store refused the request because of its time."""
        return self.code in _SKEWED or _SKEW_TEXT.search(self.text) is not None

    @property
    def skew(self) -> str:
        """Both times if the store reports them: plain timestamps without secrets."""
        ours, theirs = _first(_REQUEST_TIME, self.text), _first(_SERVER_TIME, self.text)
        return f"here it is {ours}, at the store {theirs}" if ours and theirs else ""

    @property
    def reason(self) -> str:
        """Short text without secrets; of the settings, only the name of an invalid one is quoted."""
        if isinstance(self.error, UnknownConfigurationKeyError):
            return self.text.splitlines()[0]
        if _INCOMPLETE.search(self.text):
            return _first(_INCOMPLETE, self.text)
        if _PLAIN_HTTP in self.text:
            return "the endpoint is http://, which must be allowed explicitly"
        parts = (
            f"status {self.status}" if self.status else "",
            self.code,
            f"transport: {self.transport}" if self.transport else "",
            self.skew,
        )
        return ", ".join(part for part in parts if part) or "no details"


_RULES: tuple[tuple[Callable[[_ErrorFacts], bool], FailureKind], ...] = (
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
"""Rules in order of precedence; the first that holds decides."""


def classify(error: Exception) -> Failure:
    """Return the kind of a failure, and whether it is worth a retry."""
    text = str(error)
    seen = _ErrorFacts(
        error=error,
        text=text,
        status=int(_first(_STATUS, text) or 0),
        code=_first(_CODE, text),
        transport=_first(_TRANSPORT, text),
    )
    kind = next(kind for holds, kind in _RULES if holds(seen))
    retryable = kind in {FailureKind.UNREACHABLE, FailureKind.TRANSIENT} or (
        # Outside a cloud there is no metadata service: no response at all is final.
        kind is FailureKind.NO_CREDENTIALS and seen.status > 0 and seen.is_transient
    )
    return Failure(kind, seen.reason, retryable=retryable)


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""
