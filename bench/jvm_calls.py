"""Counts of Python's calls of the JVM, including calls that only release objects."""

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.clientserver import ClientServerConnection


@contextmanager
def calls_counted() -> Iterator[list[int]]:
    """Count the calls of the JVM by this process."""
    send = ClientServerConnection.send_command
    calls: list[int] = []

    def counted(connection: ClientServerConnection, *command: object) -> object:
        calls.append(1)
        return send(connection, *command)

    ClientServerConnection.send_command = counted
    try:
        yield calls
    finally:
        ClientServerConnection.send_command = send
