"""The options and the state of optimizers as PyTorch's dictionaries, and loading them back."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from minigrad.errors import MinigradError, ShapeError, quantity
from minigrad.tensor import Tensor

if TYPE_CHECKING:
    from minigrad.optim.optimizer import Optimizer


MEANS = ("foreach", "fused", "capturable", "differentiable")
"""PyTorch's options that say how a step is computed."""


def given_parameters(name: str, params: Any) -> list[Tensor]:
    """Each Tensor once, from a Tensor, several, or (name, Tensor) as `named_parameters()` gives."""
    given = [params] if isinstance(params, Tensor) else list(params) if isinstance(params, Iterable) else [None]
    given = [p[1] if isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) else p for p in given]
    wrong = [type(p).__name__ for p in given if not isinstance(p, Tensor)]
    if wrong:
        what = type(params).__name__ if wrong == ["NoneType"] and len(given) == 1 else wrong[0]
        raise MinigradError(f"[{name}] expected Tensors, such as nn.state.get_parameters(model), got {what}")
    return list({id(p): p for p in given}.values())


def parameter_groups(name: str, params: Any) -> list[Mapping[str, Any]]:
    """Parameter groups as they are, or all parameters as one. Raises MinigradError for none, and for groups without
    'params'."""
    if isinstance(params, (tuple, list)) and any(isinstance(g, Mapping) for g in params):
        if not all(isinstance(g, Mapping) and "params" in g for g in params):
            raise MinigradError(f"[{name}] expected Tensors under 'params' in each group, got "
                                f"{[list(g) if isinstance(g, Mapping) else type(g).__name__ for g in params]}")
        return list(params)
    found = given_parameters(name, params)
    if not found:
        raise MinigradError(f"[{name}] expected at least one parameter, got none")
    return [{"params": found}]


signature_of: Callable[..., inspect.Signature] = lru_cache(inspect.signature)


def made_in_groups(kind: type[Optimizer], init: Callable[..., None]) -> Callable[..., None]:
    """`init` of an optimizer of this library, which takes parameter groups, too, and those of PyTorch's options that
    say how it computes a step."""
    @wraps(init)
    def made(self: Optimizer, params: Any = (), *args: Any, **options: Any) -> None:
        if options.get("differentiable"):
            raise MinigradError(f"[{kind.__name__}] expected differentiable=False, got True: no gradient goes "
                                "through a step")
        options = {name: value for name, value in options.items() if name not in MEANS}
        if "kind" in self.__dict__:  # called by that of a class below
            return init(self, params, *args, **options)
        given = dict(signature_of(init).bind_partial(self, params, *args, **options).arguments)
        named = {**{name: given[name] for name in [*given][2:] if name != "options"}, **given.get("options", {})}
        groups = parameter_groups(kind.__name__, params)
        if len(groups) == 1:
            self.begin_as(kind, init, groups[0], named)
        else:
            self.join(self, [object.__new__(kind).begin_as(kind, init, group, named) for group in groups])
        self.defaults = {name: named.get(name, of.default) for name, of in signature_of(init).parameters.items()
                         if name in ("lr", *option_names(kind))}

    return made


def options_of(optimizer: Optimizer) -> dict[str, Any]:
    """The options of one optimizer other than its learning rate, by the names that its class takes."""
    return {name: getattr(optimizer, name) for name in option_names(optimizer.kind)}


def option_names(kind: type[Optimizer]) -> list[str]:
    """The options that a class of this library takes, other than the learning rate."""
    return _option_names(kind.__init__)


@lru_cache
def _option_names(init: Any) -> list[str]:
    return [n for n in inspect.signature(init).parameters if n not in ("self", "params", "lr", "group")]


class ParamGroup(MutableMapping):
    """One of PyTorch's `param_groups`: stands for an optimizer, whose options are read and set by name, beside what
    else is put here."""

    def __init__(self, optimizer: Optimizer):
        self._optimizer = optimizer

    def __iter__(self) -> Iterator[str]:
        known = ["initial_lr"] if self._optimizer._initial_lr is not None else []
        return iter(["params", "lr", *known, *options_of(self._optimizer), *self._optimizer.extras])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> Any:
        if name not in list(self):
            raise KeyError(f"[param_groups] expected one of {', '.join(self)}, got {name!r}")
        if name == "params":
            return self._optimizer.given
        if name in ("lr", "initial_lr"):
            return getattr(self._optimizer, f"_{name}").item()
        if name in self._optimizer.extras:
            return self._optimizer.extras[name]
        value, cycled = getattr(self._optimizer, name), self._optimizer._cycled
        if cycled is not None and name in ("momentum", "betas"):
            return cycled.item() if name == "momentum" else (cycled.item(), value[1])
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "params":
            raise MinigradError("[param_groups] expected another group by add_param_group, got other 'params'")
        if name == "initial_lr":
            self._optimizer.initial_lr().assign(self._optimizer._scalar(value)).realize()
        elif name == "lr" or name in options_of(self._optimizer):
            setattr(self._optimizer, name, value)
        else:
            self._optimizer.extras = {**self._optimizer.extras, name: value}

    def __delitem__(self, name: str) -> None:
        if name not in self._optimizer.extras:
            raise KeyError(f"[param_groups] expected one of {', '.join(self._optimizer.extras)}, got {name!r}")
        self._optimizer.extras = {n: value for n, value in self._optimizer.extras.items() if n != name}

    def __repr__(self) -> str:
        return repr({**self, "params": quantity(len(self._optimizer.given), "parameter")})


