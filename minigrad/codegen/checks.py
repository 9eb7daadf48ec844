"""Checks between passes, under `config.verify`: the rules of the form that one returned."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

from minigrad.codegen.ir.check_accesses import check_accesses
from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.kernel.nodes import Kernel, Nest, Store
from minigrad.codegen.kernel.verify import verify_kernel, verify_nest
from minigrad.codegen.kernel.walk import statements
from minigrad.codegen.plan.check_copies import check_copies
from minigrad.errors import InternalError

__all__ = ["check", "check_copies"]


def check(step: str, before: object, made: Any, of: Any) -> None:
    """Raises InternalError that names the pass and the rule that its result breaks, where that is not what was there
    before. Of a tuple the first is the form, what others say of it follows.

    `of`: for loop IR, what its dims are by those of the kernel, None where that is not known; for nests that are some
    of a kernel's, that kernel, and what parameters it has besides; None for a whole kernel.
    """
    form = made[0] if isinstance(made, tuple) else made
    if form is before:
        return
    try:
        if isinstance(form, Function):
            verify_function(form)
            check_accesses(form, None if of is None else dict(zip(form.dims, of, strict=True)))
        elif isinstance(form, Kernel) and (of is None or form.block is not None):
            verify_kernel(form if of is None else _own(form), proven=before is None)
        else:
            kernel, params = (form, ()) if isinstance(form, Kernel) else of
            kernel = replace(kernel, params=(*kernel.params, *params))
            old = before if isinstance(before, list) else [before]
            for nest in _nests(form):
                if not any([nest is n for n in old]):
                    verify_nest(kernel, nest)
    except InternalError as e:
        raise InternalError(f"[verify] after {step}: {e.message.removeprefix('[verify] ')}", e.kernel) from e


def _own(part: Kernel) -> Kernel:
    """A block that is a part of a kernel, without outputs that other parts store to."""
    stored = {s.param for alone in part.alone() for s in statements(alone.nests) if isinstance(s, Store)}
    return replace(part, params=tuple([p for p in part.params if p.mode != "out" or p.name in stored]))


def _nests(form: Kernel | list[Any]) -> list[Nest]:
    """Those of a kernel, of a list, or of a list with plans."""
    if isinstance(form, Kernel):
        return list(form.nests)
    return [nest for x in form for nest in (x[0] if isinstance(x, tuple) else (x,))]
