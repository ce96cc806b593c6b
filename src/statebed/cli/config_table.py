"""`statebed config`: every setting with its value and the place that it came from, as a job started here would see it.

Spark's own configuration is known to a running Spark alone, so `spark.statebed.*` is not part of it. What the stores
read from the environment is listed too, without values that could be secrets.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from statebed.config import DECLARATIONS, resolve

_OF_STORES = ("AWS_", "AZURE_", "GOOGLE_")
_SHOWN = re.compile(r"(REGION|ENDPOINT|PROFILE|_FILE|ALLOW_HTTP|TIMEOUT|ACCOUNT_NAME|BUCKET)")
_URL_WITH_SECRET = re.compile(r"//[^/]*@|\?")
MASK = "(set, not shown)"


@dataclass(frozen=True)
class Line:
    """One setting or variable."""

    name: str
    value: str
    source: str
    meaning: str


def setting_lines(environ: Mapping[str, str], folder: Path) -> list[Line]:
    """What every setting is, for a job that is started in `folder`."""
    settings = resolve({}, spark_conf={}, environ=environ, folder=folder)
    return [
        Line(name, declared.shown(getattr(settings, name)), settings.place_of(name).text, declared.text)
        for name, declared in DECLARATIONS.items()
    ]


def store_lines(environ: Mapping[str, str]) -> list[Line]:
    """What object stores find in the environment; a value is shown only where it can be no secret."""
    return [
        Line(name, _masked(name, environ[name]), "environment", "")
        for name in sorted(environ)
        if name.startswith(_OF_STORES)
    ]


def _masked(name: str, value: str) -> str:
    return value if _SHOWN.search(name) and not _URL_WITH_SECRET.search(value) else MASK
