"""Gradients by other rules than those of operations: `Function`, and PyTorch's `grad` and `backward` as functions."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from weakref import ref

from minigrad.errors import DTypeError, MinigradError, ShapeError
from minigrad.graph.autodiff import History
from minigrad.handles import changed
from minigrad.mixins.base import as_tensor, broadcast_shapes
from minigrad.ops import build as B
from minigrad.ops.calls import call, output
from minigrad.ops.node import Node
from minigrad.tensor import Tensor


class Context:
    """The state of one call that `forward` leaves for `backward`: Tensors by `save_for_backward`, all else as
    attributes.

    `needs_input_grad` has a bool for each argument of `forward`: in `backward`, True where a gradient of this argument
    is used; in `forward`, True where it is a float Tensor while gradients are recorded.
    """

    def __init__(self, needs_input_grad: tuple[bool, ...]):
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Tensor | None, ...] = ()
        self._ended: list[Node] = []
        self._materialize = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps arguments, results or what else was computed for `saved_tensors` in `backward`, with the values that
        they have now. Gradients of gradients go through arguments and results. Raises DTypeError for others than
        Tensors and None."""
        self.saved_tensors = tuple([t if t is None else Tensor.over(as_tensor("save_for_backward", t).node)
                                    for t in tensors])

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Says that no gradient goes through these results. Those that are no floats have none anyway."""
        self._ended += [as_tensor("mark_non_differentiable", t).node for t in tensors]

    def set_materialize_grads(self, value: bool) -> None:
        """Makes `backward` get zeros (True, the default) or None for results that have no gradient."""
        self._materialize = value


class Function:
    """An operation with a gradient of one's own: `forward(ctx, *args)` computes it and `backward(ctx, *gradients)` the
    gradients of its arguments, both as static methods that use Tensors. `apply(*args)` calls it.

        class Exp(autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = x.exp()
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, gradient):
                y, = ctx.saved_tensors
                return gradient * y

        y = Exp.apply(x)

    `forward` gives a Tensor or a tuple of Tensors and other values; what it does is not recorded. `backward` gets a
    gradient for each of them, of its shape and dtype (None for what is no Tensor), and gives one for each argument:
    None where there is none, else a Tensor of the argument's shape, or of one that it broadcasts to, which is summed.
    Both build graphs like everything else: what they compute is fused, is part of a capture of `jit`, and can be
    differentiated again. `backward` runs once for each `Tensor.backward` or `gradient` that reaches a result.
    With `setup_context(ctx, inputs, output)`, `forward(*args)` has no ctx. Arguments must not be changed in place.
    Raises MinigradError for gradients that are too few or of what has none, ShapeError for those of another shape.
    """

    setup_context: ClassVar[Callable[..., None] | None] = None

    @staticmethod
    def forward(*args: Any) -> Any:
        """Computes the result of (ctx, *args), or of the arguments alone where there is a `setup_context`."""
        raise MinigradError("[Function] expected a static method forward(ctx, *args)")

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradients of the arguments of `forward`."""
        raise MinigradError("[Function] expected a static method backward(ctx, *gradients)")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """The result of `forward` for these arguments, with gradients by `backward`."""
        recorded = Tensor.is_grad_enabled()
        ctx = Context(tuple([recorded and isinstance(a, Tensor) and a.dtype.is_float for a in args]))
        given = [(k, a) for k, a in enumerate(args) if ctx.needs_input_grad[k]]
        nodes = [a.node for _, a in given]
        with Tensor.no_grad():
            if cls.setup_context is None:
                results = cls.forward(ctx, *args)
            else:
                results = cls.forward(*args)
                cls.setup_context(ctx, args, results)
        if not given:
            return results
        several = isinstance(results, (tuple, list))
        found = tuple(results) if several else (results,)
        rule = _Rule(cls, ctx, args, [k for k, _ in given], found)
        of = call(rule, *nodes)
        made = [result_of(output(of, r.node, k), *[a for _, a in given]) if rule.differentiable[k] else r
                for k, r in enumerate(found)]
        rule.made = {k: ref(r.node) for k, r in enumerate(made) if rule.differentiable[k]}
        return tuple(made) if several else made[0]


def result_of(node: Node, *parents: Tensor) -> Tensor:
    """A Tensor over the result of an operation over `parents`, to which a gradient flows from it."""
    return Tensor._wrap(node, *parents)


