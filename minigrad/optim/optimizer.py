"""The base of all optimizers: the parameters, the learning rate, their state, and one realize per step."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from minigrad import dtype as dtypes
from minigrad.errors import MinigradError, ShapeError, quantity
from minigrad.graph.blocks import block
from minigrad.mixins.base import as_number
from minigrad.mixins.memory import assign_all
from minigrad.mixins.modes import of_modules
from minigrad.ops.node import Node
from minigrad.optim.states import (
    MEANS,
    ParamGroup,
    given_parameters,
    load_states,
    made_in_groups,
    option_names,
    options_of,
    signature_of,
    state_of,
    states_of,
)
from minigrad.optim.statistics import take_moved
from minigrad.tensor import Tensor

Params = Iterable[Tensor | tuple[str, Tensor] | Mapping[str, Any]]
"""Parameters, alone or with their names, or parameter groups with options of their own (see Optimizer)."""

Gradients = list[Tensor | None]
"""Of each parameter; None of those that have none, or are frozen."""


class Optimizer:
    """Updates the Tensors in `params` that have `requires_grad`; each is listed once, however often it is given.

    Running statistics that layers have moved since the last step are brought up to date in the same plan, as are
    Tensors without `requires_grad` in `params`. A parameter without a gradient, or that is frozen later
    (`requires_grad` is False), is left as it is with its state. One that is unfrozen later is updated from then on, as
    the last of `params`. State follows parameters to other devices and types. Everything that changes from step to
    step, the learning rate included, is a Tensor made here, so that a captured step (`jit`) sees it; other options may
    be set too, and a captured step is then captured again. Raises MinigradError for no parameters, and for options that
    are below 0.

    PyTorch's `foreach`, `fused` and `capturable` are taken and change nothing: each step is one plan, and can be
    captured. As in PyTorch, `params` may be a list of dictionaries: Tensors under 'params', options that differ for
    them from the others, and whatever else is to be found in `param_groups`.

    A class may be derived from one of these, or, with a `step` of its own, from Optimizer, as in PyTorch:
    `super().__init__(params, defaults)` with a dictionary of options makes `param_groups` and `state`, which is what
    `step` puts there.
    """

    kind: type[Optimizer]
    """The class of this library whose options and state these are."""

    join: ClassVar[Callable[..., None]]
    """`groups.join`: makes this one of several, its parameter groups."""

    own: ClassVar[Callable[..., None]]
    """`groups.own`: makes this one that computes its steps itself."""

    weight_decay: float = 0.0
    maximize: bool = False
    momentum: float
    nesterov: bool
    eps: float
    defaults: dict[str, Any]
    extras: dict[str, Any]
    given: list[Tensor]
    params: list[Tensor]
    buffers: list[Tensor]
    times: list[Tensor]
    _cycled: Tensor | None  # the momentum, or the first of betas, where a schedule changes it

    state_names: Mapping[str, str] = {}
    """PyTorch's names of what is kept for a parameter, and the attributes that have it: a list with a Tensor for each
    parameter."""

    shared_names: tuple[str, ...] = ()
    """Those of these attributes that count steps: a Tensor there is that of all parameters with the same steps."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Gives the optimizers of this library PyTorch's ways to be made. Others are made as they say."""
        super().__init_subclass__(**options)
        init = vars(cls).get("__init__")
        if init is not None and cls.__module__.startswith("minigrad.") and "params" in signature_of(init).parameters:
            type.__setattr__(cls, "__init__", made_in_groups(cls, init))

    def __init__(self, params: Params, defaults: float | Tensor | Mapping[str, Any], **options: Any):
        if "kind" not in self.__dict__:
            return self.own(self, params, defaults)
        lr: Any = defaults
        self.given = given_parameters(type(self).__name__, params)
        self.params = [p for p in self.given if p.requires_grad]
        self.buffers = [p for p in self.given if not p.requires_grad]
        for name, value in options.items():
            setattr(self, name, self._option(name, value))
        self.device = self.given[0].device if self.given else Tensor(0).device
        self._precision = self._precision_of_lr()
        self._lr = self._scalar(lr)
        self._initial_lr: Tensor | None = None
        self._cycled = None
        Tensor.realize(self._lr, *self.params, *self.buffers)

    _transient: tuple[str, ...] = ()

    def begin_as(self, kind: type[Optimizer], init: Callable[..., None], group: Mapping[str, Any],
                  options: Mapping[str, Any]) -> Optimizer:
        """Makes this one by `init`, that of `kind`, for a parameter group with options of its own beside others."""
        known, before = {"lr", *option_names(kind)}, {*self.__dict__}
        self.kind = kind
        rest = {name: value for name, value in group.items() if name != "params" and name not in MEANS}
        init(self, group["params"], **{**options, **{name: v for name, v in rest.items() if name in known}})
        self.extras = {name: value for name, value in rest.items() if name not in known}
        self._transient = ("given", "defaults", "extras")
        self._names = frozenset({*self.__dict__, "state_names", "shared_names"} - before)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if not isinstance(value, Tensor):
            of_modules.switch(self)

    @property
    def captured_mode(self) -> Any:
        """The properties that a captured step depends on besides Tensors."""
        return tuple((type(m).__name__, m._cycled is None, *map(repr, options_of(m).values()), *map(id, m.params),
                      *(id(t) for name in m.shared_names for t in getattr(m, name))) for m in self.members)

    def _precision_of_lr(self) -> dtypes.DType:
        """float64 where all parameters are, else float32."""
        return dtypes.float64 if self.given and all(p.dtype is dtypes.float64 for p in self.given) else dtypes.float32

    def _option(self, name: str, value: Any) -> Any:
        """An option as a Python number; others than bools are at least 0."""
        if isinstance(value, bool):
            return value
        number = as_number(type(self).__name__, name, value)
        if not number >= 0:
            raise MinigradError(f"[{type(self).__name__}] expected {name} of at least 0, got {value!r}")
        return number

    def _scalar(self, value: float | Tensor) -> Tensor:
        """A Tensor of shape () of our own, on the parameters' device: float64 if all of them are, else float32."""
        if isinstance(value, Tensor):
            if any(d != 1 for d in value.shape):
                raise ShapeError(f"[{type(self).__name__}] expected one number, got a Tensor of {list(value.shape)}")
            return value.detach().reshape(()).cast(self._precision).to(self.device).contiguous()
        number = self._option("the learning rate", value)
        return Tensor(float(number), device=self.device, dtype=self._precision, requires_grad=False).contiguous()

    def _zeros(self) -> list[Tensor]:
        """A zero for each element of each parameter, in storage of its own."""
        return [Tensor.zeros(*p.shape, dtype=p.dtype, device=p.device, requires_grad=False).contiguous()
                for p in self.params]

    @staticmethod
    def _compute(*tensors: Tensor) -> None:
        """Realizes them, if there are any."""
        if tensors:
            Tensor.realize(*tensors)

    @property
    def members(self) -> list[Optimizer]:
        """The optimizers with a learning rate of their own that this one is made of."""
        return [self]

    @property
    def param_groups(self) -> list[ParamGroup]:
        """By parameter group: `group["params"]`, `group["lr"]`, which is read as a number, and other options. All can
        be set."""
        return [ParamGroup(member) for member in self.members]

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Adds Tensors, under 'params', that are updated too from now on; options that `group` lacks are those that
        this optimizer was made with. Raises MinigradError for parameters that are in a parameter group already."""
        if not isinstance(group, Mapping) or "params" not in group:
            raise MinigradError(f"[add_param_group] expected a dictionary with Tensors under 'params', got {group!r}")
        members = self.members
        if members == [self]:
            first = object.__new__(self.kind)
            first.__dict__.update({name: self.__dict__.pop(name) for name in self._names if name in self.__dict__})
            members = [first]
        self.join(self, [*members, members[0].beside({**self.defaults, **group})])
        of_modules.switch(self)

    def beside(self, group: Mapping[str, Any]) -> Optimizer:
        """Another of this kind, for the Tensors and with the options of `group`."""
        return object.__new__(self.kind).begin_as(self.kind, vars(self.kind.__init__)["__wrapped__"], group, {})

    @property
    def lr(self) -> Tensor:
        """The learning rate, shape (). Setting it assigns the Tensor, which a captured step reads."""
        return self._lr

    @lr.setter
    def lr(self, value: float | Tensor) -> None:
        self._lr.assign(self._scalar(value)).realize()

    def initial_lr(self) -> Tensor:
        """The learning rate when a schedule first asked for it: what schedules start from."""
        if self._initial_lr is None:
            self._initial_lr = self._lr.clone().realize()
        return self._initial_lr

    def cycled(self) -> Tensor | None:
        """The momentum, or the first of betas, as a Tensor that steps read from now on in its place, of shape (); None
        where there is neither."""
        return None

    def _cycled_from(self, value: float) -> Tensor:
        if self._cycled is None:
            self._cycled = self._scalar(value).realize()
            of_modules.switch(self)
        return self._cycled

    def _inertia(self, value: float, like: Tensor) -> Any:
        """The factor of a running mean or sum such as `like`: `value`, or the Tensor that a schedule sets in its
        place."""
        return value if self._cycled is None else self._cycled.cast(like.dtype)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients, or makes them zeros without `set_to_none`."""
        for p in self.given:
            p.grad = None if set_to_none or p.grad is None else p.grad.zeros_like()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters that have a gradient; forward, backward and update run as one plan. A `closure` is
        called before, and its result is returned."""
        result = None
        if closure is not None:
            with Tensor.enable_grad():
                result = closure()
        Tensor.realize(*self.schedule_step())
        return result

    def schedule_step(self) -> list[Tensor]:
        """Assigns everything that a step changes, and returns it unrealized: realize it together with the loss."""
        of_modules.ask(self)
        assign_all(self.advanced())
        return self.changed()

    def changed(self) -> list[Tensor]:
        """Everything that a step may change."""
        kept = [t for name in self.state_names.values() for t in getattr(self, name) if t is not None]
        return list({id(t): t for t in (*self.params, *kept, *self.buffers, *take_moved())}.values())

    def _follow(self) -> None:
        """Takes the state to where the parameters are, in the types that they have now."""
        if not self.params:
            return
        device, precision = self.params[0].device, self._precision_of_lr()
        if (device, precision) != (self.device, self._precision):
            self.device, self._precision = device, precision
        scalars = [self._lr, self._initial_lr, self._cycled, *[t for n in self.shared_names for t in getattr(self, n)]]
        wanted = [(t, device, precision) for t in scalars]
        for name in set(self.state_names.values()).difference(self.shared_names):
            wanted += [(t, p.device, p.dtype) for t, p in zip(getattr(self, name), self.params, strict=False)]
        for t, device, dtype in wanted:
            if t is not None and (t.dtype is not dtype or t.device != device):
                t.to_(device, dtype)

    def _take_over(self, late: list[Tensor]) -> None:
        """Makes parameters of Tensors that were frozen when this optimizer was made."""
        fresh = self.beside({"params": late, "lr": self._lr, **options_of(self)})
        for name in self.state_names.values():
            setattr(self, name, [*getattr(self, name), *getattr(fresh, name)])
        self.params = [*self.params, *late]
        self.buffers = [b for b in self.buffers if not b.requires_grad]

    def _part_counts(self, gradients: Gradients) -> None:
        """Gives parameters without a gradient a count of their own, where others that share their count have one."""
        for name in self.shared_names:
            counts = getattr(self, name)
            moved = {id(t) for t, g in zip(counts, gradients, strict=True) if g is not None}
            left = {id(t): t for t, g in zip(counts, gradients, strict=True) if g is None and id(t) in moved}
            if left:
                own = {k: t.clone() for k, t in left.items()}
                setattr(self, name, [t if g is not None else own.get(id(t), t)
                                     for t, g in zip(counts, gradients, strict=True)])

    def _begin_counts(self) -> None:
        """Keeps how many steps were made of each parameter: one Tensor, for they had them together so far."""
        self.times = [self._scalar(0.0).realize()] * len(self.params)

    def _by_time(self, gradients: Gradients, terms: Callable[[Tensor, int], Any]) -> list[Any]:
        """For each parameter with a gradient `terms(number of this step, index)`, once for all that share a count; the
        counts are set."""
        found: list[Any] = [None] * len(gradients)
        known: dict[int, Any] = {}
        for index, g in enumerate(gradients):
            if g is None:
                continue
            count = self.times[index]
            if id(count) not in known:
                time = count + 1
                known[id(count)] = terms(time, index)
                self._set(count, time)
            found[index] = known[id(count)]
        return found

    def _each(self, gradients: Gradients, *state: Any) -> Iterator[tuple[Any, ...]]:
        """(parameter, gradient, what each of `state` has for it) of the parameters that have one."""
        return ((p, g, *kept) for p, g, *kept in zip(self.params, gradients, *state, strict=True) if g is not None)

    def advanced(self) -> list[tuple[Tensor, Node]]:
        """The next values of the parameters with a gradient and of what is kept for them: `_update` of an optimizer
        like this one, with others in place of its Tensors. All of it is one Block, which no gradient goes through."""
        self._follow()
        late = [b for b in self.buffers if b.requires_grad]
        if late:
            self._take_over(late)
        gradients = [p.grad if p.requires_grad else None for p in self.params]
        self._check()
        at = [k for k, g in enumerate(gradients) if g is not None]
        if not at:
            return []
        self._part_counts(gradients)
        lists = {name: getattr(self, name) for name in ("params", *self.state_names.values())}
        rows = {name: [kept[k] for k in at] for name, kept in lists.items() if kept}
        changed = list({id(t): t for row in rows.values() for t in row if t is not None}.values())
        cycled = [] if self._cycled is None else [self._cycled]
        places = {id(t): k for k, t in enumerate(changed)}
        shared = [places[id(t)] for name in self.shared_names for t in rows.get(name, ())]

        def body(*nodes: Node) -> list[Node]:
            given = iter([Tensor._wrap(n) for n in nodes])
            like = {id(t): next(given) for t in changed}
            other = object.__new__(type(self))
            other.__dict__.update(self.__dict__, _lr=next(given), _cycled=next(given) if cycled else None,
                                  **{name: [like.get(id(t)) for t in lists[name]] for name in rows})
            other._update([g if g is None else -next(given) if self.maximize else next(given) for g in gradients])
            return [t.node for t in like.values()]

        key = type(self), repr([*options_of(self).values()]), (*rows,), bool(cycled), (*shared,), (*at,)
        operands = [*changed, self._lr, *cycled, *[gradients[k] for k in at]]
        new = block(type(self).__name__.lower(), key, body, [t.node for t in operands], detached=True)
        return list(zip(changed, new, strict=True))

    def _check(self) -> None:
        """Raises MinigradError for options that need what is not kept."""

    def _decayed(self, gradient: Tensor, p: Tensor) -> Tensor:
        """The gradient with that of weight_decay/2 times the sum of squares."""
        return gradient + p * self.weight_decay if self.weight_decay else gradient

    def _update(self, gradients: Gradients) -> None:
        """Sets (`_set`) the parameters and the state by what they and the options are: `advanced` makes a Block of it.
        """
        raise MinigradError(f"[{type(self).__name__}] expected a class with a step of its own")

    @staticmethod
    def _set(kept: Tensor, value: Tensor) -> None:
        """Lets a parameter, or what is kept for one, stand for its next value in `_update`."""
        kept.node = value.node if value.dtype is kept.dtype else value.cast(kept.dtype).node

    # State

    @property
    def state(self) -> dict[Tensor, dict[str, Tensor]]:
        """The state of each parameter, by PyTorch's names, as in `state_dict`."""
        return {p: state_of(m, k) for m in self.members for k, p in enumerate(m.params)}

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's dictionary: under 'state' the state of each parameter, by its number and PyTorch's names, and under
        'param_groups' the options of each parameter group, with the numbers of its parameters.

        The Tensors are those that the next steps change, as a Module's `state_dict` has its own: save them, or copy
        them with `copy.deepcopy`.
        """
        return states_of(self.members)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over a `state_dict`, of ours or of PyTorch's optimizer of this name: options and state.

        Tensors are copied. Numbers go on as they would have, bit for bit, also where a step was captured before. Raises
        MinigradError, before anything is changed, for other numbers of parameter groups or parameters, for names that
        are missing or unknown, and ShapeError for other shapes.
        """
        load_states(self.members, state)

    def __repr__(self) -> str:
        groups = [", ".join([f"lr={m.lr.item():.6g}", *(f"{n}={v!r}" for n, v in options_of(m).items())])
                  for m in self.members]
        lines = "".join(f"  {type(m).__name__}, {quantity(len(m.params), 'parameter')}: {g}\n"
                        for m, g in zip(self.members, groups, strict=True))
        return f"{type(self).__name__}(\n{lines})"
