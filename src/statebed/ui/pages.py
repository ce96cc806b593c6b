"""Handlers of pages: each reads its view and renders its template. Errors are rendered as pages, too."""

import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Any
from urllib.parse import urlencode

import jinja2
from google.protobuf import json_format
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from statebed.errors import (
    BucketMissingError,
    CredentialsError,
    EpochNotRetainedError,
    FormatError,
    InputError,
    JobNotFoundError,
    NewerFormatError,
    ObjectMissingError,
    StatebedError,
    StoreUnavailableError,
    UnknownTableError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.operator_names import OperatorNames
from statebed.operators.joins.matches import entry_warning
from statebed.present import units
from statebed.present.colours import tone_of
from statebed.ui import addresses, definitions, row_views, views, visible_text
from statebed.ui.coverage import colour, key_coverage, time_coverage
from statebed.ui.location import JobReader, StateLocation
from statebed.ui.table_views import GLOBAL_KEYED

_STATUS: tuple[tuple[type[StatebedError], int], ...] = (
    (JobNotFoundError, 404),
    (EpochNotRetainedError, 404),
    (UnknownTableError, 404),
    (BucketMissingError, 404),
    (ObjectMissingError, 404),
    (InputError, 400),
    (CredentialsError, 502),
    (StoreUnavailableError, 503),
    (NewerFormatError, 501),
    (FormatError, 500),
)
_LONGEST_RECORD = 100_000
_MAX_FILES = 200
MAX_RUNS = 100
"""Maximum number of runs on the page of exceptions."""


def clock_us() -> int:
    return time.time_ns() // 1000


class PageHandlers:
    """Page handlers of one location."""

    def __init__(self, location: StateLocation, now_us: Callable[[], int] = clock_us) -> None:
        self._location = location
        self._now_us = now_us
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("statebed.ui"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "number": units.number,
            "short": units.short,
            "size": units.size,
            "duration": units.duration,
            "instant": units.instant,
            "exact": units.exact,
            "precise": units.precise,
            "percent": units.percent,
            "rate": units.rate,
            "tone": lambda state: tone_of(state).value,
            "plain": visible_text.plain,
            "clipped": visible_text.clipped,
        }
        self._templates.globals |= {
            "address": _address,
            "plural": units.plural,
            "level_colour": colour,
            "location": location.url,
            "given": location.given,
            "version": version("statebed"),
        }

    # ---- pages -----------------------------------------------------------------------------------------------

    def jobs(self, request: Request) -> Response:  # noqa: ARG002 - the signature of pages
        """Show all jobs of the location."""
        return self._page("jobs", view=views.jobs_view(self._location, now_us=self._now_us()), live="/events")

    def job(self, request: Request) -> Response:
        """Show the overview of one job."""
        reader = self._reader(request)
        view = views.job_view(reader, now_us=self._now_us())
        return self._page("job", reader, view=view, link=_address("EPOCHS", job=reader.log.job_id))

    def epochs(self, request: Request) -> Response:
        """Show one page of the log."""
        before = _number(request.query_params.get("before"), "before")
        reader = self._reader(request)
        return self._page("epochs", reader, view=views.epochs_view(reader, before=before), is_live=before is None)

    def epoch(self, request: Request) -> Response:
        """Show one record."""
        reader = self._reader(request)
        view = views.epoch_view(reader, _epoch(request.path_params["epoch"]))
        return self._page("epoch", reader, view=view, record=_as_text(view.record), is_live=False)

    def operator(self, request: Request) -> Response:
        """Show one operator."""
        reader = self._reader(request)
        epoch = _number(request.query_params.get("epoch"), "epoch")
        view = views.operator_view(reader, request.path_params["operator"], epoch=epoch)
        described = list(definitions.described(view.entry.definition))
        kind = definitions.kind(view.entry.definition)
        return self._page("operator", reader, view=view, described=described, kind=kind, epoch=epoch, is_live=not epoch)

    def table(self, request: Request) -> Response:
        """Show one table: its files and columns at once, its rows on request."""
        reader = self._reader(request)
        epoch = _number(request.query_params.get("epoch"), "epoch")
        operator, table = self._table(request, reader, epoch)
        row_request = self._row_request(request, operator, table)
        query = [(name, value) for name, value in request.query_params.multi_items() if name != "epoch"]
        return self._page(
            "table",
            reader,
            view=operator,
            table=table,
            keys=list(zip(table.keys, [*row_request.key, *[""] * len(table.keys)], strict=False)),
            row_request=row_request,
            query=query,
            epoch=epoch,
            key_coverage=key_coverage(table.files, table.owned),
            time_coverage=time_coverage(table.files),
            largest=sorted(table.files, key=lambda file: -file.size)[:_MAX_FILES],
            is_live=not epoch and not row_request.is_filtered,
        )

    def history(self, request: Request) -> Response:
        """Show runs, lineages and savepoints."""
        reader = self._reader(request)
        return self._page("history", reader, view=views.history_view(reader, now_us=self._now_us()))

    def exceptions(self, request: Request) -> Response:
        """Show runs that did not end cleanly, newest first, with the fix for each."""
        reader = self._reader(request)
        runs = reader.runs(now_us=self._now_us(), limit=MAX_RUNS)
        return self._page("exceptions", reader, runs=[run for run in runs if run.is_problem], looked_at=len(runs))

    # ---- parts of pages, which data is read for --------------------------------------------------------------

    def rows_part(self, request: Request) -> Response:
        """Show rows of a table."""
        reader = self._reader(request)
        operator, table = self._table(request, reader, _number(request.query_params.get("epoch"), "epoch"))
        row_request = self._row_request(request, operator, table)
        query = [pair for pair in request.query_params.multi_items() if pair[0] != "page"]
        alone = [pair for pair in query if pair[0] != "stored"]
        links = {
            "here": f"{request.url.path}?{urlencode(query)}&page=",
            "results": f"{request.url.path}?{urlencode(alone)}",
            "stored": f"{request.url.path}?{urlencode([*alone, ('stored', '1')])}",
            "most": row_views.MAX_PAGES,
        }
        return self._part("rows", lambda: {"rows": row_views.sample(row_request), "row_request": row_request, **links})

    def changes_part(self, request: Request) -> Response:
        """Show the changes of an epoch to the rows of a table."""
        reader = self._reader(request)
        epoch = _number(request.query_params.get("epoch"), "epoch")
        operator, table = self._table(request, reader, epoch)
        row_request = replace(self._row_request(request, operator, table), epoch=operator.record.epoch)
        return self._part("changes", lambda: {"changed": row_views.changed(row_request, since=operator.record.base)})

    # ---- errors ----------------------------------------------------------------------------------------------

    def failed(self, request: Request, error: Exception) -> Response:
        """Show an error as a page, without details if it is unexpected."""
        if isinstance(error, HTTPException):
            known: StatebedError = InputError(str(error.detail), fix="open the list of jobs")
            status = error.status_code
        elif isinstance(error, StatebedError):
            known, status = error, status_of(error)
        else:
            known = StatebedError(
                f"the dashboard failed: {type(error).__name__}",
                fix="see the log of the dashboard, and report the error",
            )
            status = 500
        job = request.path_params.get("job", "") if "path_params" in request.scope else ""
        page = self._templates.get_template("error.html").render(error=known, status=status, job=job, live="")
        return HTMLResponse(page, status_code=status)

    # ---- inside ----------------------------------------------------------------------------------------------

    def _reader(self, request: Request) -> JobReader:
        return self._location.job(request.path_params["job"])

    def _table(self, request: Request, reader: JobReader, epoch: int | None) -> tuple[views.OperatorView, Any]:
        names = request.path_params
        return views.table_view(reader, names["operator"], names["table"], epoch=epoch)

    def _row_request(self, request: Request, operator: views.OperatorView, table: Any) -> row_views.RowRequest:
        key_texts = [request.query_params.get(f"key{number}", "") for number in range(len(table.keys))]
        return row_views.RowRequest(
            url=self._location.given,
            job=operator.record.job_id,
            operator=table.operator,
            table=table.name,
            epoch=views.shown_epoch(operator.record),
            key=tuple(key_texts) if any(key_texts) else (),
            condition=request.query_params.get("where", "").strip(),
            start=request.query_params.get("from", "").strip(),
            end=request.query_params.get("until", "").strip(),
            is_global=table.schema.kind == GLOBAL_KEYED,
            as_stored=request.query_params.get("stored") == "1",
            page=min(_number(request.query_params.get("page"), "page") or 1, row_views.MAX_PAGES),
        )

    def _page(self, name: str, reader: JobReader | None = None, *, is_live: bool = True, **values: Any) -> Response:
        if reader is not None:
            values["job"] = reader.log.job_id
            values["live"] = _address("EVENTS", job=reader.log.job_id) if is_live else ""
        record = getattr(values.get("view"), "record", None)
        names = OperatorNames.of() if record is None else OperatorNames.of(record)
        values["called"] = names
        operators = [] if record is None else [operator for operator in record.operators if not operator.retired]
        values["cautions"] = [
            (names(operator.operator_id), text)
            for operator in operators
            if (text := entry_warning(operator)) is not None
        ]
        template = self._templates.get_template(f"{name}.html")
        return HTMLResponse(template.render(page=name, now_us=self._now_us(), **values))

    def _part(self, name: str, values_of: Callable[[], dict[str, Any]]) -> Response:
        """Render a part of a page, or the error in its place."""
        try:
            values, status = values_of() | {"error": None}, 200
        except StatebedError as error:
            values, status = {"error": error}, status_of(error)
        return HTMLResponse(self._templates.get_template(f"part_{name}.html").render(**values), status_code=status)


def status_of(error: StatebedError) -> int:
    """Return the HTTP status of an error's page."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def _address(pattern: str, **names: str | int) -> str:
    return addresses.page_path(getattr(addresses, pattern), **names)


def _epoch(text: str) -> int:
    number = _number(text, "epoch")
    if not number:
        raise EpochNotRetainedError(f"there is no epoch {text[:40]!r}", fix="epoch numbers start at 1")
    return number


def _number(text: str | None, name: str) -> int | None:
    """Parse an epoch or page number of a URL."""
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text)):  # noqa: PLR2004 - digits of an epoch
        raise InputError(f"{name} must be a whole number of at least 1, got {text[:40]!r}", fix="open the list of jobs")
    return int(text)


def _as_text(record: pb.CheckpointMetadata) -> str:
    """Return the record as JSON."""
    if record.ByteSize() > _LONGEST_RECORD:
        size = units.size(record.ByteSize())
        return f"The record is too large to show ({size}); `statebed show --json` prints all of it."
    text: str = json_format.MessageToJson(record, preserving_proto_field_name=True, indent=2)
    return visible_text.plain(text)
