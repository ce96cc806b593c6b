"""Display names of a job's operators: the given name, or the user's expression instead of a generated id."""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from statebed.errors import StateNotFoundError
from statebed.format import checkpoint_pb2 as pb
from statebed.operators.labels import written_name


@dataclass(frozen=True)
class OperatorNames:
    """Maps operator ids to display names and back."""

    by_id: Mapping[str, str]

    @staticmethod
    def of(*records: pb.CheckpointMetadata) -> "OperatorNames":
        """Name the operators of records; if they define an operator differently, the last record wins.

        Operators with the same display name get their ids in brackets after it.
        """
        definitions = {entry.operator_id: entry.definition for record in records for entry in record.operators}
        names = {operator: written_name(operator, text) for operator, text in definitions.items()}
        count = Counter(names.values())
        return OperatorNames(
            {
                operator_id: name if count[name] == 1 else f"{name} [{operator_id}]"
                for operator_id, name in names.items()
            }
        )

    def __call__(self, text: str) -> str:
        """Return the display name of an operator or of a part of it: `id`, `id.table`, `id in-flight writes`."""
        if text in self.by_id:
            return self.by_id[text]
        end = next((at for at, letter in enumerate(text) if letter in ". "), len(text))
        return f"{self.by_id.get(text[:end], text[:end])}{text[end:]}"

    def listed(self, texts: Iterable[str]) -> str:
        return ", ".join(map(self, texts))

    def id_of(self, wanted: str, *, where: str) -> str:
        """Return the id of the operator that the user specifies, by id or display name."""
        ids = {name: operator for operator, name in self.by_id.items()}
        if wanted in self.by_id:
            return wanted
        if wanted not in ids:
            close = difflib.get_close_matches(wanted, ids, n=1)
            raise StateNotFoundError(
                f"there is no operator {wanted!r} (there are: {', '.join(ids) or 'none'})",
                where=where,
                fix=f"did you mean {close[0]!r}?" if close else "name one of these operators",
            )
        return ids[wanted]
