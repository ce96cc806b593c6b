"""Where Prometheus finds the metrics of a process: one small HTTP server for all jobs that run in it.

It begins with the first query that wants it and ends with the last. Any number of jobs share it; a second one that asks
for another port gets a server of its own. Nothing but `/metrics` is answered, and nothing is written.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from statebed.errors import InputError
from statebed.metrics.job_metrics import JobMetrics
from statebed.metrics.samples import CONTENT_TYPE, exposition

_log = logging.getLogger(__name__)
PATH = "/metrics"
_SECONDS = 10.0

Jobs = Callable[[], Iterable[JobMetrics]]


@dataclass
class Endpoint:
    """A server and those who use it."""

    server: ThreadingHTTPServer
    users: list[JobMetrics] = field(default_factory=list)

    @property
    def url(self) -> str:
        host, port = self.server.server_address[:2]
        return f"http://{_shown(str(host))}:{port}{PATH}"


class Endpoints:
    """The servers of a process, by address and port."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], Endpoint] = {}

    def join(self, metrics: JobMetrics, *, address: str, port: int) -> str:
        """Show these metrics there; the URL. Port 0 is any, and the same one for all who want any."""
        with self._lock:
            found = self._open.get((address, port))
            if found is None:
                found = self._open[address, port] = self._serve(address, port)
            found.users.append(metrics)
            return found.url

    def leave(self, metrics: JobMetrics) -> None:
        """Show them no more; the server ends when nobody is left."""
        ended: list[Endpoint] = []
        with self._lock:
            for place, endpoint in list(self._open.items()):
                if metrics in endpoint.users:
                    endpoint.users.remove(metrics)
                    if not endpoint.users:
                        ended.append(self._open.pop(place))
        for endpoint in ended:
            endpoint.server.shutdown()
            endpoint.server.server_close()

    def _serve(self, address: str, port: int) -> Endpoint:
        made: list[Endpoint] = []

        class Handler(_Handler):
            def jobs(self) -> list[JobMetrics]:
                return list(dict.fromkeys(made[0].users))

        try:
            server = (_ServerOf6 if ":" in address else _MetricsServer)((address, port), Handler)
        except OSError as error:
            raise InputError(
                f"metrics cannot be served at {address} port {port}: {error.strerror or error}",
                where="metrics_port",
                fix="give another port (0: any that is free), or an address of this host as metrics_address",
            ) from error
        made.append(Endpoint(server))
        threading.Thread(target=server.serve_forever, args=(0.1,), name="statebed-metrics", daemon=True).start()
        _log.info("metrics are at %s", made[0].url)
        return made[0]


ENDPOINTS = Endpoints()
"""Of this process."""


class _MetricsServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


class _ServerOf6(_MetricsServer):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server_version = "statebed"
    sys_version = ""
    timeout = _SECONDS
    methods: ClassVar[str] = "GET, HEAD"

    def jobs(self) -> list[JobMetrics]:
        raise NotImplementedError

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        _log.debug("%s: " + format, self.address_string(), *arguments)

    def _answer(self, *, with_body: bool) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"metrics are at {PATH}")
            return
        body = exposition(one for job in self.jobs() for one in job.samples()).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
