"""Stores by URL: schemes, singletons, and secrets that are never shown."""

import doctest
import importlib
import pkgutil
from pathlib import Path
from typing import Any

import pytest

import statebed.storage
from statebed.errors import InputError, SecretInUrlError, UnknownSchemeError
from statebed.sinks.places import needed_local_path
from statebed.storage import LocalStore, MemoryStore, ScopedStore, get_storage_provider


def test_a_path_and_its_file_url_are_the_same_local_store(tmp_path: Path) -> None:
    store = get_storage_provider(tmp_path / "a folder")
    assert isinstance(store, LocalStore)
    assert get_storage_provider(str(tmp_path / "a folder") + "/") is store
    assert get_storage_provider(f"file://{tmp_path}/a%20folder") is store
    assert get_storage_provider(f"file://localhost{tmp_path}/a%20folder/") is store
    assert get_storage_provider(f"file:{tmp_path}/a%20folder") is store
    assert get_storage_provider(f"FILE:{tmp_path}/a%20folder") is store
    assert not (tmp_path / "a folder").exists()


def test_a_relative_path_is_that_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert get_storage_provider("state") is get_storage_provider(tmp_path / "state")


def test_a_url_with_its_own_meaning_in_a_path_is_a_path(tmp_path: Path) -> None:
    store = get_storage_provider(f"{tmp_path}/what?#100%25")
    store.put("a", b"x")
    assert (tmp_path / "what?#100%25" / "a").read_bytes() == b"x"


def test_memory_urls_share_one_store_per_name() -> None:
    store = get_storage_provider("memory://shared/job")
    assert isinstance(store, MemoryStore)
    assert get_storage_provider("memory://shared/job/") is store
    assert get_storage_provider("memory://other/job") is not store


def test_the_same_url_with_other_options_is_another_store() -> None:
    one = get_storage_provider("s3://bucket/state", {"aws_region": "eu-west-1"})
    assert get_storage_provider("s3://bucket/state/", {"aws_region": "eu-west-1"}) is one
    assert get_storage_provider("s3://bucket/state", {"aws_region": "us-east-1"}) is not one


@pytest.mark.parametrize("folder", ["b/../a", "./a", "../a", "/a", "b//a", "%61", "b%2Fa", "a\n", "a/\tb"])
@pytest.mark.parametrize("bucket", ["s3://bucket/", "gs://bucket/", "abfss://box@account.dfs.core.windows.net/"])
def test_a_url_that_is_another_spelling_of_a_folder_is_refused(bucket: str, folder: str) -> None:
    """The store would take two jobs or sinks to one folder, or drop the line break, and other programs would not."""
    with pytest.raises(InputError, match=r"the path of the URL contains .*, which other programs read differently"):
        get_storage_provider(bucket + folder)


@pytest.mark.parametrize(
    "url", ["s3://bucket/a", "s3a://bucket/a", "gs://bucket/a", "abfss://box@account.dfs.core.windows.net/a"]
)
def test_every_cloud_scheme_gives_a_store_that_shows_its_url_only(url: str) -> None:
    store = get_storage_provider(url)
    assert store.url == url
    assert repr(store) == f"RemoteStore({url!r})"
    assert ScopedStore(store, "rides").url == f"{url}/rides"


def test_az_takes_its_account_from_the_options() -> None:
    assert get_storage_provider("az://box/a", {"azure_storage_account_name": "account"}).url == "az://box/a"


def test_az_without_an_account_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InputError, match="Account must be specified") as caught:
        get_storage_provider("az://box/without-account")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in caught.value.fix


def test_an_unknown_scheme_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(UnknownSchemeError, match="'ftp'") as caught:
        get_storage_provider("ftp://user:hunter2@host/state")
    assert caught.value.code == "UNKNOWN_SCHEME"
    assert "s3://" in caught.value.fix
    assert "memory://" in caught.value.fix
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA:hunter2@bucket/state",
        "s3://hunter2@bucket/state",
        "s3://bucket/state?secret_key=hunter2",
        "s3://bucket/state?hunter2",
        "s3://bucket/state#hunter2",
        "gs://u:hunter2@bucket/state",
        "az://box/state?sig=hunter2",
        "abfss://box:hunter2@account.dfs.core.windows.net/a",
        "file://u:hunter2@host/state",
        "memory://u:hunter2@name",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(SecretInUrlError) as caught:
        get_storage_provider(url)
    assert caught.value.code == "SECRET_IN_URL"
    assert "hunter2" not in f"{caught.value}{caught.value!r}"
    assert "environment" in caught.value.fix


@pytest.mark.parametrize(
    "url", ["", "  ", "s3://", "s3:///state", "file://host/state", "file://", "file:", "file:state"]
)
def test_a_url_that_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(InputError) as caught:
        get_storage_provider(url)
    assert caught.value.fix


@pytest.mark.parametrize("url", ["s3:/bucket/state", "S3:bucket", "s3a:/bucket", "gs:/b/x", "dbfs:/state", "memory:x"])
def test_a_url_that_lacks_a_slash_is_no_local_folder(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State of a job that belongs on S3 was written to a local folder called `s3:`."""
    monkeypatch.chdir(tmp_path)
    example = "write('sqlite', path='results.db')"
    for use in (get_storage_provider, lambda path: needed_local_path(path, where="here", fix=example)):
        with pytest.raises(InputError, match="a URL of") as caught:
            use(url)
        assert f"./{url}" in caught.value.fix
    get_storage_provider(f"./{url}").put("object", b"")
    assert (tmp_path / url / "object").exists()


@pytest.mark.parametrize("url", [None, 5, b"state", "a\0b"])
def test_what_is_no_path_is_refused(url: Any) -> None:
    with pytest.raises(InputError):
        get_storage_provider(url)


def test_options_of_a_store_that_has_none_are_refused_without_their_values(tmp_path: Path) -> None:
    for url in (str(tmp_path), "memory://optionless"):
        with pytest.raises(InputError, match="aws_region") as caught:
            get_storage_provider(url, {"aws_region": "hunter2"})
        assert "hunter2" not in str(caught.value)


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="nonsense") as caught:
        get_storage_provider("s3://bucket/unknown-option", {"nonsense": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("module", [name for _, name, _ in pkgutil.iter_modules(statebed.storage.__path__)])
def test_the_examples_in_docstrings_are_true(module: str) -> None:
    assert doctest.testmod(importlib.import_module(f"statebed.storage.{module}")).failed == 0
