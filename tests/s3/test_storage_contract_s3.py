"""The store contract on a real S3 server, and the ways it refuses us."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import storage_contract

from statebed.errors import BucketMissingError, CredentialsError, StatebedError
from statebed.storage import ObjectStore, get_storage_provider, probe_put_if_absent, put_verified
from statebed.storage.verified import READ_BACK_BYTES, UPLOAD_PART_BYTES
from statebed.testing.faults import FaultStore, Verb

pytestmark = pytest.mark.s3


@pytest.mark.parametrize("case", storage_contract.CASES, ids=lambda case: case.__name__)
def test_store_contract(case: Callable[[ObjectStore], None], s3_store: ObjectStore) -> None:
    case(s3_store)


@pytest.mark.parametrize("size", [READ_BACK_BYTES + 1, 2 * UPLOAD_PART_BYTES + 1], ids=["whole", "in parts"])
def test_a_large_object_is_verified_by_its_tag_without_reading_it_back(s3_store: ObjectStore, size: int) -> None:
    seen = FaultStore(s3_store)
    put_verified(seen, "large", bytes(range(256)) * (size // 256 + 1))
    assert [operation.verb for operation in seen.log] == [Verb.PUT, Verb.HEAD]


def _verbs(store: ObjectStore) -> dict[str, Callable[[], Any]]:
    return {
        "put_if_absent": lambda: store.put_if_absent("a", b"x"),
        "put": lambda: store.put("a", b"x"),
        "get": lambda: store.get("a"),
        "get_range": lambda: store.get_range("a", 0, 1),
        "head": lambda: store.head("a"),
        "list": lambda: list(store.list("")),
        "list_level": lambda: store.list_level(""),
        "delete": lambda: store.delete("a"),
        "probe": lambda: probe_put_if_absent(store),
    }


@pytest.mark.parametrize("verb", _verbs(get_storage_provider("memory://names")))
@pytest.mark.parametrize("wrong", ["aws_access_key_id", "aws_secret_access_key"])
def test_wrong_credentials_are_refused_at_once_by_every_verb_and_nothing_is_written(
    s3_server: Any, s3_url: str, s3_store: ObjectStore, wrong: str, verb: str
) -> None:
    store = get_storage_provider(s3_url, {**s3_server.options, wrong: "mistaken-value"})
    start = time.monotonic()
    with pytest.raises(CredentialsError) as caught:
        _verbs(store)[verb]()
    assert time.monotonic() - start < 5
    assert caught.value.code == "CREDENTIALS"
    assert s3_url in caught.value.where
    assert "AWS_ACCESS_KEY_ID" in caught.value.fix
    _assert_no_secret(caught.value, "mistaken-value", s3_server.secret_key)
    assert list(s3_store.list("")) == []


@pytest.mark.parametrize("verb", ["put_if_absent", "put", "get", "get_range", "list", "list_level", "probe"])
def test_a_missing_bucket_is_an_error_of_its_own(s3_server: Any, verb: str) -> None:
    store = get_storage_provider("s3://no-such-bucket/state", s3_server.options)
    with pytest.raises(BucketMissingError) as caught:
        _verbs(store)[verb]()
    assert caught.value.code == "BUCKET_MISSING"
    assert "s3://no-such-bucket/state" in caught.value.where
    assert caught.value.fix


def test_credentials_and_endpoint_come_from_the_environment(
    s3_server: Any, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    probe_put_if_absent(get_storage_provider(f"{s3_url}/from-environment"))


def test_credentials_come_from_the_aws_files(
    s3_server: Any, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials, config = tmp_path / "credentials", tmp_path / "config"
    credentials.write_text(
        f"[tests]\naws_access_key_id = {s3_server.access_key}\naws_secret_access_key = {s3_server.secret_key}\n"
    )
    config.write_text(f"[profile tests]\nregion = us-east-1\nendpoint_url = {s3_server.endpoint}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "tests")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    probe_put_if_absent(get_storage_provider(f"{s3_url}/from-profile"))


def _assert_no_secret(error: StatebedError, *secrets: str) -> None:
    shown: BaseException | None = error
    while shown is not None:
        assert not any(secret in f"{shown} {shown!r}" for secret in secrets)
        shown = shown.__cause__ or shown.__context__
