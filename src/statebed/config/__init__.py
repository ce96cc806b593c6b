"""Settings: declared once, set by keyword, Spark configuration, environment variable or statebed.toml."""

from statebed.config.resolution import FILE_NAME, find_file, resolve, variable_of
from statebed.config.settings import DECLARATIONS, Declaration, SettingOrigin, Settings, SettingSource

__all__ = [
    "DECLARATIONS",
    "FILE_NAME",
    "Declaration",
    "SettingOrigin",
    "SettingSource",
    "Settings",
    "find_file",
    "resolve",
    "variable_of",
]
