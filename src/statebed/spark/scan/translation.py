"""Translates the steps before the first operator, from Spark's analysed plan, to programs of a native scan.

The plan is followed from the rows of the branches down to the streams, with the columns that are needed at each node.
A step or an expression that only Spark can compute ends the attempt: UntranslatableError says which.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import SparkSession

from statebed.expressions import BoundExpression, bind
from statebed.flow.keys import quoted
from statebed.spark.analysed.expression_text import ExpressionText, UntranslatableError
from statebed.spark.analysed.plan_tree import Expr, PlanNode
from statebed.spark.analysed.types import arrow_type
from statebed.spark.scan.parquet_reader import FileColumn
from statebed.spark.scan.program import BranchSteps, Program, ScanFilter, ScanProjection, ScanWatermark, Step

_UNCHANGED = frozenset({"EventTimeWatermark", "SubqueryAlias", "View"})
_STREAMS = frozenset({"StreamingRelation", "StreamingRelationV2"})
_PLAIN = ("boolean", "byte", "short", "integer", "long", "float", "double", "date", "timestamp", "string")
_MARK = "__"
"""Beginning of Spark's own marks of a column: of file metadata, char types and collations."""


def programs_of(plan: PlanNode, session: SparkSession, *, observed: Collection[str] = ()) -> list[Program]:
    """Return the program of each stream of a plan, in the order of its leaves; its rows have the plan's columns.

    `observed` has the ids of watermark nodes whose event times are wanted.
    A function whose result depends on settings is translated if those of the session give the same result as ours.
    """
    ids, names = zip(*_columns(plan), strict=True)
    return [_renamed(rows, ids, names).program for rows in _Translation(session, observed).visit(plan, ids)]


@dataclass(frozen=True)
class _StreamRows:
    """A program so far, and the columns of its rows."""

    program: Program
    schema: pa.Schema

    def then(self, step: Step) -> "_StreamRows":
        schema = self.schema
        if isinstance(step, ScanProjection):
            kinds = [column.type for column in step.columns]
            schema = pa.schema(list(zip(step.names, kinds, strict=True)))
        program = self.program
        if len(program.outputs) > 1:
            forked = tuple(BranchSteps((*output.steps, step)) for output in program.outputs)
            return _StreamRows(replace(program, outputs=forked), schema)
        return _StreamRows(replace(program, steps=(*program.steps, step)), schema)


