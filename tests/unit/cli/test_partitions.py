"""The table of Kafka partitions in `statebed show` and `statebed top`."""

import io

from rich.console import Console

from statebed.cli.render_show import partitions_table
from statebed.cli.top import _view
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.log_tail import pace_of
from statebed.inspect.sources import PartitionLag, SourceState


def source(*lags: PartitionLag) -> SourceState:
    return SourceState("rides", "", None, None, partitions=lags)


def printed(renderable: object) -> str:
    screen = Console(file=io.StringIO(), width=160)
    screen.print(renderable)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_the_partitions_that_are_furthest_behind_come_first_and_others_are_counted() -> None:
    lags = [PartitionLag("orders", number, 10, 10 + number) for number in range(60)]
    lines = printed(partitions_table([source(*lags)])).splitlines()
    assert "partitions; 10 with a smaller lag are not shown" in lines[0]
    first = next(line for line in lines if "orders" in line)
    assert first.split()[1:] == ["orders", "59", "10", "69", "59"]


def test_top_shows_the_lag_of_sources_and_partitions() -> None:
    end, latest = '{"orders":{"0":3}}', '{"orders":{"0":8}}'
    progress = pb.SourceProgress(source="rides", offsets_behind=5, end_offset=end, latest_offset=latest)
    heartbeat = pb.RunHeartbeat(sources=[progress])
    record = pb.CheckpointMetadata(job_id="x", epoch=2, sources=[pb.SourceWatermark(source="rides")])
    pace = pace_of([record], now_us=0, heartbeat=heartbeat)
    screen = Console(file=io.StringIO(), width=160)
    text = printed(_view(pace, screen, note=""))
    assert "partitions" in text
    assert [line.split()[:6] for line in text.splitlines() if "orders" in line] == [
        ["rides", "orders", "0", "3", "8", "5"]
    ]
