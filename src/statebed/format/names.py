"""Object names: the only module that formats or parses them.

All names are relative to the job's folder, whose name is `job_folder`. Numbers of epochs and runs are padded to twelve
digits, so that the order of names is the order of numbers.
"""

import hashlib
import re
import unicodedata

from statebed.errors import InvalidNameError

EPOCH_DIGITS = 12
MAX_NAME_LENGTH = 128
CHECKPOINTS = "checkpoints"
COMPACTIONS = "compactions"
REQUESTS = "requests"
RUNS = "runs"
SPARK = "spark"

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", re.IGNORECASE | re.ASCII)
_OTHER_CHARACTERS = re.compile(r"[^a-z0-9_]+", re.IGNORECASE)
_STORED_DIGITS = 8
_EPOCH_FOLDER = re.compile(rf"{CHECKPOINTS}/([0-9]{{{EPOCH_DIGITS}}})(?:/.*)?", re.DOTALL)
_COMPACTED = re.compile(rf"{COMPACTIONS}/([0-9]{{{EPOCH_DIGITS}}})(?:/.*)?", re.DOTALL)
_RUN = re.compile(rf"{RUNS}/([0-9]{{{EPOCH_DIGITS}}})(?:/.*)?", re.DOTALL)
_DIGEST = re.compile(r"(?:.*[/.])([0-9a-f]{32})\.(?:parquet|metadata|log)", re.DOTALL)
_PUBLISHED = re.compile(rf"{CHECKPOINTS}/[0-9]{{{EPOCH_DIGITS}}}/published-([^/]+)")


def check_name(kind: str, name: str) -> str:
    """Return `name`; raise InvalidNameError if it cannot be part of an object name.

    >>> check_name("job", "rides")
    'rides'
    """
    fix = (
        f"use 1 to {MAX_NAME_LENGTH} of: letters a-z and A-Z, digits, '_', and inside the name '-' and '.', "
        "for example 'rides_per_minute'"
    )
    if not isinstance(name, str) or not name:
        raise InvalidNameError(f"the {kind} name is empty", fix=fix)
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidNameError(
            f"the {kind} name is too long: {len(name)} characters", where=f"{kind} {name[:40]!r}...", fix=fix
        )
    if ".." in name or not _NAME.fullmatch(name):
        raise InvalidNameError(f"the {kind} name {name!r} has characters that object names cannot contain", fix=fix)
    return name


