"""`Tensor`: a handle on a lazy Node. Methods come from the mixins; here is what touches values and gradients."""
from __future__ import annotations

import weakref
from threading import get_ident
from typing import Any, Self, final
from weakref import ref

import numpy as np

from minigrad.config import current
from minigrad.dtype import DType, to_dtype
from minigrad.engine.observe import dry_runs, host_reads
from minigrad.engine.pressure import expect_growth, is_long, keepers, pressure
from minigrad.engine.realize import copy_of_constant, realize
from minigrad.engine.stats import stats
from minigrad.engine.storage import buffer_node, leaf_of_type, next_id
from minigrad.engine.transfer import download, leaf_of, wrap
from minigrad.errors import CaptureError, DTypeError, MinigradError, ShapeError
from minigrad.graph.autodiff import History
from minigrad.graph.autodiff import gradient as gradient_nodes
from minigrad.graph.trace import Trace, gradients, reaches_back, trace
from minigrad.handles import ask, asked, changed, changed_by_user, forget, handles, live, register
from minigrad.mixins.all import AllMixins
from minigrad.mixins.base import Base, as_tensor, broadcast_shapes, flat
from minigrad.mixins.hooks import LeafHooks, hooked_sum
from minigrad.mixins.memory import datas, pass_on, settled
from minigrad.mixins.modes import GradSwitch, Within, modes
from minigrad.mixins.precision import follows_autocast
from minigrad.ops import build as B
from minigrad.ops.convert import held
from minigrad.ops.identity import own
from minigrad.ops.node import Node, apply, here, hooked, keep_history, next_serial
from minigrad.ops.storage import ASSIGN, BUFFER, DETACH
from minigrad.runtime.registry import canonical

_leaves: dict[int, weakref.ref[Tensor]] = {}
_passed = [0]  # the serial of the last backward pass: Nodes with smaller ones are older


