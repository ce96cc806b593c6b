"""Object stores whose answers get lost: a small HTTP server on loopback that fails on command.

The real S3 server is tested in tests/s3; here are the failures that a healthy server does not show.
"""

import enum
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from obstore.exceptions import GenericError

from statebed.errors import (
    ClockSkewError,
    CredentialsError,
    InputError,
    OutcomeUnknownError,
    StoreNotWritableError,
    StoreUnavailableError,
)
from statebed.storage import PutOutcome
from statebed.storage.failures import FailureKind, classify
from statebed.storage.remote import RemoteStore
from statebed.storage.retry import Retrier, RetryPolicy


class Mishap(enum.Enum):
    """Fault of the server for one request."""

    BUSY = "503 without effect"
    HANG_UP_AFTER_EFFECT = "does it, then closes the connection"
    HANG_UP = "closes the connection without effect"
    CONFLICT = "409 while another request is under way"
    DENIED = "403 AccessDenied"
    SKEWED = "403 RequestTimeTooSkewed"
    SILENCE = "no answer at all"


class FailingS3:
    """Objects, the mishaps of the next requests, and the requests seen."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.mishaps: list[Mishap] = []
        self.always: Mishap | None = None
        self.seen: list[str] = []
        self.released = threading.Event()
        failing = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
                pass

            def do_PUT(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                mishap = self._next()
                if mishap in {
                    Mishap.BUSY,
                    Mishap.HANG_UP,
                    Mishap.CONFLICT,
                    Mishap.DENIED,
                    Mishap.SKEWED,
                    Mishap.SILENCE,
                }:
                    return self._fail(mishap)
                if self.headers["if-none-match"] == "*" and self.path in failing.objects:
                    return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                failing.objects[self.path] = data
                return self._fail(mishap) if mishap else self._answer(200, b"", etag='"x"')

            def do_HEAD(self) -> None:
                self._read()

            def do_GET(self) -> None:
                self._read()

            def _read(self) -> None:
                mishap = self._next()
                if mishap:
                    return self._fail(mishap)
                found = failing.objects.get(self.path)
                return self._answer(404, b"") if found is None else self._answer(200, found, etag='"x"')

            def _next(self) -> Mishap | None:
                failing.seen.append(self.command)
                return failing.always or (failing.mishaps.pop(0) if failing.mishaps else None)

            def _fail(self, mishap: Mishap) -> None:
                if mishap is Mishap.BUSY:
                    self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
                elif mishap is Mishap.CONFLICT:
                    self._answer(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>")
                elif mishap is Mishap.DENIED:
                    self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
                elif mishap is Mishap.SKEWED:
                    self._answer(403, b"<Error><Code>RequestTimeTooSkewed</Code></Error>")
                else:
                    if mishap is Mishap.SILENCE:
                        failing.released.wait(30)
                    self.close_connection = True

            def _answer(self, status: int, body: bytes, *, etag: str = "") -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.send_header("last-modified", "Sun, 15 Nov 2026 00:00:00 GMT")
                if etag:
                    self.send_header("etag", etag)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingS3]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    failing = FailingS3()
    thread = threading.Thread(target=failing.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield failing
    failing.released.set()
    failing.server.shutdown()
    thread.join(10)
    failing.server.server_close()


def _store(endpoint: str, *, deadline: float = 5.0, **options: str) -> RemoteStore:
    settings = {
        "aws_endpoint_url": endpoint,
        "aws_region": "us-east-1",
        "aws_access_key_id": "key",
        "aws_secret_access_key": "hunter2",
        "allow_http": "true",
        **options,
    }
    policy = RetryPolicy(deadline=deadline, first_delay=0.01, longest_delay=0.05)
    return RemoteStore("s3://bucket/state", settings, retrier=Retrier(policy))


def test_a_busy_store_is_asked_again(failing: FailingS3) -> None:
    failing.mishaps = [Mishap.BUSY, Mishap.BUSY]
    _store(failing.endpoint).put("a", b"x")
    assert failing.seen == ["PUT", "PUT", "PUT"]
    failing.mishaps = [Mishap.BUSY, Mishap.HANG_UP]
    assert _store(failing.endpoint).get("a") == b"x"


def test_a_create_whose_answer_was_lost_finds_its_own_object(failing: FailingS3) -> None:
    failing.mishaps = [Mishap.HANG_UP_AFTER_EFFECT]
    assert _store(failing.endpoint).put_if_absent("a", b"nonce") is PutOutcome.EXISTS
    assert _store(failing.endpoint).get("a") == b"nonce"


def test_a_create_that_was_lost_itself_is_made_by_the_next_try(failing: FailingS3) -> None:
    failing.mishaps = [Mishap.HANG_UP, Mishap.BUSY]
    assert _store(failing.endpoint).put_if_absent("a", b"x") is PutOutcome.CREATED
    assert failing.seen == ["PUT", "PUT", "PUT"]


def test_a_conflict_without_an_object_is_not_taken_for_exists(failing: FailingS3) -> None:
    failing.mishaps = [Mishap.CONFLICT]
    assert _store(failing.endpoint).put_if_absent("a", b"x") is PutOutcome.CREATED
    assert list(failing.objects.values()) == [b"x"]
    assert failing.seen == ["PUT", "HEAD", "PUT"]


def test_a_create_without_any_clear_answer_is_an_unknown_outcome(failing: FailingS3) -> None:
    failing.always = Mishap.BUSY
    with pytest.raises(OutcomeUnknownError) as caught:
        _store(failing.endpoint, deadline=0.3).put_if_absent("a", b"x")
    assert caught.value.where == "s3://bucket/state/a"
    assert "repeat" in caught.value.fix
    assert len(failing.seen) > 2


def test_other_verbs_without_an_answer_say_unavailable_after_the_deadline(failing: FailingS3) -> None:
    failing.always = Mishap.BUSY
    store = _store(failing.endpoint, deadline=0.3)
    for verb in (lambda: store.get("a"), lambda: store.head("a"), lambda: store.put("a", b"")):
        start = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="status 503") as caught:
            verb()
        assert type(caught.value) is StoreUnavailableError
        assert time.monotonic() - start < 3


def test_a_silent_store_ends_at_the_time_out_of_the_request(failing: FailingS3) -> None:
    failing.always = Mishap.SILENCE
    start = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="Timeout"):
        _store(failing.endpoint, deadline=0.2, timeout="300ms").get("a")
    assert time.monotonic() - start < 5


def test_an_unreachable_store_is_unavailable_even_for_a_create_which_was_never_sent() -> None:
    store = _store("http://127.0.0.1:1", deadline=0.3)
    for verb in (lambda: store.get("a"), lambda: store.put_if_absent("a", b"")):
        with pytest.raises(StoreUnavailableError, match="no connection") as caught:
            verb()
        assert caught.value.code == "STORE_UNAVAILABLE"
        assert "hunter2" not in str(caught.value)


def test_a_known_identity_that_may_not_write_makes_the_store_not_writable(failing: FailingS3) -> None:
    failing.always = Mishap.DENIED
    store = _store(failing.endpoint)
    for write in (lambda: store.put("a", b""), lambda: store.put_if_absent("a", b"")):
        with pytest.raises(StoreNotWritableError):
            write()
    with pytest.raises(CredentialsError):
        store.get("a")
    assert failing.seen == ["PUT", "PUT", "GET"]


def test_plain_http_has_to_be_allowed(failing: FailingS3) -> None:
    with pytest.raises(InputError, match="http://") as caught:
        _store(failing.endpoint, allow_http="false").get("a")
    assert "AWS_ALLOW_HTTP" in caught.value.fix
    assert failing.seen == []


FORKED = """
import os, sys
from statebed.errors import StorageError
from statebed.storage import get_storage_provider
options = {"aws_access_key_id": "key", "aws_secret_access_key": "s", "aws_region": "x", "allow_http": "true"}
store = get_storage_provider("s3://bucket/state", options | {"aws_endpoint_url": sys.argv[1]})
if sys.argv[2] == "used before":
    assert store.head("a") is None
