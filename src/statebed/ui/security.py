"""Security headers of all responses, and the check of the Host header.

The dashboard needs no password because it listens on loopback. A page of another site could still reach it through a
name that resolves to 127.0.0.1 (DNS rebinding), so a request must name this machine in its Host header. IP addresses
cannot be rebound, so all of them are accepted.
"""

import ipaddress
import socket
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    # No external and no inline resources, so that injected markup has no effect.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Middleware that refuses requests to other host names and adds the headers to all responses."""

    def __init__(self, app: ASGIApp, names: Collection[str] = ()) -> None:
        self._app = app
        self._names = {name.lower() for name in (*names, "localhost", *own_names())}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        host = host_of(Headers(scope=scope).get("host", ""))
        if is_address(host) or host in self._names:
            await self._app(scope, receive, with_headers)
            return
        refused = PlainTextResponse(
            "The dashboard does not serve this host name.\n"
            "What to do: open it by its address, or start it with --allow-host NAME.\n",
            status_code=421,
        )
        await refused(scope, receive, with_headers)


def host_of(header: str) -> str:
    """Return the host of a Host header, without its port.

    >>> host_of("LocalHost:8080"), host_of("[::1]:8080")
    ('localhost', '::1')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.rpartition(":")[0].lower() if ":" in header else header.lower()


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether a host is reachable from this machine only.

    >>> is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, False)
    """
    return host.lower() == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def own_names() -> set[str]:
    return {socket.gethostname().lower()}