@dataclass(frozen=True)
class _Translation:
    """Follows a plan; the session's settings decide about functions that depend on them."""

    session: SparkSession
    observed: Collection[str] = ()

    def visit(self, node: PlanNode, needed: Sequence[int]) -> list[_StreamRows]:  # noqa: PLR0911 - one per kind of step
        """Return the rows of each stream below a node, with the columns that are needed, called by their ids.

        There is always one, because a batch without columns does not know its number of rows.
        """
        needed = needed or _any_column(node)
        if node.kind in _STREAMS:
            return [_stream(node, needed)]
        if node.kind in _UNCHANGED:
            return self._passed(node, needed)
        if node.kind == "Project":
            wanted = [expression for expression in node.expressions("projectList") if expression.id in set(needed)]
            generate = _generate_below(node)
            if generate is not None and not _is_single(generate):
                return self._alternatives(generate, wanted)
            below = self.visit(node.child, _references(wanted))
            return [rows.then(self._select(rows.schema, wanted)) for rows in below]
        if node.kind == "Generate" and _is_single(node):
            return self._with_element(node, needed)
        if node.kind == "Filter":
            condition = node.expression("condition")
            below = self.visit(node.child, list(dict.fromkeys([*needed, *_references([condition])])))
            return [rows.then(self._where(rows.schema, condition)) for rows in below]
        if node.kind == "Union":
            ids = [number for number, _ in _columns(node)]
            places = [ids.index(number) for number in needed]
            return [rows for child in node.children for rows in self._member(child, places, needed)]
        raise UntranslatableError(f"{node.described()} is a step that only Spark can run")

    def _passed(self, node: PlanNode, needed: Sequence[int]) -> list[_StreamRows]:
        """Return the rows of a step that changes none, observed if it is a watermark whose event times are wanted."""
        if node.kind != "EventTimeWatermark" or str(node.fields["nodeId"]) not in self.observed:
            return self.visit(node.child, needed)
        below = self.visit(node.child, list(dict.fromkeys([*needed, node.expression("eventTime").id])))
        return [rows.then(_watermark(node, rows.schema)) for rows in below]

    def _member(self, child: PlanNode, places: Sequence[int], needed: Sequence[int]) -> Iterable[_StreamRows]:
        """Return the rows of one member of a union under the ids of the union."""
        ids = [number for number, _ in _columns(child)]
        own = [ids[place] for place in places]
        for rows in self.visit(child, list(dict.fromkeys(own))):
            yield _renamed(rows, own, [_name(number) for number in needed])

    def _alternatives(self, generate: PlanNode, wanted: Sequence[Expr]) -> list[_StreamRows]:
        """Return the rows of several branches that share a pass over their stream: an explode of structs, some with a
        condition.
        """
        generator = generate.expression("generator")
        listed = generator.child if generator.kind == "Explode" else generator
        listed = listed.part("child") if listed.kind == "ArrayCompact" else listed
        if listed.kind != "CreateArray" or any(expression.value.kind != "GetStructField" for expression in wanted):
            raise UntranslatableError(f"{generate.described()} is a step that only Spark can run")
        places = [int(expression.value.fields["ordinal"]) for expression in wanted]
        structs = [_struct(item) for item in listed.children]
        chosen = [(condition, [fields[place] for place in places]) for condition, fields in structs]
        needed = _references(expression for condition, fields in chosen for expression in (*condition, *fields))
        names = [_name(expression.id) for expression in wanted]
        below = []
        for rows in self.visit(generate.child, needed):
            selects = [ScanProjection(tuple(names), self._bound(rows.schema, fields)) for _, fields in chosen]
            outputs = tuple(
                BranchSteps((*(self._where(rows.schema, expression) for expression in condition), select))
                for (condition, _), select in zip(chosen, selects, strict=True)
            )
            schema = pa.schema([(name, column.type) for name, column in zip(names, selects[0].columns, strict=True)])
            below.append(_StreamRows(replace(rows.program, outputs=outputs), schema))
        return below

    def _with_element(self, generate: PlanNode, needed: Sequence[int]) -> list[_StreamRows]:
        """Return the rows of an explode of arrays with one element: the element is a column more."""
        (output,) = generate.expressions("generatorOutput")
        element = _listed(generate).children[0]
        kept = [number for number in needed if number != output.id]
        below = self.visit(generate.child, list(dict.fromkeys([*kept, *sorted(element.references)])))
        return [rows.then(self._widened(rows.schema, kept, element, _name(output.id))) for rows in below]

    def _widened(self, schema: pa.Schema, kept: Sequence[int], element: Expr, name: str) -> ScanProjection:
        names = [_name(number) for number in kept]
        columns = tuple(bind(quoted(column), schema) for column in names)
        return ScanProjection((*names, name), (*columns, *self._bound(schema, [element])))

    def _select(self, schema: pa.Schema, wanted: Sequence[Expr]) -> ScanProjection:
        return ScanProjection(tuple(_name(expression.id) for expression in wanted), self._bound(schema, wanted))

    def _where(self, schema: pa.Schema, condition: Expr) -> ScanFilter:
        return ScanFilter(self._bound(schema, [condition])[0])

    def _bound(self, schema: pa.Schema, expressions: Sequence[Expr]) -> tuple[BoundExpression, ...]:
        text = ExpressionText(_ids_of(schema), session=self.session, exact=True)
        return tuple(text.bound(expression, schema) for expression in expressions)


