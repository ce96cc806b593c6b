"""Malformed messages of a Kafka source, which must be written somewhere if the job is to continue without them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from statebed.errors import InputError
from statebed.operators.forward import Forward
from statebed.spark.plan.kafka_frame import MALFORMED
from statebed.spark.plan.source_frames import Split

if TYPE_CHECKING:
    from statebed.spark.api.stream import JobStream

COLUMNS = ("reason", "topic", "partition", "offset", "timestamp", "key", "value")


@dataclass
class DeadLetters:
    """Malformed messages of one source; their stream is added to the job when it is first asked for."""

    source: str
    messages: "JobStream"
    """All messages, with the column `MALFORMED`."""
    _stream: "JobStream | None" = field(default=None, init=False)

    @property
    def is_used(self) -> bool:
        return self._stream is not None

    def stream(self) -> "JobStream":
        """Return the stream; its operator counts the messages in every record."""
        if self._stream is None:
            fields = {column: f"{MALFORMED}.{column}" for column in COLUMNS}
            is_malformed = f"{MALFORMED} is not null"
            rows = self.messages.where(is_malformed)
            rows = rows.select(*(f"{text} as {column}" for column, text in fields.items()))
            rows.job.splits[rows.edge] = Split(self.messages.edge, is_malformed, fields)
            feed = rows.input_of("input", ["topic", "partition", "offset"])
            self._stream = rows.add_operator(Forward(f"{self.source}_dead_letters", feed))
        return self._stream


def check_written(letters: Iterable[DeadLetters], *, where: str) -> None:
    """Raise InputError if malformed messages would be dropped without notice."""
    for each in letters:
        if not each.is_used:
            raise InputError(
                f"malformed='dead_letters' of the source {each.source!r} has no effect: no sink gets them",
                where=where,
                fix="write them: stream.dead_letters.write('parquet', path='dead'), or leave malformed= out",
            )
