"""From what the user writes to a sink of the job, refused where it could not work."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from statebed.checkpoint import Sink
from statebed.errors import InputError
from statebed.operators import MAIN, WindowAggregate
from statebed.sinks import FunctionSink, ParquetTableSink


def make_sink(
    sink: Any,
    *,
    operator: WindowAggregate,
    path: str | None,
    name: str | None,
    job_id: str,
    to_frame: Callable[[pa.Table], Any],
) -> Sink:
    """'parquet' with a path, a function(df, epoch), or an object that is a sink already."""
    where = f"job {job_id}, sink {name or 'without name'!r}"
    if isinstance(sink, str):
        if sink != "parquet" or not path:
            raise InputError(
                f"write({sink!r}, path={path!r}) names no sink", where=where, fix="write('parquet', path='out')"
            )
        return ParquetTableSink(
            sink_id=name or operator.operator_id, path=path, job_id=job_id, schema=operator.outputs[MAIN].columns
        )
    if path is not None:
        raise InputError("only the sink 'parquet' has a path", where=where, fix="leave path= out")
    if hasattr(sink, "publish") and hasattr(sink, "sink_id"):
        made: Sink = sink
        return made
    if callable(sink):
        return FunctionSink(sink_id=name or operator.operator_id, function=sink, to_frame=to_frame)
    raise InputError(
        f"{sink!r} is no sink",
        where=where,
        fix="write 'parquet', a function(df, epoch), or an object with publish()",
    )


def check_places(new: Sink, *, state_url: str, others: Iterable[Sink], where: str) -> None:
    """Refuse a second sink of one name, and a table whose files would mix with the state's or another table's."""
    others = list(others)
    if new.sink_id in [sink.sink_id for sink in others]:
        raise InputError(
            f"two sinks are called {new.sink_id!r}", where=where, fix="give each its own: write(..., name='...')"
        )
    if not isinstance(new, ParquetTableSink):
        return
    taken = {"the state": state_url}
    taken |= {f"the table of sink {one.sink_id}": one.url for one in others if isinstance(one, ParquetTableSink)}
    for owner, url in taken.items():
        if _nested(new.url, url):
            raise InputError(
                f"the table of sink {new.sink_id} and {owner} lie one inside the other",
                where=f"{new.url} and {url}",
                fix="give the table a folder of its own: write('parquet', path='out')",
            )


def _nested(one: str, other: str) -> bool:
    first, second = _comparable(one), _comparable(other)
    return first.startswith(second) or second.startswith(first)


def _comparable(url: str) -> str:
    """With a slash at its end; of a local folder the place that links lead to."""
    place = url if "://" in url else str(Path(url).resolve())
    return f"{place.rstrip('/')}/"
