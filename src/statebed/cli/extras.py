"""Check for optional packages that only some commands need, with the install command in the error."""

import importlib.util

from statebed.errors import MissingDependencyError

PACKAGES_OF_EXTRA = {
    "spark": ("pyspark", "pandas"),
    "cli": ("typer", "rich"),
    "duckdb": ("duckdb",),
    "polars": ("polars",),
    "postgres": ("psycopg",),
    "ui": ("starlette", "uvicorn", "jinja2"),
}


def require(*extras: str) -> None:
    """Raise MissingDependencyError unless all packages of these extras are installed."""
    lacking = [extra for extra in extras if not all(map(is_installed, PACKAGES_OF_EXTRA[extra]))]
    if lacking:
        names = [name for extra in lacking for name in PACKAGES_OF_EXTRA[extra] if not is_installed(name)]
        raise MissingDependencyError(
            f"this command needs {', '.join(names)}", fix=f"pip install 'statebed[{','.join(lacking)}]'"
        )


def is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
