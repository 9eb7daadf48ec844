"""Trees, labels and features: the domain ai.onnx.ml."""
from __future__ import annotations

from typing import Any

import numpy as np

from minigrad import Tensor, dtypes
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import Invalid, refuse
from minigrad.onnx.shapes import wrapped
from minigrad.onnx.strings import array_of, is_text, texts

KINDS = {"tensor": None, "strings": object, "int64s": np.int64, "floats": np.float32}


def _listed(n: Node, name: str) -> np.ndarray:
    """The attribute `name`_tensor, `name`_strings, `name`_int64s or `name`_floats."""
    for kind, dtype in KINDS.items():
        value = n.attribute(f"{name}_{kind}")
        if value is not None:
            return np.asarray(value, dtype).reshape(-1)
    raise Invalid(f"attribute {name}_tensor, {name}_strings, {name}_int64s or {name}_floats is missing")


def _default(n: Node, values: np.ndarray) -> Any:
    """The value for a key that is not there."""
    given = n.attribute("default_tensor")
    if given is not None:
        return np.asarray(given).reshape(-1)[0]
    if is_text(values):
        return n.attribute("default_string", "_Unused")
    return n.attribute("default_float", -0.0) if values.dtype.kind == "f" else n.attribute("default_int64", -1)


def label_encoder(n: Node) -> Any:
    """The value whose key each number or string is. Strings are looked up at once, numbers by kernels."""
    if n.opset < 2:
        return _classes(n)
    keys, values = _listed(n, "keys"), _listed(n, "values")
    if len(keys) != len(values):
        raise Invalid(f"expected as many keys as values, got {len(keys)} and {len(values)}")
    return _mapped(n, keys, values, _default(n, values))


def _classes(n: Node) -> Any:
    """The first form of LabelEncoder: strings to their places in a list, or places to strings."""
    classes = array_of(n.required("classes_strings"), (-1,))
    places = np.arange(len(classes), dtype=np.int64)
    if is_text(n.values[0]):
        return _mapped(n, classes, places, n.attribute("default_int64", -1))
    return _mapped(n, places, classes, n.attribute("default_string", "_Unused"))


def _mapped(n: Node, keys: np.ndarray, values: np.ndarray, default: Any) -> Any:
    if not is_text(n.values[0]) and not is_text(values):
        return _looked_up(n, n.tensor(0), keys, values, default)
    x = texts(n, 0) if is_text(n.values[0]) else np.asarray(n.known(0))
    found = dict(zip(keys.tolist(), values.tolist(), strict=True))  # the last of equal keys holds
    flat = [found.get(v, default) for v in x.reshape(-1).tolist()]
    return array_of(flat, x.shape) if is_text(values) else np.array(flat, values.dtype).reshape(x.shape)


def _looked_up(n: Node, x: Tensor, keys: np.ndarray, values: np.ndarray, default: Any) -> Tensor:
    last = {("nan" if key != key else key): i for i, key in enumerate(keys.tolist())}
    places = np.array(sorted(last.values()), np.int64)
    wanted = n.constant(keys[places])
    same = x.unsqueeze(-1) == wanted
    if keys.dtype.kind == "f":
        same = same | (x.isnan().unsqueeze(-1) & wanted.isnan())
    which = same.cast(dtypes.int32).argmax(-1)
    picked = n.constant(values[places]).reshape(-1).index_select(0, which.reshape(-1)).reshape(*x.shape)
    return same.any(-1).where(picked, n.constant(np.array(default, values.dtype)))


def array_features(n: Node) -> Tensor:
    """Numbers of the last axis."""
    x, index = n.tensor(0), n.tensor(1)
    x = x.reshape(1, -1) if x.ndim == 1 else x
    return x.index_select(x.ndim - 1, wrapped(index, x.shape[-1]).reshape(-1))


