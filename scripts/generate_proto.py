"""Generate the protobuf code from its schema; the result is committed, and a test regenerates it and compares.

python scripts/generate_proto.py [TARGET_FOLDER]
"""

import os
import sys
from pathlib import Path

from grpc_tools import protoc

SOURCE = Path(__file__).resolve().parent.parent / "src"
SCHEMA = "statebed/format/checkpoint.proto"


def generate(target: Path) -> None:
    # The plugin for type stubs is a program of the same environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    target.mkdir(parents=True, exist_ok=True)
    arguments = [f"--proto_path={SOURCE}", f"--python_out={target}", f"--mypy_out=quiet:{target}", SCHEMA]
    if protoc.main(["protoc", *arguments]) != 0:
        raise SystemExit("protoc failed; its message stands above")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