@final
@follows_autocast
@flat
class Tensor(AllMixins):
    """An array on a device, computed when its values are asked for.

    `data`: a Python number, nested lists, a numpy array (copied) or another Tensor. Numbers are bool, int32 or float32
    and arrays keep their type, unless `dtype` says otherwise. A leaf made with `requires_grad=True` gets `.grad` by
    `backward`.
    """

    __slots__ = ()

    def __init__(self, data: Any, dtype: DType | str | None = None, device: str | None = None,
                 requires_grad: bool | None = None):
        kind = None if dtype is None else to_dtype(dtype)
        if isinstance(data, Tensor):
            source = data if device is None else data.to(device)
            node = own(source.node if kind is None else B.cast(source.node, kind))
        else:
            node = leaf_of(data, kind, self._device(device))
            if stats.mem_used > pressure.mark:
                self._bound_memory()
        self.node, self.kept_grad, self.needs_grad, self.lazy_node = node, None, False, None
        register(self)
        if isinstance(data, Tensor):
            changed()
        self._set_requires_grad(requires_grad, fresh=node.op is BUFFER and not isinstance(data, Tensor))

    @classmethod
    def over(cls, node: Node) -> Self:
        """A handle on this very Node, mostly a realized leaf that no other handle stands for."""
        self = object.__new__(cls)
        self.node = node
        self.kept_grad = self.lazy_node = None
        self.needs_grad = False
        handles[ref(self, forget)] = None  # `register`, without the call
        return self

    @classmethod
    def _from_data(cls, data: Any, dtype: DType | None, device: str) -> Self:
        return cls(data, dtype, device)

    @classmethod
    def _device(cls, device: str | None) -> str:
        return canonical(current().device if device is None else device)

    @classmethod
    def from_blob(cls, array: np.ndarray, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """A tensor over the memory of a C-contiguous array, where the device can read it; else a copy.

        Later writes to the array show in the tensor. `dtype` may reinterpret bytes (bfloat16 over uint16).
        """
        if not isinstance(array, np.ndarray):
            raise DTypeError(f"[from_blob] expected a numpy array, got {type(array).__name__}")
        kind = to_dtype(array.dtype if dtype is None else dtype)
        if kind.np != array.dtype:
            raise DTypeError(f"[from_blob] expected an array of {kind.np} for {kind}, got {array.dtype}")
        name = cls._device(device)
        return cls.over(buffer_node(wrap(array, name), array.shape, kind, name))

    # Values

    def realize(self, *others: Tensor) -> Self:
        """Computes this tensor (and others in one plan) now."""
        tensors: tuple[Tensor, ...] = (self, *others)
        try:
            pending = [t for t in tensors if t.node.storage is None]
        except AttributeError:
            raise DTypeError(f"[realize] expected Tensors one by one, got {tensors!r}") from None
        if pending:
            copies = {id(t): copy for t in pending
                      if (copy := copy_of_constant(t.node)) is not None and not t._has_history()}
            realize([copies.get(id(t), t.node) for t in pending] if copies else [t.node for t in pending])
            for t in pending:
                t._forget_history(copies.get(id(t)))
            if stats.mem_used > pressure.mark:
                self._bound_memory()
        if len(pending) < len(tensors):
            for t in tensors:
                t._forget_history()
        return self

    def _forget_history(self, copy: Node | None = None) -> None:
        """Exchanges a realized Node, or a constant of which there is a `copy`, for a leaf, unless it has history."""
        node, storage = self.node, (copy or self.node).storage
        if storage is None or node.op is BUFFER or (self.needs_grad and not self._is_leaf()):
            return
        if node.op is ASSIGN and not node.inputs:  # it has forgotten them already
            return
        if node.dtype.is_float:
            self.lazy_node = weakref.ref(node)
        forgetful = leaf_of_type(node.type, storage)
        if self.node is node:  # else another thread has given it another value meanwhile
            self.node = forgetful
        changed()

    def _has_history(self) -> bool:
        """True where a gradient may have to pass through it."""
        return bool(self.needs_grad) and not self._is_leaf()

    def _bound_graph(self) -> None:
        if not here.world and is_long(self.node):
            self.lazy_node = None
            self.realize()

    @staticmethod
    def _bound_memory() -> None:
        """Realizes values whose graphs keep too much in memory (`engine.pressure`)."""
        found = keepers(live())
        if found:
            Tensor.realize(*found)
            expect_growth()

    def numpy(self) -> np.ndarray:
        """The values as a numpy array of its own; bfloat16 as float32."""
        host_reads()
        return download(settled(self))

    def _known_values(self) -> np.ndarray | None:
        if self.node.storage is None or dry_runs:
            return None
        try:
            return self.numpy()
        except CaptureError:
            return None

    def item(self) -> Any:
        """The value of a tensor of one element as a Python number."""
        if any(d != 1 for d in self.shape):
            raise ShapeError(f"[item] expected one element, got shape {list(self.shape)}")
        return self.numpy().reshape(()).item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return self.numpy().tolist()

    def clone(self) -> Self:
        """A copy whose assignments do not show here."""
        return self.contiguous()

    # Assignment

    def assign(self, value: Any) -> Self:
        """Replaces all values of this handle; other handles keep the old ones. `value` broadcasts and is cast."""
        value = self._operand(value)
        if isinstance(value, Tensor):
            if value.node.type is self.node.type:  # of every step, and the checks below take as long as the rest
                self._rebind(B.assign(self.node, value.node), value)
                return self
            if value.node.device != self.node.device:
                value = value.to(self.device)
            if value.shape != self.shape:
                if broadcast_shapes("assign", self.shape, value.shape) != self.shape:
                    raise ShapeError(f"[assign] expected a value that broadcasts to {list(self.shape)}, "
                                     f"got {list(value.shape)}")
                value = value.expand(*self.shape)
            node = B.cast(value.node, self.dtype)
        else:
            number = held("assign", value, self.dtype.compute) if isinstance(value, (int, float)) else value
            node = B.full(number, self.shape, self.dtype, self.device)
        self._rebind(B.assign(self.node, node), value if isinstance(value, Tensor) else self)
        return self

    def _rebind(self, node: Node, value: Base) -> None:
        leaf, depth = self._is_leaf(), max(self.node.depth, value.node.depth)
        self.node, self.lazy_node = own(node), None
        if not leaf and modes.now.grad_enabled:
            self.needs_grad = self.needs_grad or bool(value.needs_grad)
            if self.needs_grad:
                keep_history(node)
        changed_by_user(self)
        if datas:
            pass_on(self)
        self._bound_graph_after(depth)

    def replace(self, other: Self) -> Self:
        """Makes this handle stand for another tensor's value."""
        as_tensor("replace", other)
        if other.shape != self.shape or other.dtype is not self.dtype:
            raise ShapeError(f"[replace] expected {self.dtype}{list(self.shape)}, got {other.dtype}{list(other.shape)}")
        self._give(other)
        changed_by_user(self)
        if datas:
            pass_on(self)
        return self

    def _give(self, value: Self) -> None:
        leaf = self._is_leaf()
        self.node, self.lazy_node = apply(DETACH, value.node, id=next_id()) if leaf else own(value.node), None

    # Gradients

    def _is_leaf(self) -> bool:
        return id(self) in _leaves

    def _set_requires_grad(self, requires_grad: bool | None, fresh: bool = False) -> Self:
        """`fresh`: no other handle can hold this Node, so that it may itself be the leaf of gradients."""
        if requires_grad is None:
            return self
        if not requires_grad:
            _leaves.pop(id(self), None)
            self.needs_grad = False
            changed()
            return self
        if not self.dtype.is_float:
            raise DTypeError(f"[requires_grad] expected a float tensor, got {self.dtype}")
        if not self._is_leaf():
            if not fresh:
                self.node = apply(DETACH, self.node, id=next_id())
            key = id(self)
            _leaves[key] = weakref.ref(self, lambda _, forget=_leaves.pop: forget(key, None))  # type: ignore[misc]
        self.needs_grad = self.needs_grad or True  # hooks stay
        changed_by_user(self)
        return self

    @property
    def requires_grad(self) -> bool:
        """True where gradients flow to it. Setting it is `requires_grad_`."""
        if asked:
            ask(self)
        return bool(self.needs_grad)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value is not bool(self.needs_grad):
            self._set_requires_grad(value)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Makes this tensor a leaf that gradients flow to, or stops that."""
        return self._set_requires_grad(requires_grad)

    def detach(self) -> Self:
        """The same values, without a gradient. What is realized is not tied to what it was made from any more. What is
        older than the last `backward` is realized outside captures: loops that hand on a state get graphs of a step."""
        node = self.node
        if self.needs_grad and node.storage is None and node.serial < _passed[0] and get_ident() not in asked:
            node = self.realize().node
        if not self.needs_grad and not node.dtype.is_float:
            return self._wrap(node)
        if node.storage is not None and not self._is_leaf():
            changed()
            return self.over(leaf_of_type(node.type, node.storage))
        return self._wrap(apply(DETACH, node, id=0))

    def _gradient_nodes(self) -> list[Node]:
        """The Nodes that have stood for the present value."""
        before = None if self.lazy_node is None else self.lazy_node()
        return [self.node] if before is None else [self.node, before]

    def backward(self, gradient: Tensor | None = None, retain_graph: bool | None = None,
                 create_graph: bool = False) -> Self:
        """Adds the gradient of this tensor to `.grad` of every leaf it depends on, lazily. A leaf that is reached only
        through `detach`, comparisons or integers is none of those: its `.grad` stays as it is.

        A tensor of more than one element needs `gradient`, of its shape. With `create_graph`, gradients go through
        `.grad` too. Nothing is freed: `retain_graph` changes nothing. Raises MinigradError without such a leaf.
        """
        seed = None if gradient is None else as_tensor("backward", gradient).node
        leaves = [t for t in [r() for r in list(_leaves.values())] if t is not None]
        late = [] if get_ident() in asked else [t for t in leaves if reaches_back(t.node, _passed[0])]
        if late:  # updated by hand, which no step of an optimizer realizes
            Tensor.realize(*late)
        known = None if create_graph else trace(self.node)
        made_from = known or History(self.node)
        found = [(t, ns) for t in leaves if (ns := [n for n in t._gradient_nodes() if n in made_from])]
        targets = [n for _, nodes in found for n in nodes]
        if not found:
            targets = self._hooked_before(made_from)
        parts = gradients(made_from, targets, seed)
        for t, nodes in found:
            total = hooked_sum(t, [next(parts) for _ in nodes])
            parents = (self, t, *(() if t.kept_grad is None else (t.kept_grad,))) if create_graph else ()
            t.grad = self._wrap(total if t.kept_grad is None else B.add(t.kept_grad.node, total), *parents)
            if type(t.needs_grad) is LeafHooks:
                for hook in list(t.needs_grad.after.values()):
                    hook(t)
        _passed[0] = next_serial()
        return self

    def _hooked_before(self, made_from: History | Trace) -> list[Node]:
        """The results with hooks that this one, which no leaf's gradient comes from, was made from."""
        if not self.needs_grad:
            raise MinigradError("[backward] expected a result of some tensor with requires_grad=True, got none; what "
                                "`jit` returns has no history: call backward inside")
        found = [n for n in made_from.order if ref(n) in hooked]
        if not found:
            raise MinigradError("[backward] expected a tensor with requires_grad=True that this result was made from, "
                                "got none: it is gone (keep a reference to it), has another value by now, or is "
                                "reached only through detach, comparisons or integers")
        return found

    def gradient(self, *targets: Tensor, gradient: Tensor | None = None, materialize_grads: bool = False,
                 ) -> list[Tensor]:
        """The gradients with respect to any tensors it was made from; `gradient` as in `backward`. `.grad` stays.

        For a target that it was not made from, or only through `detach`, comparisons or integers, raises MinigradError,
        or gives zeros with `materialize_grads`. A result already realized remembers what it was made from only if a
        tensor with requires_grad=True is among that.
        """
        if not targets:
            raise MinigradError("[gradient] expected at least one target, got none")
        groups = [as_tensor("gradient", t)._gradient_nodes() for t in targets]
        made_from = History(self.node)
        floats = all(t.dtype.is_float for t in (self, *targets))  # if not, the rules below raise a better error
        unused = [t for t, nodes in zip(targets, groups, strict=True) if not any([n in made_from for n in nodes])]
        if floats and unused and not materialize_grads:
            raise MinigradError("[gradient] expected targets that the result was made from, with the values that they "
                                f"have now, got {unused[0]!r}; keep it as a variable by requires_grad=True before it "
                                "is used")
        seed = None if gradient is None else as_tensor("gradient", gradient).node
        parts = iter(gradient_nodes(made_from, [n for nodes in groups for n in nodes], seed))
        return [self._wrap(hooked_sum(target, [next(parts) for _ in nodes]), self, target)
                for target, nodes in zip(targets, groups, strict=True)]

    @staticmethod
    def train(mode: bool = True) -> Within:
        """`with Tensor.train():` batch norm and dropout behave as in training."""
        return Within("training", mode)

    @staticmethod
    def no_grad() -> Within:
        """`with Tensor.no_grad():` results do not require gradients, and none go through them."""
        return Within("grad_enabled", False)

    @staticmethod
    def enable_grad() -> Within:
        """`with Tensor.enable_grad():` inside `no_grad` records gradients again."""
        return Within("grad_enabled", True)

    @staticmethod
    def set_grad_enabled(mode: bool) -> GradSwitch:
        """`enable_grad` or `no_grad`, as `mode` says: from now on, or in a context until it ends."""
        return GradSwitch(mode)

    @staticmethod
    def is_grad_enabled() -> bool:
        """True where results of what requires gradients require them."""
        return modes.now.grad_enabled

    # Insight

    @property
    def lazydata(self) -> Node:
        """The Node behind this handle."""
        changed()  # somebody may keep it
        return self.node


def tensor(data: Any, *, dtype: DType | str | None = None, device: str | None = None,
           requires_grad: bool | None = None) -> Tensor:
    """A new Tensor of numbers, nested lists, an array, or the values of another Tensor: `Tensor(...)` under PyTorch's
    name, without history."""
    given = data.detach().clone() if isinstance(data, Tensor) else data
    return Tensor(given, dtype, device, requires_grad or None)


__all__ = ["Tensor", "tensor"]
