"""Resolution of settings from all their sources: keyword, Spark, environment, file, default.

Nothing here reads the process environment: everything is passed in, except for the file, which is searched from a
folder upwards. An unknown name is an error in every source, because a misspelt setting that is ignored goes unnoticed
until production.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from statebed.arrays import compiled
from statebed.config.settings import DECLARATIONS, Declaration, SettingOrigin, Settings, SettingSource
from statebed.errors import InputError, StatebedError, UnknownSettingError
from statebed.storage import get_storage_provider
from statebed.storage.paths import local_path

FILE_NAME = "statebed.toml"
SPARK_PREFIX = "spark.statebed."
VARIABLE_PREFIX = "STATEBED_"
_OF_A_PROCESS = (compiled.VARIABLE,)
"""Environment variables that are not settings of a job."""
_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def resolve(
    keywords: Mapping[str, object], *, spark_conf: Mapping[str, str], environ: Mapping[str, str], folder: Path
) -> Settings:
    """Resolve every setting. A keyword that is None is not set; `folder` is the working folder.

    >>> resolve({"memory": "2g"}, spark_conf={}, environ={}, folder=Path("/")).memory
    2147483648
    """
    values: dict[str, Any] = {}
    places: dict[str, SettingOrigin] = {}
    for name, value, place, base in _given(keywords, spark_conf, environ, folder):
        if name not in DECLARATIONS:
            raise _unknown(name, place)
        if name not in values:
            values[name], places[name] = _parsed(DECLARATIONS[name], value, place, base), place
    if "state" not in values:
        values["state"] = _absolute(DECLARATIONS["state"].default, folder)
    return Settings(**values, places=places)


def find_file(folder: Path) -> Path | None:
    """Return the statebed.toml of a folder or of its nearest parent that has one, or None."""
    folder = folder.absolute()
    return next((path for at in (folder, *folder.parents) if (path := at / FILE_NAME).is_file()), None)


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return VARIABLE_PREFIX + name.upper()


Given = tuple[str, object, SettingOrigin, Path]
"""Name, value, origin, and the folder to which relative locations refer."""


def _given(
    keywords: Mapping[str, object], spark_conf: Mapping[str, str], environ: Mapping[str, str], folder: Path
) -> Iterator[Given]:
    """Yield all given settings in order of precedence."""
    for key, value in keywords.items():
        if value is not None:
            yield key, value, SettingOrigin(SettingSource.KEYWORD, f"keyword {key}="), folder
    for key, value in sorted(spark_conf.items()):
        if key.startswith(SPARK_PREFIX):
            yield (
                key.removeprefix(SPARK_PREFIX),
                value,
                SettingOrigin(SettingSource.SPARK_CONF, f"Spark configuration {key}"),
                folder,
            )
    for key, value in sorted(environ.items()):
        if key.startswith(VARIABLE_PREFIX) and key not in _OF_A_PROCESS and value.strip():
            name = key.removeprefix(VARIABLE_PREFIX).lower()
            yield name, value, SettingOrigin(SettingSource.ENVIRONMENT, f"environment {key}"), folder
    file = find_file(folder)
    if file is not None:
        for key, value in _read(file).items():
            yield key, value, SettingOrigin(SettingSource.FILE, f"{key} in {file}"), file.parent


def _read(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"cannot read the settings: {error}", where=str(file), fix='write TOML, for example: memory = "2g"'
        ) from error


def _unknown(name: str, place: SettingOrigin) -> UnknownSettingError:
    near = difflib.get_close_matches(name.lower(), DECLARATIONS, n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(repr(suggestion) for suggestion in near)}? " if near else ""
    return UnknownSettingError(
        f"unknown setting {name!r}", where=place.text, fix=f"{advice}`statebed config` lists all settings"
    )


def _parsed(declared: Declaration, value: object, place: SettingOrigin, base: Path) -> Any:
    try:
        parsed = declared.kind.parse(value)
        if declared.kind.is_place:
            parsed = _absolute(parsed, base)
        if declared.name == "state":
            get_storage_provider(parsed)  # refuses secrets in URLs and unknown schemes; no I/O
    except StatebedError as error:
        where = f"{place.text}: {error.where}" if error.where else place.text
        raise type(error)(error.what, where=where, fix=error.fix) from error
    return parsed


def _absolute(text: str, base: Path) -> str:
    if _HAS_SCHEME.match(text) or text.startswith("~"):
        return text
    return str(base.absolute() / local_path(text))
