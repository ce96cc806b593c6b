"""The cause of an error travels with it to another process, bounded, with the user's frames alone."""

import linecache
import pickle
import traceback
from typing import Any

from statebed.errors import InputError, ProcessError, RemoteTraceback, error_text, raised_at


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def failed(source: str, name: str = "user_code.py", **names: Any) -> BaseException:
    """Return the exception of a piece of code in a file of this name."""
    try:
        exec(compile(source, name, "exec"), names)  # noqa: S102 - code of a file that does not exist
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return error
    raise AssertionError


def travelled(cause: BaseException) -> ProcessError:
    error = ProcessError("on_rows failed", where="op", fix="mend it")
    error.__cause__ = cause
    found: ProcessError = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    return found


def test_the_traceback_is_printed_above_the_error_and_pickles_again() -> None:
    error = travelled(failed("def check(n):\n    raise ValueError('three')\ncheck(3)"))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    for one in (error, again):
        printed = "".join(traceback.format_exception(one))
        assert printed.index('File "user_code.py", line 2, in check') < printed.index("ValueError: three")
        assert printed.index("ValueError: three") < printed.index("[PROCESS] on_rows failed")
        assert (one.what, one.where, one.fix) == ("on_rows failed", "op", "mend it")


def test_our_own_frames_above_the_users_are_left_out() -> None:
    import pyarrow as pa  # noqa: PLC0415 - as above

    from statebed.expressions import bind  # noqa: PLC0415 - only to have frames of ours

    cause = failed("bind('nope', schema)", bind=bind, schema=pa.schema([("n", pa.int64())]))
    assert isinstance(cause, InputError)
    shown = RemoteTraceback.of(cause)
    assert shown.frames[0][0].endswith("test_remote_traceback.py")
    assert "user_code.py" in [frame[0] for frame in shown.frames]
    assert raised_at(cause) == "user_code.py, line 1, in <module>"


def test_source_that_only_the_driver_has_is_shown_there() -> None:
    error = travelled(failed("x = 1\nraise KeyError('cell')", "<cell 7>"))
    assert "raise KeyError" not in str(error.__cause__)
    linecache.cache["<cell 7>"] = (30, None, ["x = 1\n", "raise KeyError('cell')\n"], "<cell 7>")
    try:
        assert "    raise KeyError('cell')" in str(error.__cause__)
    finally:
        del linecache.cache["<cell 7>"]


def test_it_stays_small_whatever_the_user_raises() -> None:
    deep = failed("def down(n):\n    return down(n - 1) if n else 1 / 0\ndown(500)")
    long = failed("raise ValueError('x' * 10_000_000)")
    chained = failed("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('y' * 10_000_000) from e")
    for cause in (deep, long, chained):
        assert len(pickle.dumps(travelled(cause))) < 60_000
    assert "ZeroDivisionError" in str(travelled(chained).__cause__)
    assert len(error_text(long)) < 10_000


def test_an_exception_without_a_text_is_named() -> None:
    cause = failed("raise error", error=UnprintableError())
    assert error_text(cause) == "UnprintableError: <str() raised RuntimeError>"
    assert "UnprintableError" in str(travelled(cause).__cause__)
