"""Helpers of tests that start a server on loopback."""

import contextlib
import os
import socket
from collections.abc import Iterator


def free_ports(count: int) -> tuple[int, ...]:
    """Return ports that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(each.getsockname()[1] for each in sockets)


@contextlib.contextmanager
def without_proxy() -> Iterator[None]:
    """Reach loopback directly, whatever proxy this machine is configured to use."""
    before = {name: os.environ.get(name) for name in ("NO_PROXY", "no_proxy")}
    for name, value in before.items():
        os.environ[name] = f"{value},127.0.0.1" if value else "127.0.0.1"
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
