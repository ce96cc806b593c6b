"""Sorting of object store settings: which belong to obstore's store, which to its HTTP client.

obstore takes the two separately, refuses a setting in the wrong place, and ignores the environment's client settings
once any is passed, and timeouts always are. Client settings are therefore gathered here from the options and the
environment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

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
    given: dict[str, str] = {
        name: environment[variable]
        for name in sorted(_SWITCHES | _TEXTS)
        if (variable := f"{cloud}_{name}".upper()) in environment
    }
    for name, value in options.items():
        bare = name.lower().removeprefix(f"{cloud}_")
        if bare in _SWITCHES | _TEXTS:
            given[bare] = value
        else:
            store[name] = value
    client: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT, "timeout": REQUEST_TIMEOUT}
    for name, value in given.items():
        client[name] = value.strip().lower() in _TRUE if name in _SWITCHES else value
    return ObstoreSettings(cloud=cloud, store=store, client=client)
