"""URL paths of all pages. Names from outside are percent-encoded."""

from urllib.parse import quote

JOB = "/jobs/{job}"
EPOCHS = f"{JOB}/epochs"
EPOCH = f"{EPOCHS}/{{epoch}}"
OPERATORS = f"{JOB}/operators"
OPERATOR = f"{OPERATORS}/{{operator}}"
TABLE = f"{OPERATOR}/tables/{{table}}"
ROWS = f"{TABLE}/rows"
CHANGES = f"{TABLE}/changes"
HISTORY = f"{JOB}/history"
EXCEPTIONS = f"{JOB}/exceptions"
EVENTS = f"{JOB}/events"


def page_path(pattern: str, **names: str | int) -> str:
    """Return the path of a page.

    >>> page_path(EPOCH, job="rides", epoch=7)
    '/jobs/rides/epochs/7'
    """
    return pattern.format(**{name: quote(str(value), safe="") for name, value in names.items()})
