"""Clients that are answered, and the headers of every response."""

from pathlib import Path

import pytest
from dashboard_client import DashboardClient

from statebed.ui import is_loopback


@pytest.fixture
def client(tmp_path: Path) -> DashboardClient:
    return DashboardClient(tmp_path, allowed_hosts=("State.Example.org",))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8766", 200),
        ("localhost:8766", 200),
        ("LOCALHOST", 200),
        ("[::1]:8766", 200),
        ("10.0.0.7", 200),
        ("state.example.org:8766", 200),
        ("evil.example.org:8766", 421),
        ("localhost.evil.example.org", 421),
        ("127.0.0.1.evil.example.org", 421),
        ("", 421),
    ],
)
def test_a_name_that_somebody_pointed_here_is_refused(client: DashboardClient, host: str, status: int) -> None:
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == status
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize("page", ["/", "/jobs/nobody", "/static/style.css", "/nowhere"])
def test_every_answer_forbids_what_no_page_needs(client: DashboardClient, page: str) -> None:
    headers = client.get(page).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_no_page_asks_another_server_for_anything(client: DashboardClient) -> None:
    for path in ("/", "/static/style.css", "/static/live.js", "/static/theme.js"):
        text = client.get(path).text
        assert "//" not in text.replace("http://127.0.0.1", "").replace("// ", ""), path


def test_files_beside_the_static_ones_are_not_served(client: DashboardClient) -> None:
    assert client.get("/static/..%2Fserver.py").status_code == 404
    assert client.get("/static/../server.py").status_code == 404


@pytest.mark.parametrize(
    ("host", "is_so"), [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("10.0.0.1", False), ("a.b", False)]
)
def test_loopback_is_told_from_the_rest(host: str, is_so: bool) -> None:
    assert is_loopback(host) is is_so