def _watermark(node: PlanNode, schema: pa.Schema) -> ScanWatermark:
    column = _name(node.expression("eventTime").id)
    if not pa.types.is_timestamp(schema.field(column).type):
        raise UntranslatableError(
            f"the event time is of the type {schema.field(column).type}, which only Spark observes"
        )
    return ScanWatermark(str(node.fields["nodeId"]), column)


def _renamed(rows: _StreamRows, ids: Sequence[int], names: Sequence[str]) -> _StreamRows:
    columns = tuple(bind(quoted(_name(number)), rows.schema) for number in ids)
    return rows.then(ScanProjection(tuple(names), columns))


def _stream(node: PlanNode, needed: Sequence[int]) -> _StreamRows:
    marks = {field["name"]: field.get("metadata") or {} for field in node.schema_json["fields"]}
    columns = []
    for attribute in node.expressions("output"):
        if attribute.id not in needed:
            continue
        if any(key.startswith(_MARK) for key in marks.get(attribute.name, {_MARK: ""})):
            raise UntranslatableError(f"the column {attribute.name} has a meaning that only Spark knows")
        columns.append(FileColumn(attribute.name, pa.field(_name(attribute.id), arrow_type(attribute.type_json))))
    return _StreamRows(Program(tuple(columns), ()), pa.schema([column.field for column in columns]))


def _generate_below(node: PlanNode) -> PlanNode | None:
    """Return the generator whose row a selection takes apart, or None."""
    below = node.child
    while below.kind == "Project" and all(column.is_attribute for column in below.expressions("projectList")):
        below = below.child
    return below if below.kind == "Generate" else None


def _is_single(generate: PlanNode) -> bool:
    """Return whether a generator gives one row for each row: an explode of arrays with one element."""
    listed = _listed(generate)
    return (
        generate.expression("generator").kind == "Explode"
        and listed.kind == "CreateArray"
        and len(listed.children) == 1
    )


def _listed(generate: PlanNode) -> Expr:
    return generate.expression("generator").child


def _struct(item: Expr) -> tuple[list[Expr], list[Expr]]:
    """Return the condition of an alternative, if it has one, and its fields."""
    condition = []
    if item.kind == "CaseWhen" and len(item.children) == 2:  # noqa: PLR2004 - WHEN and THEN, without ELSE
        condition, item = [item.children[0]], item.children[1]
    if item.kind != "CreateNamedStruct":
        raise UntranslatableError(f"{item.sql} is not a struct of a branch")
    return condition, item.children[1::2]


def _ids_of(schema: pa.Schema) -> Mapping[int, str]:
    return {int(name[1:]): name for name in schema.names}


def _references(expressions: Iterable[Expr]) -> list[int]:
    return list(dict.fromkeys(number for expression in expressions for number in sorted(expression.references)))


def _any_column(node: PlanNode) -> list[int]:
    """Return a column of a node to count its rows by, one that is cheap to read if there is one."""
    if node.kind in _STREAMS:
        plain = [attribute.id for attribute in node.expressions("output") if attribute.type_json in _PLAIN]
        return plain[:1] or [node.expressions("output")[0].id]
    return [_columns(node)[0][0]]


def _columns(node: PlanNode) -> list[tuple[int, str]]:
    """Return the ids and names of the columns of a node, in their order."""
    if node.kind == "Project":
        return [(expression.id, expression.name) for expression in node.expressions("projectList")]
    if node.kind in _STREAMS:
        return [(attribute.id, attribute.name) for attribute in node.expressions("output")]
    if node.kind in {*_UNCHANGED, "Filter", "Union"}:
        return _columns(node.children[0])
    if node.kind == "Generate":
        (output,) = node.expressions("generatorOutput")
        return [*_columns(node.child), (output.id, output.name)]
    raise UntranslatableError(f"{node.described()} is a step that only Spark can run")


def _name(number: int) -> str:
    return f"c{number}"