class _Rule:
    """Makes gradients of the inputs of one call by its Function's `backward`."""

    def __init__(self, kind: type[Function], ctx: Context, args: Sequence[Any], places: list[int],
                 results: Sequence[Any]):
        self.kind, self.ctx, self.places, self.count = kind, ctx, places, len(args)
        self.made: dict[int, ref[Node]] = {}
        self.results = [r.node if isinstance(r, Tensor) else None for r in results]
        self.differentiable = [n is not None and n.dtype.is_float and n not in ctx._ended for n in self.results]

    def __call__(self, of: Node, gradients: Mapping[int, Node], needed: Sequence[bool]) -> list[Node | None]:
        wanted = [False] * self.count
        for place, need in zip(self.places, needed, strict=True):
            wanted[place] = need
        ctx = self._context(of, tuple(wanted))
        with Tensor.enable_grad():
            given = self.kind.backward(ctx, *[self._gradient(k, gradients) for k in range(len(self.results))])
        parts = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        name = self.kind.__name__
        if len(parts) < self.count or any([p is not None for p in parts[self.count:]]):
            raise MinigradError(f"[{name}.backward] expected a gradient or None for each of {self.count} arguments of "
                                f"forward, got {len(parts)}")
        for place, part in enumerate(parts[:self.count]):
            if part is not None and place not in self.places:
                raise MinigradError(f"[{name}.backward] expected None for argument {place} of forward, which is no "
                                    f"float Tensor, got {part!r}")
        return [self._fitted(parts[place], node) for place, node in zip(self.places, of.inputs, strict=True)]

    def _context(self, of: Node, needed: tuple[bool, ...]) -> Context:
        """A Context for `backward` whose saved Tensors have a history that ends at arguments and results of the
        call."""
        ctx = object.__new__(type(self.ctx))
        ctx.__dict__.update(self.ctx.__dict__)
        ctx.needs_input_grad = needed
        ctx.saved_tensors = tuple([t if t is None else _flowing(Tensor.over(self._seen(of, t.node)))
                                   for t in self.ctx.saved_tensors])
        return ctx

    def _seen(self, of: Node, saved: Node) -> Node:
        """The Node that stands outside of the call for what was saved inside."""
        if saved in of.inputs or saved not in self.results:
            return saved
        number = self.results.index(saved)
        if not self.differentiable[number]:
            return saved
        result = self.made[number]()
        return output(of, saved, number) if result is None else result

    def _gradient(self, number: int, gradients: Mapping[int, Node]) -> Tensor | None:
        node, found = self.results[number], gradients.get(number)
        if found is not None:
            return _flowing(result_of(found))
        return result_of(B.full_like(node, 0)) if node is not None and self.ctx._materialize else None

    def _fitted(self, part: Any, source: Node) -> Node | None:
        """A gradient in the shape, dtype and place of the input."""
        if part is None:
            return None
        name = f"{self.kind.__name__}.backward"
        if not as_tensor(name, part).dtype.is_float:
            raise DTypeError(f"[{name}] expected float gradients, got {part.dtype}")
        if part.shape != source.shape:
            try:
                fits = broadcast_shapes(name, part.shape, source.shape) == part.shape
            except ShapeError:
                fits = False
            if not fits:
                raise ShapeError(f"[{name}] expected a gradient {list(source.shape)}, got {list(part.shape)}")
            part = part.sum_to_size(*source.shape)
        return part.to(source.device).cast(source.dtype).node


def _flowing(made: Tensor) -> Tensor:
    """`made` as a result that gradients go through."""
    made.needs_grad = made.dtype.is_float
    changed()
    return made


def _total(name: str, outputs: Any, grad_outputs: Any) -> tuple[Tensor, Tensor | None]:
    """(`outputs`, its seed) where it is one Tensor, else (the sum of all elements times their seeds, None)."""
    several = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    seeds = [grad_outputs] if grad_outputs is None or isinstance(grad_outputs, Tensor) else list(grad_outputs)
    seeds = [None] * len(several) if seeds == [None] else seeds
    if not several or len(seeds) != len(several):
        raise MinigradError(f"[{name}] expected at least one output and a gradient or None for each, "
                            f"got {len(several)} and {len(seeds)}")
    if len(several) == 1:
        return as_tensor(name, several[0]), seeds[0]
    total: Any = 0.0
    for t, seed in zip(several, seeds, strict=True):
        if seed is None and any(d != 1 for d in as_tensor(name, t).shape):
            raise ShapeError(f"[{name}] expected a gradient for an output of more than one element, got none for "
                             f"{list(t.shape)}")
        if seed is not None and as_tensor(name, seed).shape != t.shape:
            raise ShapeError(f"[{name}] expected a gradient {list(t.shape)}, got {list(seed.shape)}")
        total = total + (t if seed is None else t * seed.detach()).sum()
    return total, None


def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: bool | None = None,
         create_graph: bool = False, allow_unused: bool | None = None, materialize_grads: bool = False,
         ) -> tuple[Tensor | None, ...]:
    """The gradients of the sum of `outputs` with respect to `inputs`, a Tensor or several of either, as a tuple.

    `grad_outputs`: a Tensor of its shape for each output that has more than one element. `create_graph`: gradients go
    through the result. An input that no output was made from raises MinigradError, gives None with `allow_unused` or
    zeros with `materialize_grads`. `.grad` stays; `retain_graph` changes nothing.
    """
    total, seed = _total("grad", outputs, grad_outputs)
    targets = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    used = targets
    if allow_unused and not materialize_grads:
        made_from = History(total.node)
        used = [t for t in targets if any([n in made_from for n in as_tensor("grad", t)._gradient_nodes()])]
    found = total.gradient(*used, gradient=seed, materialize_grads=materialize_grads) if used else []
    by_target = dict(zip(map(id, used), found if create_graph else [t.detach() for t in found], strict=True))
    return tuple([by_target.get(id(t)) for t in targets])


def backward(tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None,
             create_graph: bool = False) -> None:
    """`Tensor.backward` of the sum of several tensors, with a gradient or None for each in `grad_tensors`."""
    total, seed = _total("backward", tensors, grad_tensors)
    total.backward(seed, create_graph=create_graph)


no_grad, enable_grad, set_grad_enabled = Tensor.no_grad, Tensor.enable_grad, Tensor.set_grad_enabled

__all__ = ["Function", "backward", "enable_grad", "grad", "no_grad", "set_grad_enabled"]
