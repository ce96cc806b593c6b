"""Settings: declared once, given by keyword, Spark's configuration, environment or statebed.toml."""

from statebed.config.kinds import show_size
from statebed.config.resolve import FILE_NAME, find_file, resolve, variable_of
from statebed.config.settings import DECLARATIONS, Declaration, Place, Settings, Source

__all__ = [
    "DECLARATIONS",
    "FILE_NAME",
    "Declaration",
    "Place",
    "Settings",
    "Source",
    "find_file",
    "resolve",
    "show_size",
    "variable_of",
]
