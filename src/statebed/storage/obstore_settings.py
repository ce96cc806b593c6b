"""Sorts the settings of an object store: what goes to obstore's store, what to its HTTP client.

obstore takes the two apart, refuses one among the other, and forgets the environment's client settings as
soon as one is given; we always give time-outs. So the client's settings are gathered here, from the options
and the environment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

CONNECT_TIMEOUT = timedelta(seconds=5)
REQUEST_TIMEOUT = timedelta(seconds=60)
"""One request, its body included: enough for a block of 64 MB over a slow line."""

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
    """What obstore is given. Holds secrets: has no readable repr."""

    cloud: str
    """Whose words the settings are in: aws, google or azure."""

    store: dict[str, str]
    client: dict[str, Any]

    def __repr__(self) -> str:
        return "Settings(...)"


def sort_settings(scheme: str, options: Mapping[str, str], environment: Mapping[str, str]) -> ObstoreSettings:
    """Take `options` apart; client settings such as AWS_ALLOW_HTTP also come from the environment.

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
