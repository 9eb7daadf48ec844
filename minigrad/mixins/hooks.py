"""Functions that `backward` calls with gradients: `register_hook`, `retain_grad`.

The hooks of a leaf stand where `requires_grad` of others is True, in an object that is another one after each change:
whatever compares that notices, captures of `jit` too. Those of a result are its Node's, which lives for as long as a
gradient may come to it. A hook gets and gives lazy tensors: what it computes is part of the graph, and of a capture.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Self
from weakref import ref

from minigrad.errors import MinigradError, ShapeError
from minigrad.handles import changed_by_user
from minigrad.mixins.base import Base, as_tensor
from minigrad.ops import build as B
from minigrad.ops import node as nodes
from minigrad.ops.node import Node

Functions = Mapping[int, Callable[[Any], Any]]
_numbers = count()


class LeafHooks:
    """True, as `needs_grad` of a leaf: with functions of its gradient, and of it once that was added to `.grad`."""

    __slots__ = ("before", "after")

    def __init__(self, before: Functions, after: Functions):
        self.before, self.after = before, after


class _NodeHooks:
    """The functions of the gradient of a Node, and the tensors whose `.grad` it is added to."""

    def __init__(self, kind: type[HookMixin]):
        self.kind = kind
        self.functions: dict[int, Callable[[Any], Any]] = {}
        self.kept: dict[int, ref[Any]] = {}

    def __call__(self, node: Node) -> Node:
        gradient = passed(self.functions, self.kind._wrap(node))
        for tensor in [r() for r in self.kept.values()]:
            if tensor is not None and _hooks_of(tensor.node) is self:
                tensor.grad = gradient if tensor.kept_grad is None else tensor.kept_grad + gradient
        return gradient.node


def _hooks_of(node: Node) -> Any:
    return node.hooks if nodes.hooked and ref(node) in nodes.hooked else None


def passed(functions: Functions, gradient: Any) -> Any:
    """The gradient after the functions have been applied to it, one after the other."""
    for function in list(functions.values()):
        result = function(gradient)
        if result is not None:
            if as_tensor("hook", result).shape != gradient.shape or result.dtype is not gradient.dtype:
                raise ShapeError(f"[hook] expected None or a gradient {gradient.dtype}{list(gradient.shape)}, "
                                 f"got {result.dtype}{list(result.shape)}")
            gradient = result
    return gradient


class HookHandle:
    """The result of registering a hook: `remove()` takes it away again."""

    def __init__(self, remove: Callable[[], None]):
        self.remove = remove

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class HookMixin(Base):
    __slots__ = ()

    def register_hook(self, hook: Callable[[Self], Any]) -> HookHandle:
        """Calls `hook` with the gradient of this tensor whenever `backward` or `gradient` has it complete; a tensor
        that it returns takes its place, for `.grad` and for what this tensor was made from.

        Of a result the hook is one of its value, and not of what a method in place makes of it later. Inside `jit` it
        runs when the function does, and a replay computes what it computed. Raises MinigradError for a tensor without
        requires_grad.
        """
        return self._hook("register_hook", hook, "before")

    def register_post_accumulate_grad_hook(self, hook: Callable[[Self], Any]) -> HookHandle:
        """Calls `hook` with this leaf each time that `backward` has added to its `.grad`. Raises MinigradError for what
        is no leaf."""
        if self.needs_grad and not self._is_leaf():
            raise MinigradError("[register_post_accumulate_grad_hook] expected a leaf, got a result")
        return self._hook("register_post_accumulate_grad_hook", hook, "after")

    def _hook(self, name: str, hook: Callable[[Self], Any], when: str) -> HookHandle:
        if not self.needs_grad or not callable(hook):
            raise MinigradError(f"[{name}] expected a function, and a tensor with requires_grad=True, got {hook!r} for "
                                f"one with requires_grad={bool(self.needs_grad)}")
        number = next(_numbers)
        if not self._is_leaf():
            functions = self._node_hooks().functions
            functions[number] = hook
            return HookHandle(lambda: functions.pop(number, None) and None)
        self._change_hooks(when, number, hook)
        leaf = ref(self)

        def remove() -> None:
            tensor = leaf()
            if tensor is not None:
                tensor._change_hooks(when, number, None)

        return HookHandle(remove)

    def _change_hooks(self, when: str, number: int, hook: Callable[[Self], Any] | None) -> None:
        """Adds or removes a function of this leaf."""
        now: Any = self.needs_grad
        parts = {side: dict(getattr(now, side)) if type(now) is LeafHooks else {} for side in ("before", "after")}
        if hook is None:
            parts[when].pop(number, None)
        else:
            parts[when][number] = hook
        if now:
            self.needs_grad = LeafHooks(**parts) if any(parts.values()) else True
            changed_by_user(self)

    def retain_grad(self) -> None:
        """Lets `backward` add the gradient of this result to its `.grad` too, after hooks. A leaf has it anyway. Raises
        MinigradError for a tensor without requires_grad."""
        if not self.needs_grad:
            raise MinigradError("[retain_grad] expected a tensor with requires_grad=True, got one without")
        if not self._is_leaf():
            self._node_hooks().kept[id(self)] = ref(self)

    def _node_hooks(self) -> _NodeHooks:
        """Of this result, there from now on."""
        hooks = _hooks_of(self.node)
        if hooks is None:
            hooks = _NodeHooks(type(self))
            nodes.hook(self.node, hooks)
        return hooks

    @property
    def retains_grad(self) -> bool:
        """True where `backward` gives this result a `.grad`."""
        hooks = _hooks_of(self.node)
        kept = None if hooks is None else hooks.kept.get(id(self))
        return kept is not None and kept() is self


def hooked_sum(tensor: Any, parts: Sequence[Node]) -> Node:
    """The gradient of a Tensor as the sum of those of its Nodes, after a leaf's hooks."""
    total = parts[0]
    for part in parts[1:]:
        total = B.add(total, part)
    hooks = tensor.needs_grad
    return passed(hooks.before, tensor._wrap(total)).node if type(hooks) is LeafHooks else total