class Trees:
    """The nodes of trees as columns. Leaves stand behind the inner nodes and lead to themselves."""

    def __init__(self, n: Node):
        self.roots = np.array(n.required("tree_roots"), np.int64)
        self.features = np.array(n.required("nodes_featureids"), np.int64)
        self.modes = np.asarray(n.required("nodes_modes"), np.int64).reshape(-1)
        self.splits = np.asarray(n.required("nodes_splits")).reshape(-1)
        self.weights = np.asarray(n.required("leaf_weights")).reshape(-1)
        self.targets = np.array(n.required("leaf_targetids"), np.int64)
        inner, leaves = len(self.features), len(self.weights)
        yes, no = (self._next(n, name, inner, leaves) for name in ("true", "false"))
        missing = np.array(n.attribute("nodes_missing_value_tracks_true") or [0] * inner, np.int64)
        if not len(self.modes) == len(self.splits) == len(missing) == inner or len(self.targets) != leaves:
            raise Invalid("expected attributes nodes_* of one length, and leaf_* of one length")
        if inner and not 0 <= self.roots.min() <= self.roots.max() < inner:
            raise Invalid(f"expected roots below {inner}, got {self.roots.tolist()[:4]}")
        if self.modes.min(initial=0) < 0 or self.modes.max(initial=0) > 6:
            raise Invalid(f"expected nodes_modes from 0 to 6, got {self.modes.max()}")
        ends = np.arange(inner, inner + leaves)
        self.inner, self.yes, self.no = inner, np.concatenate([yes, ends]), np.concatenate([no, ends])
        self.missing = np.concatenate([missing, np.zeros(leaves, np.int64)])
        self.members = self._members(n)
        self.depth = self._depth()

    @staticmethod
    def _next(n: Node, name: str, inner: int, leaves: int) -> np.ndarray:
        ids, ends = np.array(n.required(f"nodes_{name}nodeids"), np.int64), np.array(n.required(f"nodes_{name}leafs"))
        if len(ids) != inner or len(ends) != inner or (ids < 0).any() or (ids >= np.where(ends, leaves, inner)).any():
            raise Invalid(f"expected nodes_{name}nodeids below {inner}, and below {leaves} for leaves")
        return np.where(ends, ids + inner, ids)

    def _members(self, n: Node) -> np.ndarray | None:
        """The set of each node that asks for one, filled up with NaN."""
        if not (self.modes == 6).any():
            return None
        sets: list[list[float]] = [[]]
        for value in np.asarray(n.required("membership_values")).reshape(-1):
            if value != value:
                sets.append([])
            else:
                sets[-1].append(float(value))
        asking = np.flatnonzero(self.modes == 6)
        if len(sets) < len(asking):
            raise Invalid(f"expected {len(asking)} sets of membership_values, got {len(sets)}")
        found = np.full((len(self.yes), max(map(len, sets), default=0) or 1), np.nan, self.splits.dtype)
        for node, members in zip(asking, sets, strict=False):
            found[node, :len(members)] = members
        return found

    def _depth(self) -> int:
        """The number of nodes on the longest way to a leaf."""
        level, depth = np.unique(self.roots), 0
        while (level := level[level < self.inner]).size:
            level, depth = np.unique(np.concatenate([self.yes[level], self.no[level]])), depth + 1
            if depth > self.inner:
                raise Invalid("expected trees, got nodes in a circle")
        return depth


def _taken(n: Node, trees: Trees, x: Tensor, at: Tensor) -> Tensor:
    """True where the nodes `at` [N, trees] lead on by their first branch."""
    def of(column: np.ndarray) -> Tensor:
        padded = np.concatenate([column, np.zeros(len(trees.yes) - len(column), column.dtype)])
        return n.constant(padded).reshape(-1).index_select(0, at.reshape(-1)).reshape(*at.shape)
    value, split = x.gather(1, of(trees.features)), of(trees.splits).cast(x.dtype)
    mode, taken = of(trees.modes), value <= split
    tests = {1: value < split, 2: value >= split, 3: value > split, 4: value == split, 5: value != split}
    if trees.members is not None:
        sets = n.constant(trees.members).index_select(0, at.reshape(-1)).reshape(*at.shape, -1).cast(x.dtype)
        tests[6] = (value.unsqueeze(-1) == sets).any(-1)
    for number, test in tests.items():
        if (trees.modes == number).any():
            taken = (mode == number).where(test, taken)
    return taken | (value.isnan() & (of(trees.missing) != 0)) if trees.missing.any() else taken


def tree_ensemble(n: Node) -> Tensor:
    """The sum, mean, least or largest of the leaves that each row of x [N, features] comes to, for each target."""
    x, trees = n.tensor(0), Trees(n)
    targets, how = n.attribute("n_targets") or 1, n.attribute("aggregate_function", 1)
    after = n.attribute("post_transform", 0)
    if how not in (0, 1, 2, 3) or after not in (0, 1, 2):
        raise refuse(f"aggregate_function {how} with post_transform {after}", "0 to 3 and 0 to 2")
    if x.ndim != 2 or trees.features.max(initial=0) >= x.shape[1] or trees.features.min(initial=0) < 0:
        raise Invalid(f"expected x [N, more than {trees.features.max(initial=0)}], got {list(x.shape)}")
    at = n.constant(trees.roots).reshape(1, -1).expand(x.shape[0], len(trees.roots))
    yes, no = n.constant(trees.yes).reshape(-1), n.constant(trees.no).reshape(-1)
    for _ in range(trees.depth):
        flat = at.reshape(-1)
        at = _taken(n, trees, x, at).where(yes.index_select(0, flat).reshape(*at.shape),
                                           no.index_select(0, flat).reshape(*at.shape))
    leaf = (at - trees.inner).reshape(-1)
    weights, of = (n.constant(c).reshape(-1).index_select(0, leaf).reshape(*at.shape, 1)
                   for c in (trees.weights, trees.targets))
    mine = of == Tensor.arange(targets, device=x.device).reshape(1, 1, -1).cast(of.dtype)
    if how < 2:
        y = mine.where(weights, 0).sum(1) / (len(trees.roots) if how == 0 else 1)
    else:
        far = float("inf") if how == 2 else -float("inf")
        y = mine.where(weights, far)
        y = y.amin(1) if how == 2 else y.amax(1)
    return {0: y, 1: y.softmax(-1), 2: y.sigmoid()}[after].cast(x.dtype)


def binarizer(n: Node) -> Tensor:
    """1 above the threshold, else 0."""
    x = n.tensor(0)
    return (x > n.attribute("threshold", 0.0)).cast(x.dtype)


TABLE: dict[str, Operator] = {"LabelEncoder": label_encoder, "ArrayFeatureExtractor": array_features,
                              "Binarizer": binarizer, "TreeEnsemble": tree_ensemble}
