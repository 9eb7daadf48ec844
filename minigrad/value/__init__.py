"""Scalar expressions: the language of what one element is. `core.py` has the grammar and the semantics."""
from minigrad.value.core import (
    BINARY,
    COMPARISONS,
    UNARY,
    Value,
    across,
    binary,
    bitcast,
    cast,
    const,
    expressions,
    free_variables,
    guard,
    index,
    indices_of,
    load,
    local,
    make,
    rebuild,
    reduce,
    reductions_in,
    summary,
    unary,
    value_atoms,
    values_inside,
    walk,
    where,
)
from minigrad.value.indices import ValueIndex, map_indices, substitute

__all__ = [
    "BINARY", "COMPARISONS", "UNARY", "Value", "ValueIndex", "across", "binary", "bitcast", "cast", "const",
    "expressions", "free_variables", "guard", "index", "indices_of", "load", "local", "make", "map_indices",
    "rebuild", "reduce", "reductions_in", "substitute", "summary", "unary", "value_atoms", "values_inside",
    "walk", "where",
]
