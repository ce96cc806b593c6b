"""Stores by URL: `get_storage_provider("s3://bucket/state")`.

A process has one store per URL and options, created on first use, so that connections are shared. Credentials come from
the environment or from `options`, never from the URL, and never appear in a text.
"""

import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from statebed.errors import InputError, SecretInUrlError, UnknownSchemeError
from statebed.storage.local import LocalStore
from statebed.storage.memory_store import MemoryStore
from statebed.storage.object_store import ObjectStore
from statebed.storage.paths import local_path

Options = Mapping[str, str]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CONTAINER_AT_ACCOUNT = {"abfs", "abfss"}

_lock = threading.Lock()
_stores: dict[tuple[str, tuple[tuple[str, str], ...]], ObjectStore] = {}


def get_storage_provider(url: str | Path, options: Options | None = None) -> ObjectStore:
    """Return the store at `url`: a folder, file://, s3://, gs://, az://, abfs(s):// or memory://name.

    `options` are settings of the object store under obstore's names (`aws_endpoint_url`, `aws_region`, ...) and take
    precedence over the environment. Nothing is read or written yet: `probe_put_if_absent` does that.

    >>> get_storage_provider("memory://example")
    MemoryStore('memory://example')
    """
    if not isinstance(url, str | os.PathLike):
        raise InputError(f"a location must be a text or a path, got {url!r}", fix="use a folder or a URL")
    clean = _normalised(os.fspath(url))
    key = (clean, tuple(sorted((options or {}).items())))
    with _lock:
        store = _stores.get(key)
        if store is None:
            store = _stores[key] = _make(clean, dict(options or {}))
        return store


def _normalised(url: str) -> str:
    """Return an absolute path, or a URL without trailing '/'; raise SecretInUrlError if it contains a secret."""
    if not url.strip():
        raise InputError("the state URL is empty", fix="use a folder or a URL such as 's3://bucket/state'")
    match = _SCHEME.match(url)
    if match is None:
        return LocalStore(local_path(url)).url
    scheme = match.group(1).lower()
    if scheme not in _MAKERS:
        raise UnknownSchemeError(
            f"no store supports the scheme {scheme!r}",
            fix=f"use a folder, or a URL that starts with one of: {', '.join(f'{s}://' for s in _MAKERS)}",
        )
    _refuse_secrets(url, scheme)
    if scheme == "file":
        return LocalStore(local_path(url)).url
    parts = urlsplit(url)
    if not parts.netloc:
        raise InputError("the URL has no bucket", where=url, fix=f"write {scheme}://bucket/folder")
    if _MAKERS[scheme] is _make_remote:
        _check_one_spelling(url)
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _check_one_spelling(url: str) -> None:
    """Raise InputError for a URL that libraries read differently: two spellings of one folder would look like two."""
    folders = _SCHEME.sub("", url).rstrip("/").split("/")[1:]
    escapes = re.findall("%[0-9A-Fa-f]{2}", url)
    wrong = [folder for folder in folders if folder in {"", ".", ".."} or not folder.isprintable()] + escapes
    if wrong:
        raise InputError(
            f"the path of the URL contains {wrong[0]!r}, which other programs read differently",
            where=url,
            fix="write each folder as it is called, without empty names, '.', '..', line breaks or escapes like %20",
        )


def _refuse_secrets(url: str, scheme: str) -> None:
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    named_container = scheme in _CONTAINER_AT_ACCOUNT and ":" not in user
    if (not at or named_container) and not parts.query and not parts.fragment:
        return
    host = parts.hostname or ""
    raise SecretInUrlError(
        "the state URL contains a user, a password, a query or a fragment, which may be a secret (not shown)",
        where=f"{scheme}://{host}/...",
        fix="remove it from the URL and pass credentials in the environment (AWS_ACCESS_KEY_ID and so on)",
    )


def _make(url: str, options: dict[str, str]) -> ObjectStore:
    match = _SCHEME.match(url)
    return _MAKERS[match.group(1) if match else "file"](url, options)


def _make_local(url: str, options: dict[str, str]) -> ObjectStore:
    _no_options(url, options)
    return LocalStore(url)


def _make_memory(url: str, options: dict[str, str]) -> ObjectStore:
    _no_options(url, options)
    return MemoryStore(url)


def _make_remote(url: str, options: dict[str, str]) -> ObjectStore:
    from statebed.storage.remote import RemoteStore  # noqa: PLC0415 - local use needs no obstore in memory

    return RemoteStore(url, options)


def _no_options(url: str, options: dict[str, str]) -> None:
    if options:
        raise InputError(
            f"this store has no options, got {', '.join(sorted(options))}", where=url, fix="leave them out"
        )


_MAKERS: dict[str, Callable[[str, dict[str, str]], ObjectStore]] = {
    "file": _make_local,
    "s3": _make_remote,
    "s3a": _make_remote,
    "gs": _make_remote,
    "az": _make_remote,
    "abfs": _make_remote,
    "abfss": _make_remote,
    "memory": _make_memory,
}
