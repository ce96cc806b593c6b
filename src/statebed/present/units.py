"""Formats of numbers, sizes, durations, rates and times for people: the same in commands, pages and notebooks.

Sizes use steps of 1,000 (kB, MB), durations use at most two units, times are UTC. Values of settings are shown as they
can be written in a configuration: sizes in steps of 1,024 (`binary_size`), durations as `quantities.duration_text`.
"""

import datetime as dt
import math

NOTHING = "-"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LEAP = 1000
_SECOND = 1_000_000
_BINARY_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_PARTS = (("d", 86_400), ("h", 3_600), ("min", 60))


def number(count: float | None) -> str:
    """Format a count with thousands separators.

    >>> number(1234567)
    '1,234,567'
    """
    return NOTHING if count is None else f"{count:,.0f}"


def short(count: float | None) -> str:
    """Format a count with about three digits.

    >>> [short(n) for n in (7, 0.25, 999, 1_250, 48_600_000)]
    ['7', '0.25', '999', '1.25 k', '48.6 M']
    """
    if count is None:
        return NOTHING
    value, units = float(count), ("", " k", " M", " G", " T")
    step = 0
    while abs(value) >= _LEAP - 0.5 and step < len(units) - 1:
        value /= _LEAP
        step += 1
    return f"{_three_digits(value)}{units[step]}"


def size(count: float | None) -> str:
    """Format a number of bytes.

    >>> [size(n) for n in (0, 999, 1_500, 25_600_000)]
    ['0 B', '999 B', '1.5 kB', '25.6 MB']
    """
    if count is None:
        return NOTHING
    text = short(count)
    return f"{text}B" if " " in text else f"{text} B"


def binary_size(nbytes: int) -> str:
    """Format the size of a setting, such as a memory budget.

    >>> binary_size(1536 << 20), binary_size(2 << 30)
    ('1.5 GiB', '2 GiB')
    """
    for unit, name in _BINARY_UNITS:
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}" if nbytes < _LEAP * unit else f"{nbytes / unit:.0f} {name}"
    return f"{nbytes} bytes"


def duration(micros: float | None) -> str:
    """Format a duration in its largest one or two units.

    >>> [duration(n) for n in (0, 850, 12_300, 1_250_000, 61_000_000, 90_000_000_000)]
    ['0 s', '850 µs', '12.3 ms', '1.25 s', '1 min 1 s', '1 d 1 h']
    """
    if micros is None:
        return NOTHING
    if micros < 0:
        return f"-{duration(-micros)}"
    if micros < _LEAP:
        return f"{micros:.0f} µs" if micros else "0 s"
    if micros < _SECOND:
        return f"{_three_digits(micros / _LEAP)} ms"
    seconds = micros / _SECOND
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{_three_digits(seconds)} s"
    whole = int(seconds)
    texts: list[str] = []
    for unit, length in (*_PARTS, ("s", 1)):
        count, whole = divmod(whole, length)
        if count or texts:
            texts.append(f"{count} {unit}" if count else "")
    return " ".join(text for text in texts[:2] if text)


def instant(micros: int | None) -> str:
    """Format a time in UTC to the second, or as its number if it is outside the calendar.

    >>> instant(1_767_268_800_000_000)
    '2026-01-01 12:00:00'
    """
    moment = _moment(micros)
    if moment is None:
        return NOTHING if micros is None else f"{micros} µs"
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def precise(micros: int | None) -> str:
    """Format a time in UTC to the millisecond.

    >>> precise(0)
    '1970-01-01 00:00:00.000'
    """
    moment = _moment(micros)
    if moment is None:
        return instant(micros)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def exact(micros: int | None) -> str:
    """Format a time to the microsecond, as ISO 8601."""
    moment = _moment(micros)
    if moment is None:
        return instant(micros)
    return moment.isoformat().replace("+00:00", "Z")


def rate(per_second: float | None) -> str:
    """Format a number of rows per second.

    >>> rate(1_250.0)
    '1.25 k/s'
    """
    return NOTHING if per_second is None else f"{short(per_second)}/s"


def age(micros: int | None, *, now_us: int) -> str:
    """Format the time since `micros` in whole seconds; a time in the future is 0 s, because clocks differ.

    >>> age(0, now_us=90_500_000)
    '1 min 30 s'
    """
    if micros is None:
        return NOTHING
    passed = max(0, now_us - micros)
    return duration(passed - passed % _SECOND)


def ago(micros: int | None, *, now_us: int) -> str:
    """Format the time since `micros` with "ago"; clocks of two machines may differ slightly.

    >>> ago(0, now_us=90_000_000)
    '1 min 30 s ago'
    """
    if micros is None:
        return NOTHING
    passed = now_us - micros
    if passed < _SECOND:
        return "just now" if passed > -60 * _SECOND else f"in {duration(-passed)}"
    return f"{duration(passed - passed % _SECOND)} ago"


def percent(share: float) -> str:
    """Format a fraction as a percentage.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{_three_digits(share * 100)} %"


def plural(count: int, singular: str, many: str = "") -> str:
    """Format a count with its noun in the singular or plural.

    >>> plural(1, "file"), plural(2, "file")
    ('1 file', '2 files')
    """
    return f"{count:,} {singular if count == 1 else many or singular + 's'}"


def _moment(micros: int | None) -> dt.datetime | None:
    if micros is None:
        return None
    try:
        return _EPOCH + dt.timedelta(microseconds=micros)
    except OverflowError:
        return None


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if abs(value) < _LEAP else 0
    text = f"{value:.{min(digits, 3)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