def state_of(optimizer: Optimizer, index: int) -> dict[str, Tensor]:
    """The state that one optimizer keeps for its parameter at `index`, by PyTorch's names."""
    found = {name: getattr(optimizer, attribute) for name, attribute in optimizer.state_names.items()}
    return {name: kept[index] for name, kept in found.items() if kept and kept[index] is not None}


def states_of(members: list[Optimizer]) -> dict[str, Any]:
    """The dictionary of all members."""
    state: dict[int, dict[str, Tensor]] = {}
    groups = []
    count = 0
    for member in members:
        numbers = list(range(count, count + len(member.given)))
        count += len(numbers)
        by_id = {id(p): n for p, n in zip(member.given, numbers, strict=True)}
        state.update({by_id[id(p)]: kept for k, p in enumerate(member.params) if (kept := state_of(member, k))})
        groups.append({**ParamGroup(member), "params": numbers})
    return {"state": state, "param_groups": groups}


def load_states(members: list[Optimizer], given: Mapping[str, Any]) -> None:
    """Gives all members what `states_of` made; everything is checked before anything is changed."""
    name = type(members[0]).__name__
    if not isinstance(given, Mapping) or not {"state", "param_groups"} <= set(given):
        raise MinigradError(f"[{name}.load_state_dict] expected a dictionary with 'state' and 'param_groups', got "
                            f"{list(given) if isinstance(given, Mapping) else type(given).__name__}")
    state, groups = given["state"], given["param_groups"]
    sizes, own = [len(g["params"]) for g in groups], [len(m.given) for m in members]
    if sizes not in (own, [len(m.params) for m in members]):
        raise MinigradError(f"[{name}.load_state_dict] expected parameter groups of sizes {own}, got {sizes}")
    wanted = []
    for member, group in zip(members, groups, strict=True):
        numbered = member.given if sizes == own else member.params  # without those that were frozen
        by_id = {id(p): state.get(n, {}) for p, n in zip(numbered, group["params"], strict=True)}
        wanted.append(_matched(name, member, [by_id[id(p)] for p in member.params]))
    for member, group in zip(members, groups, strict=True):
        known = options_of(member)
        for option, value in group.items():
            if option in known:
                setattr(member, option, tuple(value) if isinstance(value, list) else value)
            elif option not in ("params", "lr", "initial_lr", *MEANS):
                member.extras = {**member.extras, option: value}
        member.lr = group["lr"]
        if "initial_lr" in group:
            ParamGroup(member)["initial_lr"] = group["initial_lr"]
    for member, values in zip(members, wanted, strict=True):
        _share_counts(member, values)
        for k, new in enumerate(values):
            for n, target in state_of(member, k).items():
                target.assign(new[n])
    changed = {id(t): t for member in members for k in range(len(member.params)) for t in state_of(member, k).values()}
    if changed:
        Tensor.realize(*changed.values())


def _matched(name: str, member: Optimizer, given: list[Mapping[str, Any]]) -> list[dict[str, Tensor]]:
    """For each parameter of a member copies of what was given for it, by name; what a new one has where that is
    nothing, as with PyTorch for those that never had a gradient."""
    found: list[dict[str, Tensor]] = []
    for k, parameter in enumerate(member.params):
        own, new = state_of(member, k), {n: v for n, v in given[k].items() if v is not None}
        if "step" not in own:
            new.pop("step", None)  # PyTorch counts them everywhere
        elif new and "step" not in type(member).state_names:
            new.setdefault("step", 1)  # not SGD's, of which only the first is another
        if not new and own:
            like = parameter.detach().clone().requires_grad_()
            new = state_of(member.beside({"params": [like], "lr": member.lr, **options_of(member)}), 0)
        if set(new) != set(own):
            raise MinigradError(f"[{name}.load_state_dict] expected {', '.join(own) or 'nothing'} for parameter {k} of "
                                f"shape {list(parameter.shape)}, got {', '.join(new) or 'nothing'}")
        found.append({})
        for n, target in own.items():
            value = new[n] if isinstance(new[n], Tensor) else Tensor(np.asarray(new[n]))
            if value.shape != target.shape and value.shape != ():
                raise ShapeError(f"[{name}.load_state_dict] {n} of parameter {k}: expected shape "
                                 f"{list(target.shape)}, got {list(value.shape)}")
            found[-1][n] = value.detach().to(target.device).cast(target.dtype).expand(*target.shape).clone()
    copies = [copy for copies in found for copy in copies.values()]
    if copies:
        Tensor.realize(*copies)
    return found


def _share_counts(member: Optimizer, values: list[dict[str, Tensor]]) -> None:
    """Gives parameters that share a count of steps one each where their values are different."""
    names = [n for n, attribute in member.state_names.items() if attribute in member.shared_names]
    if not names:
        return
    steps = [tuple(new[n].item() for n in names) for new in values]
    for attribute in member.shared_names:
        before = getattr(member, attribute)
        first: dict[int, Any] = {}
        for count, at in zip(before, steps, strict=True):
            first.setdefault(id(count), at)
        own = {(id(count), at): count.clone().realize() for count, at in zip(before, steps, strict=True)
               if first[id(count)] != at}
        if own:
            setattr(member, attribute, [own.get((id(count), at), count)
                                        for count, at in zip(before, steps, strict=True)])
