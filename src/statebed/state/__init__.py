"""State of operators: tables, their live files and rows, and how rows are read and written."""

from statebed.arrays.key_hash import hash_key
from statebed.state.codec import Codec
from statebed.state.config import (
    CommitPhases,
    TableConfig,
    TimeToLiveClock,
    global_table_config,
    global_table_config_with_version,
    keyed_table_config,
    multiset_table_config,
    timestamp_table_config,
)
from statebed.state.global_keyed.table import GlobalKeyedTable, GlobalKeyedView
from statebed.state.host_cache import HostCache
from statebed.state.keyed.checkpoint import KeyedCheckpoint
from statebed.state.keyed.groups import ElementPage
from statebed.state.keyed.merge_functions import ColumnMerges, Merge, merge_columns
from statebed.state.keyed.table import KeyedTable
from statebed.state.keyed.view import KeyedView
from statebed.state.live.files import LiveFiles
from statebed.state.manager.compaction import CompactionReport
from statebed.state.manager.options import CompactionMode, ManagerOptions
from statebed.state.manager.restore_base import operator_entry
from statebed.state.manager.table_manager import TableManager
from statebed.state.memory.controller import MemoryController, MemorySnapshot, Purpose, Reservation
from statebed.state.memory.sizes import compacted, held_bytes
from statebed.state.messages import (
    Checkpoint,
    CheckpointCompleted,
    CheckpointMessage,
    CommitData,
    Compaction,
    DataOperation,
    DeleteKey,
    DeleteTimeKey,
    DeleteTimeRange,
    DeleteValue,
    Insert,
    KeyedData,
    RecordBatch,
    StateMessage,
    TableData,
    TaskInfo,
)
from statebed.state.metrics import CheckpointSpans, CompactionMetrics, ManagerMetrics, TableStatistics
from statebed.state.stored_edit import StoredEdit
from statebed.state.tiers.segments import Segment
from statebed.state.tiers.selection import Selection
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.spill_folder import SpillFolder
from statebed.state.tiers.tier import Tier
from statebed.state.time_keyed.append_buffer import AppendBuffer
from statebed.state.time_keyed.row_merge import Combine
from statebed.state.time_keyed.table import MAX_FILES, TimeKeyedTable
from statebed.state.time_keyed.view import TimeKeyedView
from statebed.state.upload import Upload
from statebed.state.value_versions import MigratableState

__all__ = [
    "MAX_FILES",
    "AppendBuffer",
    "Checkpoint",
    "CheckpointCompleted",
    "CheckpointMessage",
    "CheckpointSpans",
    "Codec",
    "ColumnMerges",
    "Combine",
    "CommitData",
    "CommitPhases",
    "Compaction",
    "CompactionMetrics",
    "CompactionMode",
    "CompactionReport",
    "DataOperation",
    "DeleteKey",
    "DeleteTimeKey",
    "DeleteTimeRange",
    "DeleteValue",
    "ElementPage",
    "GlobalKeyedTable",
    "GlobalKeyedView",
    "HostCache",
    "Insert",
    "KeyedCheckpoint",
    "KeyedData",
    "KeyedTable",
    "KeyedView",
    "LiveFiles",
    "ManagerMetrics",
    "ManagerOptions",
    "MemoryController",
    "MemorySnapshot",
    "Merge",
    "MigratableState",
    "Purpose",
    "RecordBatch",
    "Reservation",
    "Segment",
    "Selection",
    "SpillFolder",
    "StateMessage",
    "StoredEdit",
    "TableConfig",
    "TableData",
    "TableManager",
    "TableStatistics",
    "TaskInfo",
    "Tier",
    "Tiers",
    "TimeKeyedTable",
    "TimeKeyedView",
    "TimeToLiveClock",
    "Upload",
    "compacted",
    "global_table_config",
    "global_table_config_with_version",
    "hash_key",
    "held_bytes",
    "keyed_table_config",
    "merge_columns",
    "multiset_table_config",
    "operator_entry",
    "timestamp_table_config",
]
