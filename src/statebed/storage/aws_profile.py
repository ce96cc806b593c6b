"""Settings from the AWS files `~/.aws/credentials` and `~/.aws/config`, which obstore does not read.

Only plain values are read: keys, session token, region, endpoint. The environment takes precedence over the files. A
profile that needs a login (SSO, assumed roles, external processes) is refused with the command that exports it.
"""

import configparser
from collections.abc import Mapping
from pathlib import Path

from statebed.errors import CredentialsError

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
