"""Flows: the API that users chain, as a graph of operators that Spark, a test or a single process can run."""

from statebed.flow.broadcasts import BroadcastStream
from statebed.flow.graph import Edge, Graph, Node, OperatorNode, SourceNode, StepNode, UnionNode
from statebed.flow.grouped import GroupedStream, KeyedStream
from statebed.flow.joins import as_of, between, eq
from statebed.flow.stream import Flow, Stream

__all__ = [
    "BroadcastStream",
    "Edge",
    "Flow",
    "Graph",
    "GroupedStream",
    "KeyedStream",
    "Node",
    "OperatorNode",
    "SourceNode",
    "StepNode",
    "Stream",
    "UnionNode",
    "as_of",
    "between",
    "eq",
]
