"""Definition of a section of the page of error messages."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """Mistakes of one part of the API, and the names that they use."""

    title: str
    about: str
    mistakes: tuple[str, ...]
