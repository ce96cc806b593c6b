"""Behaviour in time of operators that emit the results of a window when the watermark closes it."""

from statebed.operators.operator import OperatorBase
from statebed.operators.window_definition import Window


class WindowOperator(OperatorBase):
    """An operator over windows without allowed lateness; a result has the last microsecond of its window."""

    window: Window

    def output_watermark(self, watermark_us: int) -> int:
        """Return the end of the last window for which all results have been emitted."""
        return self.window.complete_until(watermark_us)

    def is_due(self, before_us: int | None, after_us: int) -> bool:
        """Return whether a window closes."""
        return self.window.closes_between(before_us, after_us)

    def closing_watermark(self, event_time_us: int) -> int:
        """See `Operator.closing_watermark`."""
        return self.window.newest_end(event_time_us)

    def latest_result(self, event_time_us: int) -> int:
        """See `Operator.latest_result`."""
        return self.window.newest_end(event_time_us) - 1