child = os.fork()
if child == 0:
    try:
        store.head("a")
    except StorageError as error:
        os._exit(42 if "forked" in error.what else 1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(("use", "exit_code"), [("used before", 42), ("used after", 0)])
def test_a_store_used_before_a_fork_is_refused_in_the_child_instead_of_hanging(
    failing: FailingS3, use: str, exit_code: int
) -> None:
    done = subprocess.run((sys.executable, "-c", FORKED, failing.endpoint, use), timeout=60, check=False)
    assert done.returncode == exit_code


def _generic(text: str) -> GenericError:
    return GenericError(text)


@pytest.mark.parametrize(
    ("text", "kind", "retryable"),
    [
        ("PUT http://169.254.169.254/latest/api/token HttpError {\n kind: Connect", FailureKind.NO_CREDENTIALS, False),
        (
            "GET http://169.254.169.254/latest status code: 503 Service Unavailable",
            FailureKind.NO_CREDENTIALS,
            True,
        ),
        ("GET http://metadata.google.internal/x HttpError {\n kind: Timeout", FailureKind.NO_CREDENTIALS, False),
        ("status code: 500 Internal Server Error", FailureKind.TRANSIENT, True),
        ("status code: 429 Too Many Requests", FailureKind.TRANSIENT, True),
        ("status code: 400 Bad Request: <Code>RequestTimeout</Code>", FailureKind.TRANSIENT, True),
        ("status code: 400 Bad Request: <Code>MalformedXML</Code>", FailureKind.OTHER, False),
        ("status code: 404 Not Found: <Code>ContainerNotFound</Code>", FailureKind.BUCKET_MISSING, False),
        ("status code: 401 Unauthorized", FailureKind.BAD_CREDENTIALS, False),
        ("HttpError {\n    kind: Interrupted", FailureKind.TRANSIENT, True),
        ("something else", FailureKind.OTHER, False),
    ],
)
def test_failures_are_read_from_the_text(text: str, kind: FailureKind, retryable: bool) -> None:
    failure = classify(_generic(text))
    assert (failure.kind, failure.retryable) == (kind, retryable)


def test_a_signed_url_in_a_failure_is_not_handed_on() -> None:
    failure = classify(_generic("GET https://account/box?sig=hunter2 status code: 500 Internal Server Error"))
    assert "hunter2" not in failure.reason


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            (
                "status code: 403 Forbidden: <Error><Code>RequestTimeTooSkewed</Code><Message>The difference "
                "between the request time and the current time is too large.</Message>"
                "<RequestTime>20261116T210000Z</RequestTime>"
                "<ServerTime>2026-11-16T22:00:00Z</ServerTime></Error>"
            ),
            ("20261116T210000Z", "2026-11-16T22:00:00Z"),
        ),
        ("status code: 403 Forbidden: <Error><Code>RequestExpired</Code></Error>", ()),
        (
            "status code: 403 Forbidden: <Code>AuthenticationFailed</Code>Request date header too old: 'Mon, 16 Nov'",
            (),
        ),
        ("status code: 400: invalid_grant: Invalid JWT: Token must be a short-lived token (60 minutes)", ()),
    ],
)
def test_a_clock_that_is_off_is_named_and_not_called_wrong_credentials(text: str, names: tuple[str, ...]) -> None:
    failure = classify(GenericError(text))
    assert failure.kind is FailureKind.CLOCK_SKEW
    assert not failure.retryable
    assert all(name in failure.reason for name in names)


def test_a_store_that_refuses_the_time_of_requests_raises_clock_skew(failing: FailingS3) -> None:
    failing.always = Mishap.SKEWED
    with pytest.raises(ClockSkewError, match="clock of this machine") as refused:
        _store(failing.endpoint).get("object")
    assert "NTP" in refused.value.fix
