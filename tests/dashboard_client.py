"""Requests to a dashboard in this process, without a server."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import httpx

from statebed.ui import dashboard


class DashboardClient:
    """Asks for pages, one at a time."""

    def __init__(self, url: str | Path, *, allowed_hosts: tuple[str, ...] = ()) -> None:
        self.application = dashboard(str(url), allowed_hosts=allowed_hosts)

    def get(self, path: str, **more: Mapping[str, str]) -> httpx.Response:
        return self.ask("GET", path, **more)

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        async def answered() -> httpx.Response:
            transport = httpx.ASGITransport(self.application, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, path, params=params, headers=headers)

        return asyncio.run(answered())
