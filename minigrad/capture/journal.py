"""The Tensors that were there before a capture: their buffers, what may not change, and what did."""
from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from minigrad.capture.arguments import Place
from minigrad.capture.recorder import Recorder
from minigrad.engine.storage import leaf_of_type, settle_down
from minigrad.errors import MinigradError
from minigrad.handles import changed, live
from minigrad.mixins.memory import datas, pass_on, settled
from minigrad.ops.kinds import Type, same_type
from minigrad.ops.node import Node
from minigrad.ops.op import Shape
from minigrad.ops.storage import ASSIGN, BUFFER
from minigrad.ownership import held_by_at_most
from minigrad.runtime.device import Buffer
from minigrad.stores import Store, at_once, store
from minigrad.tensor import Tensor


def settle(tensors: Iterable[Tensor]) -> None:
    """Computes the Tensors that are still lazy. A constant gets a buffer, which makes it data.

    A Tensor that cannot be computed (a Variable without a value) stays lazy: code that needs its value gets the error.
    """
    pending = [t for t in tensors if t.node.storage is None]
    if not pending:
        return
    try:
        Tensor.realize(*pending)
    except MinigradError:
        for t in pending:
            try:
                t.realize()
            except MinigradError:
                continue


@dataclass(slots=True)
class Guard:
    """A Tensor as it was at entry, with the value and the gradient that it had: what must hold for it at the entry of a
    replay. Weak, so that watching keeps nothing alive and shares nothing."""

    tensor: ref[Tensor]
    type: Type
    needs_grad: Any
    grad_shape: Shape | None
    buffer: ref[Buffer] | None
    grad: ref[Tensor] | None

    @classmethod
    def of(cls, t: Tensor) -> Guard:
        node, grad = t.node, t.kept_grad
        storage = node.storage
        return cls(ref(t), node.type, t.needs_grad, None if grad is None else grad.shape,
                   None if storage is None else ref(storage), None if grad is None else ref(grad))

    def broken(self, t: Tensor | None) -> str | None:
        """A sentence that says why the capture does not hold for this Tensor; None if it does."""
        if t is None:
            return "a tensor that it used is gone"
        what, now, grad = self.type, t.node.type, t.kept_grad
        shape = list(what.shape)
        if not same_type(now, what):
            return f"a tensor that it used was {what.dtype}{shape}, and is {now.dtype}{list(now.shape)}"
        if (grad is None) is not (self.grad_shape is None):
            return f"a tensor of shape {shape} has {'no' if grad is None else 'a'} gradient now"
        if t.needs_grad is not self.needs_grad:
            return (f"requires_grad of a tensor of shape {shape} is {t.requires_grad} now" if
                    t.requires_grad is not bool(self.needs_grad) else f"a tensor of shape {shape} has other hooks now")
        if self.grad_shape is not None and grad is not None and grad.shape != self.grad_shape:
            return f"a gradient had the shape {list(self.grad_shape)}, and has {list(grad.shape)}"
        return None


@dataclass(slots=True)
class Rebind:
    """At the end of a replay, `place` gets the value in `register`; register None clears a gradient."""

    place: Place
    register: int | None
    type: Type
    fresh: bool = False  # a gradient that is a new Tensor


