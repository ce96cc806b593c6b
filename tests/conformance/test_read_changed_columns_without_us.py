"""P8: a table whose columns changed is read by field ids, with DuckDB, an Arrow library and the specification alone."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from statebed.checkpoint import EpochDraft, Run
from statebed.format import checkpoint_pb2 as pb
from statebed.state import (
    CompactionMode,
    DeleteKey,
    ManagerOptions,
    RecordBatch,
    TableConfig,
    TableData,
    TableManager,
    TaskInfo,
    keyed_table_config,
    operator_entry,
)
from statebed.storage import ScopedStore, get_storage_provider

OLD = pa.schema([("driver", pa.int64()), ("trips", pa.int32()), ("city", pa.string())])
NEW = pa.schema([("town", pa.string()), ("driver", pa.int64()), ("trips", pa.int64()), ("stars", pa.int8())])


def epoch(folder: Path, config: TableConfig, *batches: RecordBatch) -> pb.SubtaskReference:
    store = ScopedStore(get_storage_provider(str(folder)), "rides")
    run = Run.open(store, "rides")
    options = ManagerOptions(compaction=CompactionMode.OFF)
    task = TaskInfo("rides", "count")
    with TableManager(task, {"trips": config}, store, restore_from=run.head, options=options) as manager:
        for batch in batches:
            manager.send(TableData("trips", batch))
        stored = manager.checkpoint(run.next_epoch).result(timeout=30)
        run.commit(EpochDraft(operators=[operator_entry([stored])]))
    return stored.reference


def batch(schema: pa.Schema, rows: list[dict[str, Any]]) -> RecordBatch:
    return RecordBatch(pa.RecordBatch.from_pylist(rows, schema=schema))


def columns_of(field: pa.Field, ids: dict[int, str], defaults: dict[str, Any]) -> str:
    """One column of the present, from a file whose columns have these ids."""
    name = ids.get(int(field.metadata[b"PARQUET:field_id"]))
    if name is None:
        default = defaults.get(field.name)
        return f'{"NULL" if default is None else repr(default)} AS "{field.name}"'
    return f'"{name}" AS "{field.name}"'


def test_p8_a_table_whose_columns_changed_is_read_by_field_ids(tmp_path: Path) -> None:
    old = keyed_table_config("trips", "", ["driver"], OLD)
    new = keyed_table_config("trips", "", ["driver"], NEW, renames={"town": "city"}, defaults={"stars": 5})
    rows = [{"driver": number, "trips": number, "city": f"city {number}"} for number in (1, 2, 3)]
    epoch(tmp_path, old, batch(OLD, rows))
    reference = epoch(
        tmp_path,
        new,
        batch(NEW, [{"driver": 2, "trips": 1 << 40, "town": "Ulm", "stars": 1}]),
        RecordBatch(pa.record_batch({"driver": pa.array([3], pa.int64())}), DeleteKey()),
    )
    metadata = pb.OperatorCheckpointMetadata.FromString((tmp_path / "rides" / reference.path).read_bytes())
    table = metadata.tables["trips"]
    present = pa.ipc.read_schema(pa.py_buffer(table.config.keyed.schema))
    (row,) = pa.ipc.open_stream(table.config.keyed.defaults).read_all().to_pylist()
    connection = duckdb.connect()
    queries = []
    for file in table.subtasks[0].files:
        path = tmp_path / "rides" / file.path
        found = connection.execute("SELECT field_id, name FROM parquet_schema(?)", [str(path)]).fetchall()
        ids = {number: name for number, name in found if number is not None}
        columns = ", ".join(columns_of(field, ids, row) for field in present)
        queries.append(f"SELECT {columns}, _seq, _deleted FROM read_parquet('{path}')")
    union = " UNION ALL BY NAME ".join(queries)
    newest = f"SELECT * FROM ({union}) QUALIFY row_number() OVER (PARTITION BY driver ORDER BY _seq DESC) = 1"
    state = connection.execute(f"SELECT * EXCLUDE (_seq, _deleted) FROM ({newest}) WHERE NOT _deleted ORDER BY driver")
    assert len(queries) == 2
    assert state.fetchall() == [("city 1", 1, 1, 5), ("Ulm", 2, 1 << 40, 1)]
