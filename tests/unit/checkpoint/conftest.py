"""One job in memory, and a sink of either kind."""

import pytest
from unit.checkpoint.place import MailSink, Place, TableSink


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def table() -> TableSink:
    return TableSink("table")


@pytest.fixture
def mail() -> MailSink:
    return MailSink("mail")