@dataclass
class Journal:
    """The Tensors at entry: arguments first (with their numbers as owners), then all others that live.

    `mine` are ids of those that this thread changes meanwhile, `asked` of those whose gradient it looks for;
    `disturbed` is True once another thread has changed some.
    """

    inputs: list[Tensor]
    mine: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    disturbed: bool = False
    watched: list[Guard] = field(default_factory=list)
    places: dict[int, tuple[ref[Buffer], Place]] = field(default_factory=dict)
    shared: dict[int, list[Place]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = {id(t) for t in self.inputs}
        others = [t for t in live() if id(t) not in own]
        gradients = {id(t.kept_grad) for t in (*self.inputs, *others) if t.kept_grad is not None} - own
        # A gradient is known by its owner: the Tensor itself is another one after each backward.
        tensors = [*self.inputs, *(t for t in others if id(t) not in gradients)]
        self.watched = [Guard.of(t) for t in tensors]
        for owner, t in enumerate(tensors):
            if owner < len(self.inputs) and any(t is i for i in self.inputs[:owner]):
                continue
            self._add(t, (owner, False))
            if t.kept_grad is not None and id(t.kept_grad) in gradients:
                self._add(t.kept_grad, (owner, True))

    def _add(self, t: Tensor, place: Place) -> None:
        buffer = t.node.storage
        if buffer is None:
            return
        known = self.places.setdefault(id(buffer), (ref(buffer), place))
        if known[1] != place:
            self.shared.setdefault(id(buffer), [known[1]]).append(place)

    def alive(self) -> set[int]:
        """Ids of the watched Tensors that still live, and of their gradients before and now."""
        found: set[int] = set()
        for w in self.watched:
            t = w.tensor()
            before = None if w.grad is None else w.grad()
            found.update(id(x) for x in (t, before, None if t is None else t.kept_grad) if x is not None)
        return found

    def looked_at(self) -> list[Place]:
        """Tensors that the function changed, or whose gradient it looked for: it may depend on there being none."""
        ids = self.mine | self.asked
        return [(owner, False) for owner, w in enumerate(self.watched) if id(w.tensor()) in ids]

    def changed(self) -> list[Tensor]:
        """Watched Tensors and gradients that are lazy now, because the function assigned them."""
        found: list[Tensor] = []
        for w in self.watched:
            t = w.tensor()
            if t is None:
                continue
            if t.node.storage is None and w.buffer is not None and id(t) in self.mine:
                found.append(t)
            if t.kept_grad is not None and t.kept_grad.node.storage is None and self._is_my_gradient(t):
                found.append(t.kept_grad)
        return found

    def _is_my_gradient(self, t: Tensor) -> bool:
        """True where this thread gave `t` its gradient, or gave that gradient its value, or where the gradient is an
        argument, which is guarded as one."""
        return id(t) in self.mine or id(t.kept_grad) in self.mine or any(t.kept_grad is i for i in self.inputs)

    def rebinds(self, recorder: Recorder) -> list[Rebind]:
        """The changes that a replay must make to the Tensors that were there before."""
        found: list[Rebind] = []
        seen: set[int] = set()
        for owner, w in enumerate(self.watched):
            t = w.tensor()
            if t is None or id(t) in seen:  # an argument may be there twice
                continue
            seen.add(id(t))
            if w.buffer is not None and not self._as_before(t, w.buffer, (owner, False), recorder):
                if id(t) in self.mine:
                    found.append(self._rebind(t, (owner, False), recorder))
                else:
                    self.disturbed = True
            before = None if w.grad is None else w.grad()
            gradient = t.kept_grad
            if gradient is None and w.grad_shape is None:
                continue
            if gradient is not None and gradient is before and self._unmoved(gradient, (owner, True), recorder):
                continue
            if not self._is_my_gradient(t):
                self.disturbed = True
            elif gradient is None:
                found.append(Rebind((owner, True), None, t.node.type))
            else:
                found.append(self._rebind(gradient, (owner, True), recorder, fresh=gradient is not before))
        return found

    def _unmoved(self, t: Tensor, place: Place, recorder: Recorder) -> bool:
        """True where the buffer of `t` is the one at `place`, with the value it had at entry."""
        buffer = t.node.storage
        if recorder.touched(buffer):
            return recorder.recording.places.get(recorder.register(buffer)) is not None and \
                place in self._sharing(buffer)
        return place in self._sharing(buffer)

    def _sharing(self, buffer: Buffer) -> list[Place]:
        found = self.places.get(id(buffer))
        if found is None or found[0]() is not buffer:
            return []
        return self.shared.get(id(buffer), [found[1]])

    def _as_before(self, t: Tensor, before: ref[Buffer], place: Place, recorder: Recorder) -> bool:
        return before() is t.node.storage and self._unmoved(t, place, recorder)

    def _rebind(self, t: Tensor, place: Place, recorder: Recorder, fresh: bool = False) -> Rebind:
        node = settled(t)
        if not recorder.touched(node.storage) and recorder.place(node.storage) is None:
            self.disturbed = True  # another thread has assigned to it, too
        return Rebind(place, recorder.register(node.storage), node.type, fresh)


def escaped(journal: Journal, known: Iterable[Tensor]) -> bool:
    """True where a Tensor that the function made, and did not return, lives on: a replay would not update it."""
    returned = {id(t) for t in known}

    def survivors() -> bool:
        accounted = journal.alive() | returned
        return any(id(t) not in accounted for t in live())

    if survivors():
        gc.collect()
        return survivors()
    return False


# ---- giving Tensors new values ----


def held_by_others(t: Tensor, variables: int) -> bool:
    """True where somebody but `t` and the caller holds its value, or may write it. `variables`: the number of the
    caller's references to the buffer."""
    settle_down(t.node)
    return t.node.storage.shared or not held_by_at_most(1, [t.node]) or \
        not held_by_at_most(1 + variables, [t.node.storage])


def reusable_gradient(t: Tensor) -> bool:
    """True where nobody but `t` holds its gradient, so that its memory may be that of the next one."""
    if not held_by_at_most(1, [t.kept_grad]):
        return False
    grad = t.kept_grad
    return grad is not None and not grad.requires_grad and grad.kept_grad is None


def rebindable(node: Node) -> bool:
    """True where a Node does nothing but stand for its storage, so that it may be given another one."""
    return node.op is BUFFER or (node.op is ASSIGN and not node.inputs)


def put(t: Tensor, buffer: Buffer, what: Type) -> None:
    """Makes `buffer` the value of `t`, of this type."""
    at_once(giving(t, buffer, what))
    changed()
    if datas:
        pass_on(t)


def giving(t: Tensor, buffer: Buffer, what: Type) -> list[Store]:
    """The stores of `put`, for a caller that reports the change itself (`handles.changed`)."""
    alone = held_by_at_most(1, [t.node])
    node, found = t.node, [store(t, "lazy_node", None)]
    leaf = rebindable(node)
    # A leaf that only this Tensor holds can be given another buffer; making a Node costs more.
    if leaf and alone and same_type(node.type, what):
        found.append(store(node, "storage", buffer))
    elif not leaf or node.storage is not buffer:
        if node.storage is buffer:  # it is overwritten, and the Node means the old value
            found.append(store(node, "storage", None))
        found.append(store(t, "node", leaf_of_type(what, buffer)))
    return found
