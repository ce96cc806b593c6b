"""Profiles in the AWS files, and the sorting of settings."""

from datetime import timedelta
from pathlib import Path

import pytest

from statebed.errors import CredentialsError
from statebed.storage.obstore_settings import sort_settings, with_profile


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = default-key\naws_secret_access_key = default-secret\n"
        "[work]\naws_access_key_id=work-key\naws_secret_access_key=work-secret%1\naws_session_token=work-token\n"
    )
    (tmp_path / "config").write_text(
        "[default]\nregion = eu-west-1\noutput = json\n"
        "[profile work]\nregion = us-west-2\nendpoint_url = http://127.0.0.1:9000\n"
        "[profile login]\nsso_session = corp\nregion = eu-north-1\n"
    )
    return {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
    }


def test_the_default_profile_is_used_when_none_is_named(environment: dict[str, str]) -> None:
    assert with_profile({}, environment) == {
        "aws_access_key_id": "default-key",
        "aws_secret_access_key": "default-secret",
        "aws_region": "eu-west-1",
    }


def test_a_named_profile_joins_both_files(environment: dict[str, str]) -> None:
    assert with_profile({}, {**environment, "AWS_PROFILE": "work"}) == {
        "aws_access_key_id": "work-key",
        "aws_secret_access_key": "work-secret%1",
        "aws_session_token": "work-token",
        "aws_region": "us-west-2",
        "aws_endpoint_url": "http://127.0.0.1:9000",
    }


def test_keys_in_the_environment_keep_the_whole_identity_of_the_profile_out(environment: dict[str, str]) -> None:
    variables = {**environment, "AWS_PROFILE": "work", "AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "s"}
    assert with_profile({}, variables) == {
        "aws_region": "us-west-2",
        "aws_endpoint_url": "http://127.0.0.1:9000",
    }


def test_options_go_before_everything(environment: dict[str, str]) -> None:
    options = {"aws_access_key_id": "mine", "aws_secret_access_key": "s", "aws_region": "here"}
    assert with_profile(options, environment) == options


def test_a_region_in_the_environment_goes_before_the_profiles(environment: dict[str, str]) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        assert "aws_region" not in with_profile({}, {**environment, name: "x"})


def test_a_profile_that_does_not_exist_is_an_error_only_when_named(environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="'absent'"):
        with_profile({}, {**environment, "AWS_PROFILE": "absent"})
    nowhere = {name: str(tmp_path / "nothing") for name in environment}
    assert with_profile({}, nowhere) == {}


def test_a_profile_that_needs_a_login_says_which_command_helps(environment: dict[str, str]) -> None:
    with pytest.raises(CredentialsError, match="sso_session") as caught:
        with_profile({}, {**environment, "AWS_PROFILE": "login"})
    assert "export-credentials --profile login" in caught.value.fix


def test_a_file_that_is_no_profile_file_is_named_and_its_text_is_not_shown(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "credentials").write_text("hunter2 without a section\n")
    with pytest.raises(CredentialsError) as caught:
        with_profile({}, environment)
    assert str(tmp_path / "credentials") in caught.value.where
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


def test_client_settings_are_taken_out_of_the_options_and_the_environment() -> None:
    sorted_out = sort_settings(
        "s3",
        {"aws_region": "x", "aws_allow_http": "TRUE", "proxy_url": "http://proxy"},
        {"AWS_ALLOW_HTTP": "false", "AWS_TIMEOUT": "7s", "GOOGLE_TIMEOUT": "9s"},
    )
    assert sorted_out.store == {"aws_region": "x"}
    assert sorted_out.client == {
        "allow_http": True,
        "proxy_url": "http://proxy",
        "timeout": "7s",
        "connect_timeout": timedelta(seconds=5),
    }


def test_time_outs_are_always_set_and_secrets_are_not_in_the_repr() -> None:
    sorted_out = sort_settings("az", {"azure_storage_account_key": "hunter2"}, {})
    assert set(sorted_out.client) == {"connect_timeout", "timeout"}
    assert "hunter2" not in repr(sorted_out)
