"""Division of object store settings into those of obstore's store and those of its HTTP client.

obstore takes the two separately and refuses a setting in the wrong place. It ignores the environment's client settings
if any client setting is passed, and statebed always passes timeouts. Client settings are therefore gathered here from
the options and the environment.

obstore does not read the AWS files `~/.aws/credentials` and `~/.aws/config`. Only their plain values are read here:
keys, session token, region, endpoint. The environment takes precedence over the files. A profile that needs a login
(SSO, assumed roles, external processes) is refused with the command that exports it.
"""

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from statebed.errors import CredentialsError

CONNECT_TIMEOUT = timedelta(seconds=5)
REQUEST_TIMEOUT = timedelta(seconds=60)
"""Timeout of one request including its body: enough for a block of 64 MB over a slow connection."""

_CLOUDS = {
    "s3": "aws",
    "s3a": "aws",
    "gs": "google",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
}
_SWITCHES = {"allow_http", "allow_invalid_certificates"}
_TEXTS = {"connect_timeout", "timeout", "proxy_url", "proxy_excludes", "root_certificate", "user_agent"}
_TRUE = {"true", "1", "yes", "on"}


@dataclass(frozen=True)
class ObstoreSettings:
    """Settings passed to obstore. Contains secrets, so its repr shows nothing."""

    cloud: str
    """Cloud whose setting names are used: aws, google or azure."""

    store: dict[str, str]
    client: dict[str, Any]

    def __repr__(self) -> str:
        return "Settings(...)"


def sort_settings(scheme: str, options: Mapping[str, str], environment: Mapping[str, str]) -> ObstoreSettings:
    """Sort `options`; client settings such as AWS_ALLOW_HTTP also come from the environment.

    >>> sort_settings("s3", {"aws_region": "eu-west-1", "allow_http": "true"}, {}).store
    {'aws_region': 'eu-west-1'}
    """
    cloud = _CLOUDS[scheme]
    store: dict[str, str] = {}
    settings: dict[str, str] = {
        name: environment[variable]
        for name in sorted(_SWITCHES | _TEXTS)
        if (variable := f"{cloud}_{name}".upper()) in environment
    }
    for name, value in options.items():
        bare = name.lower().removeprefix(f"{cloud}_")
        if bare in _SWITCHES | _TEXTS:
            settings[bare] = value
        else:
            store[name] = value
    client: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT, "timeout": REQUEST_TIMEOUT}
    for name, value in settings.items():
        client[name] = value.strip().lower() in _TRUE if name in _SWITCHES else value
    return ObstoreSettings(cloud=cloud, store=store, client=client)


_SETTINGS = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_REGION",
    "endpoint_url": "AWS_ENDPOINT_URL",
}
_OPTION_NAMES = {"region": "aws_region", "endpoint_url": "aws_endpoint_url"}
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_LOGIN = ("sso_session", "sso_start_url", "role_arn", "credential_process")


def with_profile(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return `options` with defaults from the profile in AWS_PROFILE (or `default`)."""
    keys_given = "AWS_ACCESS_KEY_ID" in environment or any(name.lower().endswith("access_key_id") for name in options)
    return {**_profile_options(environment, keys_given=keys_given), **options}


def _profile_options(environment: Mapping[str, str], *, keys_given: bool) -> dict[str, str]:
    name = environment.get("AWS_PROFILE", "default")
    settings = _settings(environment, name)
    if settings is None:
        if "AWS_PROFILE" in environment:
            raise CredentialsError(
                f"the AWS profile {name!r} is in neither file",
                where="~/.aws/credentials, ~/.aws/config",
                fix="correct AWS_PROFILE, or create the profile with: aws configure --profile NAME",
            )
        return {}
    if "AWS_PROFILE" in environment and not keys_given and _KEYS[0] not in settings:
        login = [setting for setting in _LOGIN if setting in settings]
        if login:
            raise CredentialsError(
                f"the AWS profile {name!r} needs a login ({', '.join(login)}), which statebed cannot do",
                where="~/.aws/config",
                fix=f'log in, then: eval "$(aws configure export-credentials --profile {name} --format env)"',
            )
    return {
        _OPTION_NAMES.get(setting, setting): value
        for setting, value in settings.items()
        if setting in _SETTINGS
        and not (keys_given if setting in _KEYS else _SETTINGS[setting] in environment)
        and not (setting == "region" and "AWS_DEFAULT_REGION" in environment)
    }


def _settings(environment: Mapping[str, str], name: str) -> dict[str, str] | None:
    config = _section(environment.get("AWS_CONFIG_FILE", "~/.aws/config"), (f"profile {name}", name))
    credentials = _section(environment.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), (name,))
    return None if config is None and credentials is None else {**(config or {}), **(credentials or {})}


def _section(file: str, names: tuple[str, ...]) -> dict[str, str] | None:
    parser = configparser.RawConfigParser()
    path = Path(file).expanduser()
    unreadable = None
    try:
        parser.read(path)
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        unreadable = type(error).__name__
    if unreadable:  # outside the handler: the parser's message quotes the line, which may be a secret
        raise CredentialsError(f"the file cannot be read ({unreadable})", where=str(path), fix="correct the file")
    return next((dict(parser[name]) for name in names if name in parser), None)
