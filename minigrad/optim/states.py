"""The options and the state of optimizers as PyTorch's dictionaries, and loading them back."""
from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from minigrad.errors import MinigradError, ShapeError, quantity
from minigrad.tensor import Tensor

if TYPE_CHECKING:
    from minigrad.optim.optimizer import Optimizer


def given_parameters(name: str, params: Any) -> list[Tensor]:
    """Each Tensor once, from a Tensor, several, or (name, Tensor) as `named_parameters()` gives."""
    given = [params] if isinstance(params, Tensor) else list(params) if isinstance(params, Iterable) else [None]
    given = [p[1] if isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) else p for p in given]
    wrong = [type(p).__name__ for p in given if not isinstance(p, Tensor)]
    if wrong:
        what = type(params).__name__ if wrong == ["NoneType"] and len(given) == 1 else wrong[0]
        raise MinigradError(f"[{name}] expected Tensors, such as nn.state.get_parameters(model), got {what}")
    return list({id(p): p for p in given}.values())


def options_of(optimizer: Optimizer) -> dict[str, Any]:
    """The options of one optimizer other than its learning rate, by the names that its class takes."""
    return {name: getattr(optimizer, name) for name in _option_names(type(optimizer))}


@lru_cache
def _option_names(kind: type[Optimizer]) -> list[str]:
    return [n for n in inspect.signature(kind.__init__).parameters if n not in ("self", "params", "lr")]


class ParamGroup(Mapping):
    """One of PyTorch's `param_groups`: stands for an optimizer, whose options are read and set by name."""

    def __init__(self, optimizer: Optimizer):
        self._optimizer = optimizer

    def __iter__(self) -> Iterator[str]:
        known = ["initial_lr"] if self._optimizer._initial_lr is not None else []
        return iter(["params", "lr", *known, *options_of(self._optimizer)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> Any:
        if name not in list(self):
            raise KeyError(f"[param_groups] expected one of {', '.join(self)}, got {name!r}")
        if name in ("lr", "initial_lr"):
            return getattr(self._optimizer, f"_{name}").item()
        value, cycled = getattr(self._optimizer, name), self._optimizer._cycled
        if cycled is not None and name in ("momentum", "betas"):
            return cycled.item() if name == "momentum" else (cycled.item(), value[1])
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "initial_lr":
            self._optimizer.initial_lr().assign(self._optimizer._scalar(value)).realize()
        else:
            self[name]
            setattr(self._optimizer, name, value)

    def __repr__(self) -> str:
        return repr({**self, "params": quantity(len(self._optimizer.params), "parameter")})


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
        numbers = list(range(count, count + len(member.params)))
        count += len(numbers)
        state.update({n: kept for k, n in enumerate(numbers) if (kept := state_of(member, k))})
        groups.append({**ParamGroup(member), "params": numbers})
    return {"state": state, "param_groups": groups}


def load_states(members: list[Optimizer], given: Mapping[str, Any]) -> None:
    """Gives all members what `states_of` made; everything is checked before anything is changed."""
    name = type(members[0]).__name__
    if not isinstance(given, Mapping) or not {"state", "param_groups"} <= set(given):
        raise MinigradError(f"[{name}.load_state_dict] expected a dictionary with 'state' and 'param_groups', got "
                            f"{list(given) if isinstance(given, Mapping) else type(given).__name__}")
    state, groups = given["state"], given["param_groups"]
    sizes = [len(g["params"]) for g in groups]
    if sizes != [len(m.params) for m in members]:
        raise MinigradError(f"[{name}.load_state_dict] expected groups of {[len(m.params) for m in members]} "
                            f"parameters, got {sizes}")
    wanted = [_matched(name, member, [state.get(n, {}) for n in group["params"]])
              for member, group in zip(members, groups, strict=True)]
    for member, group in zip(members, groups, strict=True):
        known = options_of(member)
        for option, value in group.items():
            if option in known:
                setattr(member, option, tuple(value) if isinstance(value, list) else value)
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
            new = state_of(type(member)([like], member.lr, **options_of(member)), 0)
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
