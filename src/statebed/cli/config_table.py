"""`statebed config`: every setting with its value and origin, as a job started here would see it.

`spark.statebed.*` is not included, because only a running Spark knows its configuration. Environment variables of
object stores are listed too, without values that may be secrets.
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
class SettingLine:
    """One setting or environment variable."""

    name: str
    value: str
    source: str
    meaning: str


def setting_lines(environ: Mapping[str, str], folder: Path) -> list[SettingLine]:
    """Return the value of every setting for a job started in `folder`."""
    settings = resolve({}, spark_conf={}, environ=environ, folder=folder)
    return [
        SettingLine(name, declared.shown(getattr(settings, name)), settings.place_of(name).text, declared.text)
        for name, declared in DECLARATIONS.items()
    ]


def store_lines(environ: Mapping[str, str]) -> list[SettingLine]:
    """Return the environment variables of object stores; a value is shown only if it cannot be a secret."""
    return [
        SettingLine(name, _masked(name, environ[name]), "environment", "")
        for name in sorted(environ)
        if name.startswith(_OF_STORES)
    ]


def _masked(name: str, value: str) -> str:
    return value if _SHOWN.search(name) and not _URL_WITH_SECRET.search(value) else MASK