def stored_name(name: str) -> str:
    """Return a form of any name that can be part of an object name: the name itself if it can, else its ASCII letters
    and a digest, which keeps different names apart.

    >>> stored_name("rides"), stored_name("Überweisungen")
    ('rides', 'Uberweisungen_4d4c000f')
    """
    if len(name) <= MAX_NAME_LENGTH and ".." not in name and _NAME.fullmatch(name):
        return name
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    digest = hashlib.sha256(name.encode()).hexdigest()[:_STORED_DIGITS]
    letters = _OTHER_CHARACTERS.sub("_", plain).strip("_")[: MAX_NAME_LENGTH // 2]
    return f"{letters}_{digest}" if letters else f"name_{digest}"


def job_folder(job_id: str) -> str:
    return check_name("job", job_id)


def epoch_folder(epoch: int) -> str:
    return f"{CHECKPOINTS}/{_number(epoch)}"


def record(epoch: int) -> str:
    return f"{epoch_folder(epoch)}/checkpoint.metadata"


def operator_metadata(epoch: int, operator_id: str, subtask_index: int, digest: str) -> str:
    stem = f"{check_part('operator', operator_id)}-{_index(subtask_index)}"
    return f"{epoch_folder(epoch)}/operator-{stem}.{digest}.metadata"


def data_file(epoch: int, operator_id: str, table: str, subtask_index: int, digest: str) -> str:
    stem = f"{check_part('operator', operator_id)}-{check_part('table', table)}-{_index(subtask_index)}"
    return f"{epoch_folder(epoch)}/data/{stem}.{digest}.parquet"


def outbox_file(epoch: int, operator_id: str, stream: str, subtask_index: int, digest: str) -> str:
    stem = f"{check_part('operator', operator_id)}-{_index(subtask_index)}"
    if stream:
        stem = f"{check_part('operator', operator_id)}-{check_part('stream', stream)}-{_index(subtask_index)}"
    return f"{epoch_folder(epoch)}/outbox/{stem}.{digest}.parquet"


def source_log(epoch: int, digest: str) -> str:
    return f"{epoch_folder(epoch)}/source/{digest}.log"


def published(epoch: int, sink_id: str) -> str:
    return f"{epoch_folder(epoch)}/published-{check_part('sink', sink_id)}"


def compacted_file(run: int, operator_id: str, table: str, subtask_index: int, digest: str) -> str:
    stem = f"{check_part('operator', operator_id)}-{check_part('table', table)}-{_index(subtask_index)}"
    return f"{COMPACTIONS}/{_number(run)}/{stem}.{digest}.parquet"


def savepoint(epoch: int, name: str, digest: str) -> str:
    """Return the name of the copy of a pinned record, in the folder of the epoch that introduces the pin."""
    return f"{epoch_folder(epoch)}/savepoint-{check_part('savepoint', name)}.{digest}.metadata"


def request(request_id: str) -> str:
    return f"{REQUESTS}/{check_part('request', request_id)}"


def answer(request_id: str) -> str:
    return f"{REQUESTS}/{check_part('request', request_id)}.answer"


def run_folder(run: int) -> str:
    return f"{RUNS}/{_number(run)}"


def run_end(run: int) -> str:
    return f"{run_folder(run)}/end.metadata"


def run_heartbeat(run: int) -> str:
    return f"{run_folder(run)}/heartbeat.metadata"


def spark_folder(run: int) -> str:
    return f"{SPARK}/{_number(run)}"


def epoch_of(path: str) -> int | None:
    """Return the epoch whose folder contains the object (or is `path` itself), or None outside `checkpoints/`."""
    match = _EPOCH_FOLDER.fullmatch(path)
    return int(match.group(1)) if match else None


def run_of_compaction(path: str) -> int | None:
    """Return the run that wrote a compacted file, or None for any other object."""
    match = _COMPACTED.fullmatch(path)
    return int(match.group(1)) if match else None


def run_of(path: str) -> int | None:
    """Return the run of an object below `runs/` (or of the folder itself), or None for any other object."""
    match = _RUN.fullmatch(path)
    return int(match.group(1)) if match else None


def request_of(path: str) -> str | None:
    """Return the id of a request, or None for answers and any other object."""
    folder, _, request_id = path.partition("/")
    if folder != REQUESTS or "." in request_id or len(request_id) > MAX_NAME_LENGTH:
        return None
    return request_id if _NAME.fullmatch(request_id) else None


def request_of_answer(path: str) -> str | None:
    """Return the id of the request that an answer belongs to, or None for requests and any other object."""
    stem = path.removesuffix(".answer")
    return request_of(stem) if stem != path else None


def is_metadata(path: str) -> bool:
    """Return whether the object may refer to others: a record, a subtask's metadata, a savepoint."""
    return path.endswith(".metadata")


def sink_of_marker(path: str) -> str | None:
    """Return the sink of a published marker, or None for any other object."""
    match = _PUBLISHED.fullmatch(path)
    return match.group(1) if match else None


def digest_of(path: str) -> str | None:
    """Return the content digest in the name of a content-addressed object, or None."""
    match = _DIGEST.fullmatch(path)
    return match.group(1) if match else None


def another(path: str, copy: int) -> str:
    """Return the name of another copy of a content-addressed object.

    >>> another("data/op-t-0.0123456789abcdef0123456789abcdef.parquet", 2)
    'data/op-t-0.2.0123456789abcdef0123456789abcdef.parquet'
    """
    stem, digest, ending = path.rsplit(".", 2)
    return f"{stem}.{copy}.{digest}.{ending}"


def _number(value: int) -> str:
    if not 0 < value < 10**EPOCH_DIGITS:
        raise InvalidNameError(
            f"the number of an epoch or run must be at least 1, got {value}",
            fix=f"numbers run from 1 to {10**EPOCH_DIGITS - 1}",
        )
    return f"{value:0{EPOCH_DIGITS}d}"


def _index(subtask_index: int) -> int:
    if subtask_index < 0:
        raise InvalidNameError(
            f"the index of a subtask must be at least 0, got {subtask_index}", fix="indices run from 0"
        )
    return subtask_index


def check_part(kind: str, name: str) -> str:
    """Return a name that is part of an object name; raise InvalidNameError if it cannot be.

    '-' and '.' separate the parts of an object name, so ids must not contain them.
    """
    check_name(kind, name)
    if kind in {"operator", "table", "stream", "request"} and ("-" in name or "." in name):
        raise InvalidNameError(
            f"the {kind} name {name!r} contains '-' or '.', which separate the parts of an object name",
            fix=f"use '_' instead: {name.replace('-', '_').replace('.', '_')!r}",
        )
    return name
