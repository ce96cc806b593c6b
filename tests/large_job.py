"""A job of 10,000 epochs with 5,000 data files, as its objects would be: records and metadata, no rows."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from statebed.checkpoint.objects import encode_subtask
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.schema import assign_field_ids, schema_to_bytes
from statebed.format.sealed import seal

EPOCHS = 10_000
FILES = 5_000
SUBTASKS = 8
SECOND = 1_000_000
NOON_US = 1_767_268_800 * SECOND
SPACE = 1 << 64


Put = Callable[[str, bytes], None]


def write_file(folder: Path) -> Put:
    """Plain files, without waiting for the disk as a store does."""

    def put(path: str, data: bytes) -> None:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    return put


def write_large_job(put: Put, job: str = "large", *, epochs: int = EPOCHS, files: int = FILES) -> None:
    """Every record has figures and names the same metadata, as if nothing but counts had changed."""
    references = []
    for index in range(SUBTASKS):
        reference, data = encode_subtask(_subtask(job, index, files // SUBTASKS))
        put(f"{job}/{reference.path}", data)
        references.append(reference)

    def write(epoch: int) -> None:
        put(f"{job}/{names.record(epoch)}", seal(_record(job, epoch, references)))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, range(1, epochs + 1)))


def _subtask(job: str, index: int, files: int) -> pb.OperatorCheckpointMetadata:
    schema = schema_to_bytes(assign_field_ids(pa.schema([("driver", pa.string()), ("trips", pa.int64())])))
    owned = pb.HashRange(first=SPACE // SUBTASKS * index, last=SPACE // SUBTASKS * (index + 1) - 1)
    width = SPACE // SUBTASKS // 20
    entries = [
        pb.FileEntry(
            path=names.data_file(number + 1, "per_driver", "totals", index, f"{index:016x}{number:016x}"),
            size=250_000,
            rows=9_000,
            owned=owned,
            min_key_hash=owned.first + width * (number % 19),
            max_key_hash=owned.first + width * (number % 19 + 1),
            level=number % 3,
            chunk_crc32c=[1, 2, 3, 4],
        )
        for number in range(files)
    ]
    table = pb.TableCheckpointMetadata(
        config=pb.TableConfig(name="totals", keyed=pb.KeyedTableConfig(schema=schema, key_columns=["driver"])),
        subtasks={index: pb.TableSubtaskCheckpointMetadata(subtask_index=index, owned=owned, files=entries)},
    )
    return pb.OperatorCheckpointMetadata(
        job_id=job, operator_id="per_driver", epoch=1, subtask_index=index, owned=owned, tables={"totals": table}
    )


def _record(job: str, epoch: int, references: list[pb.SubtaskReference]) -> pb.CheckpointMetadata:
    finish = NOON_US + epoch * SECOND
    totals = pb.TableFigures(
        table="totals", rows=45_000_000, store_bytes=1_250_000_000, files=FILES, memory_bytes=7_000_000
    )
    return pb.CheckpointMetadata(
        job_id=job,
        epoch=epoch,
        kind=pb.RUN_START if epoch == 1 else pb.EPOCH,
        previous=epoch - 1,
        base=epoch - 1 if epoch > 2 else 0,
        lineage="000000000001",
        run=1,
        nonce=f"n{epoch}",
        start_time_us=finish - 800_000,
        finish_time_us=finish,
        epoch_time_us=finish,
        status=pb.COMPLETE,
        min_epoch=1,
        parallelism=SUBTASKS,
        operators=[
            pb.OperatorEntry(
                operator_id="per_driver",
                parallelism=SUBTASKS,
                subtasks=references,
                rows_in=1000,
                inputs=[pb.InputWatermark(input="input", watermark_us=finish - 5 * SECOND, origins=["rides"])],
            )
        ],
        sources=[pb.SourceWatermark(source="rides", watermark_us=finish - 5 * SECOND, max_event_time_us=finish)],
        figures=pb.EpochFigures(
            phases_us={"planning": 50_000, "read": 200_000, "merge": 300_000, "write": 100_000},
            previous_phases_us={"commit": 20_000, "publish": 10_000},
            operators=[pb.OperatorFigures(operator_id="per_driver", tables=[totals])],
            hosts=[pb.HostFigures(host="h", budget_bytes=10**9, peak_bytes=4 * 10**8, holders={"totals": 4 * 10**8})],
        ),
    )
