"""The committed protobuf code is what its schema generates."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_generating_the_protobuf_code_again_changes_nothing(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "generate_proto.py"), str(tmp_path)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    for name in ("checkpoint_pb2.py", "checkpoint_pb2.pyi"):
        generated = (tmp_path / "statebed" / "format" / name).read_bytes()
        committed = (ROOT / "src" / "statebed" / "format" / name).read_bytes()
        assert generated == committed, f"{name} differs: run make proto"
