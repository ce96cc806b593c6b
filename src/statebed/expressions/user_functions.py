"""Python functions that expressions call by name.

A function takes and returns Arrow arrays. An `async def` function takes and returns single values instead: it is called
once per distinct combination of operands of a batch, for at most `concurrency` of them at a time.
"""

import asyncio
import inspect
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, overload

import pyarrow as pa

from statebed.arrays.columns import one_chunk
from statebed.arrays.exact_values import exact_array
from statebed.errors import ExpressionError, InputError, StatebedError, error_text, raised_at
from statebed.expressions.distinct_values import distinct_rows
from statebed.expressions.list_parts import taken
from statebed.expressions.sites import Builder, Site, of_many
from statebed.expressions.terms import Applied, Datum, Term, arrays
from statebed.expressions.type_text import type_of
from statebed.quantities import Duration, parse_duration

_SECOND = 1_000_000


@dataclass(frozen=True, eq=False)
class UserFunction:
    """A Python function with a result type. Calling it calls the Python function."""

    name: str
    function: Callable[..., Any]
    returns: pa.DataType
    concurrency: int = 16
    retries: int = 0
    backoff_s: float = 0.1
    timeout_s: float | None = None

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # A decorated function is result under its own name, as functions are.
        module, name = getattr(self.function, "__module__", None), getattr(self.function, "__qualname__", "")
        if module is not None and _attribute(module, name) is self:
            return _found, (module, name)
        values = self.function, self.returns, self.concurrency, self.retries, self.backoff_s, self.timeout_s
        return UserFunction, (self.name, *values)

    def evaluate(self, *columns: pa.Array) -> pa.Array:
        """Return one value for each row."""
        try:
            result = self._awaited(columns) if self.is_async else self.function(*columns)
        except StatebedError:
            raise
        except (Exception, SystemExit) as error:
            raise self._failed(error) from error
        if not isinstance(result, pa.Array | pa.ChunkedArray):
            raise InputError(
                f"the function {self.name} returned a {type(result).__name__}, not an Arrow array",
                fix="return a pa.Array",
            )
        if len(result) != len(columns[0]):
            raise InputError(
                f"the function {self.name} returned {len(result)} values for {len(columns[0])} rows",
                fix="return one value for each row",
            )
        if result.type != self.returns:
            raise InputError(
                f"the function {self.name} returned {result.type}, but declares {self.returns}",
                fix="cast the result, or declare another type in returns=",
            )
        return one_chunk(result)

    def _failed(self, error: BaseException, arguments: tuple[Any, ...] | None = None) -> ExpressionError:
        for_row = "" if arguments is None else f" for ({', '.join(map(repr, arguments))})"
        return ExpressionError(
            f"the function {self.name} raised {error_text(error)}{for_row}",
            where=raised_at(error),
            fix="see the traceback of its cause",
        )

    def _awaited(self, columns: tuple[pa.Array, ...]) -> pa.Array:
        values, numbers, known = distinct_rows(columns, with_nulls=True)
        argument_rows = list(zip(*(column.to_pylist() for column in values), strict=True))
        results = _in_own_loop(partial(self._all, argument_rows)) if argument_rows else []
        return taken(self._array(results), numbers, valid=known) if argument_rows else pa.nulls(0, self.returns)

    def _array(self, results: list[Any]) -> pa.Array:
        try:
            return exact_array(results, self.returns)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"the function {self.name} returned a value that is no {self.returns}: {error}",
                fix="return values of that type, or declare another type in returns=",
            ) from error

    async def _all(self, argument_rows: list[tuple[Any, ...]]) -> list[Any]:
        """Call the function for all operands, with at most `concurrency` calls at a time; results are in order."""
        results: list[Any] = [None] * len(argument_rows)
        waiting = iter(enumerate(argument_rows))
        workers = [
            asyncio.create_task(self._work(waiting, results)) for _ in range(min(self.concurrency, len(argument_rows)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
        return results

    async def _work(self, waiting: Iterator[tuple[int, tuple[Any, ...]]], results: list[Any]) -> None:
        for place, operands in waiting:
            results[place] = await self._tried(operands)

    async def _tried(self, operands: tuple[Any, ...]) -> Any:
        for attempt in range(self.retries + 1):
            try:
                return await asyncio.wait_for(self.function(*operands), self.timeout_s)
            except (Exception, SystemExit) as error:
                if attempt == self.retries:
                    raise self._failed(error, operands) from error
            await asyncio.sleep(self.backoff_s * 2**attempt)
        raise AssertionError


@overload
def udf(
    function: Callable[..., Any],
    *,
    returns: str | pa.DataType,
    name: str | None = None,
    concurrency: int = 16,
    retries: int = 0,
    backoff: Duration = "100 milliseconds",
    timeout: Duration | None = None,
) -> UserFunction: ...


@overload
def udf(
    *,
    returns: str | pa.DataType,
    name: str | None = None,
    concurrency: int = 16,
    retries: int = 0,
    backoff: Duration = "100 milliseconds",
    timeout: Duration | None = None,
) -> Callable[[Callable[..., Any]], UserFunction]: ...


def udf(
    function: Callable[..., Any] | None = None,
    *,
    returns: str | pa.DataType,
    name: str | None = None,
    concurrency: int = 16,
    retries: int = 0,
    backoff: Duration = "100 milliseconds",
    timeout: Duration | None = None,
) -> UserFunction | Callable[[Callable[..., Any]], UserFunction]:
    """Declare a function that expressions can call: `@sb.udf(returns="double")`.

    It takes and returns Arrow arrays, and must give the same result for the same operands, because a retried epoch must
    give the same rows. An `async def` function takes and returns single values (None for null). At most
    `concurrency` calls run at a time. A call that fails, or takes longer than `timeout`, is repeated up to `retries`
    times, after a `backoff` that doubles each time.

    >>> @sb.udf(returns="double")
    ... def with_tip(fare, tip):
    ...     return pc.add(fare, tip)
    """
    if function is None:
        return partial(
            udf,
            returns=returns,
            name=name,
            concurrency=concurrency,
            retries=retries,
            backoff=backoff,
            timeout=timeout,
        )
    shown = str(name or getattr(function, "__name__", type(function).__name__))
    where = f"function {shown}"
    if not callable(function):
        raise InputError(f"{function!r} is not a function", where=where, fix="pass a function of Arrow arrays")
    if concurrency < 1 or retries < 0:
        raise InputError(
            f"`concurrency` must be at least 1 and `retries` at least 0, got {concurrency} and {retries}", where=where
        )
    return UserFunction(
        shown.lower(),
        function,
        type_of(returns, where=where),
        concurrency,
        retries,
        parse_duration(backoff) / _SECOND,
        None if timeout is None else parse_duration(timeout) / _SECOND,
    )


def named_function(name: str, function: Callable[..., Any], returns: str | pa.DataType | None) -> UserFunction:
    """Return a function under the name by which expressions call it."""
    where = f"function {name}"
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"{name!r} is not a name that an expression can call", where=where, fix="use letters and _")
    if isinstance(function, UserFunction):
        named = function if returns is None else replace(function, returns=type_of(returns, where=where))
    elif returns is None:
        raise InputError("the type of the result is missing", where=where, fix="give returns='double'")
    elif not callable(function):
        raise InputError(f"{function!r} is not a function", where=where, fix="pass a function of Arrow arrays")
    else:
        named = udf(function, returns=returns, name=name)
    try:
        pickle.dumps(named)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"the function cannot be sent to other processes: {error}",
            where=where,
            fix="define it at the top level of a module",
        ) from error
    return named


def builder_of(function: UserFunction) -> Builder:
    """Return a builder of calls of a user's function."""

    def build(site: Site) -> Term:
        operands = site.operands
        columns = frozenset().union(*(operand.columns for operand in operands))
        kernel = partial(_evaluated, function)
        # Never computed during binding, because the function may have effects or need a service.
        return Applied(site.place, function.returns, True, True, columns, kernel, operands)

    return of_many(build)


def _evaluated(function: UserFunction, *data: Datum) -> pa.Array:
    return function.evaluate(*arrays(*data))


def _attribute(module: str, name: str) -> Any:
    """Return what a module has under a name; None if there is nothing."""
    try:
        value: Any = import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError):
        return None
    return value


def _found(module: str, name: str) -> Any:
    """Return a decorated function by its module and name, in the process that evaluates it."""
    value = _attribute(module, name)
    if value is None:
        raise InputError(
            f"the function {name} of the module {module} cannot be imported by {sys.executable}",
            fix=f"install {module} where the tasks run, or ship it with spark-submit --py-files",
        )
    return value


def _in_own_loop(make: Callable[[], Any]) -> Any:
    """Run a coroutine in an event loop of its own, in a thread if this thread already runs one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(make()))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name="statebed-udf")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
