"""The Prometheus endpoint of a process: one small HTTP server for all its jobs.

The server starts with the first query that needs it and stops with the last. All jobs with the same address and port
share it; a job with another port gets a separate server. It serves only `/metrics` and is read-only.
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
    """A server and the jobs that use it."""

    server: ThreadingHTTPServer
    users: list[JobMetrics] = field(default_factory=list)

    @property
    def url(self) -> str:
        host, port = self.server.server_address[:2]
        return f"http://{_shown(str(host))}:{port}{PATH}"


class Endpoints:
    """Servers of a process, by address and port."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], Endpoint] = {}

    def join(self, metrics: JobMetrics, *, address: str, port: int) -> str:
        """Serve these metrics and return the URL. Port 0 picks a free port, the same one for all jobs that pass 0."""
        with self._lock:
            endpoint = self._open.get((address, port))
            if endpoint is None:
                endpoint = self._open[address, port] = self._serve(address, port)
            endpoint.users.append(metrics)
            return endpoint.url

    def leave(self, metrics: JobMetrics) -> None:
        """Stop serving these metrics. The server stops when no job uses it."""
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
        endpoints: list[Endpoint] = []

        class Handler(_Handler):
            def jobs(self) -> list[JobMetrics]:
                return list(dict.fromkeys(endpoints[0].users))

        try:
            server = (_ServerOf6 if ":" in address else _MetricsServer)((address, port), Handler)
        except OSError as error:
            raise InputError(
                f"cannot serve metrics at {address} port {port}: {error.strerror or error}",
                where="metrics_port",
                fix="set another metrics_port (0 picks a free one), or set metrics_address to an address of this host",
            ) from error
        endpoints.append(Endpoint(server))
        threading.Thread(target=server.serve_forever, args=(0.1,), name="statebed-metrics", daemon=True).start()
        _log.info("serving metrics at %s", endpoints[0].url)
        return endpoints[0]


ENDPOINTS = Endpoints()
"""Servers of this process."""


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
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"metrics are served at {PATH}")
            return
        body = exposition(sample for job in self.jobs() for sample in job.samples()).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
