"""From all places where settings may stand to one value each: keyword, Spark, environment, file, default.

Nothing here reads the process: what it needs is handed in, but for the file, which is looked for from a folder
upwards. An unknown name is an error wherever it stands, because a misspelt setting that is ignored is found in
production.
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

FILE_NAME = "statebed.toml"
SPARK_PREFIX = "spark.statebed."
VARIABLE_PREFIX = "STATEBED_"
_OF_A_PROCESS = (compiled.VARIABLE,)
"""Variables that are no settings of a job."""
_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def resolve(
    keywords: Mapping[str, object], *, spark_conf: Mapping[str, str], environ: Mapping[str, str], folder: Path
) -> Settings:
    """Settle every setting. A keyword that is None was not given; `folder` is the working folder.

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
    """The statebed.toml that counts in a folder: its own, or the one of the nearest folder above."""
    folder = folder.absolute()
    return next((path for at in (folder, *folder.parents) if (path := at / FILE_NAME).is_file()), None)


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return VARIABLE_PREFIX + name.upper()


Given = tuple[str, object, SettingOrigin, Path]
"""Name, value, where it stands, the folder that relative places begin at."""


def _given(
    keywords: Mapping[str, object], spark_conf: Mapping[str, str], environ: Mapping[str, str], folder: Path
) -> Iterator[Given]:
    """What is given, what counts more first."""
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
            f"the settings cannot be read: {error}", where=str(file), fix='write TOML, for example: memory = "2g"'
        ) from error


def _unknown(name: str, place: SettingOrigin) -> UnknownSettingError:
    near = difflib.get_close_matches(name.lower(), DECLARATIONS, n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(repr(one) for one in near)}? " if near else ""
    return UnknownSettingError(
        f"there is no setting {name!r}", where=place.text, fix=f"{advice}`statebed config` lists all settings"
    )


def _parsed(declared: Declaration, value: object, place: SettingOrigin, base: Path) -> Any:
    try:
        parsed = declared.kind.parse(value)
        if declared.kind.is_place:
            parsed = _absolute(parsed, base)
        if declared.name == "state":
            get_storage_provider(parsed)  # refuses secrets in URLs and unknown schemes; nothing is read or written
    except StatebedError as error:
        where = f"{place.text}: {error.where}" if error.where else place.text
        raise type(error)(error.what, where=where, fix=error.fix) from error
    return parsed


def _absolute(text: str, base: Path) -> str:
    return text if _HAS_SCHEME.match(text) or text.startswith("~") else str(base.absolute() / text)
