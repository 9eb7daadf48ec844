"""Nests of a block with inner ones as nests without: what is named between them is kept for each place.

    for i<8:                                     for i<8: n = sum(k<64: s[64*i+k]);  kept[i] = n
      n = sum(k<64: s[64*i+k])            ->     for i<8, j<64: y[64*i+j] = s[64*i+j] / kept[i]
      for j<64: y[64*i+j] = s[64*i+j] / n
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Param, Steps, Store
from minigrad.codegen.kernel.value_walk import Rewriter, locals_of
from minigrad.codegen.kernel.walk import assignments, map_nest, statements
from minigrad.codegen.lowering.flatten import offset
from minigrad.errors import present
from minigrad.expr import Index, product
from minigrad.value import Value, load, local


def apart(kernel: Kernel, whole: str = "") -> Kernel:
    """The kernel of a block without inner nests, but for nests over a variable of this name, which stay `whole`,
    and those whose extents are no numbers."""
    block, kept = present(kernel.block, "[apart] expected a block"), list[Param]()

    def parts(body: Sequence[Nest | Steps]) -> tuple[Nest | Steps, ...]:
        out: list[Nest | Steps] = []
        for s in body:
            if isinstance(s, Steps):
                out.append(replace(s, body=parts(s.body)))
            else:
                known = all(isinstance(v.hi, int) for n in statements((s,)) if isinstance(n, Nest) for v in n.domain)
                out += _parts(s, {}, kept) if known and all(v.name != whole for v in s.domain) else [s]
        return tuple(out)

    body = parts(block.body)
    return replace(kernel, block=replace(block, local=(*block.local, *kept), body=body))


def _parts(nest: Nest, known: dict[str, Value], kept: list[Param]) -> list[Nest]:
    out: list[Nest] = []
    known, run = dict(known), list[Define | Store]()
    place = offset(nest.domain, tuple([v.hi + 1 for v in nest.domain]))
    for k, s in enumerate(nest.body):
        if not isinstance(s, Nest):
            run.append(s)
            continue
        later = {x for inner in assignments(nest.body[k:]) for x in locals_of(inner.value)}
        names = [d for d in run if isinstance(d, Define) and d.name in later]
        out += _of(nest, run, names, known, kept, place)
        out += _parts(Nest((*nest.domain, *s.domain), s.body), known, kept)
        run = []
    return [*out, *_of(nest, run, [], known, kept, place)]


def _of(nest: Nest, run: list[Define | Store], names: Sequence[Define], known: dict[str, Value], kept: list[Param],
        place: Index) -> list[Nest]:
    """The statements between inner nests as a nest, which keeps some of its names: they are `known` then."""
    if all(isinstance(s, Define) for s in run) and not names:
        return []
    here = Rewriter({}, locals_=known)
    body = list(map_nest(Nest((), tuple(run)), here.value, lambda _, at: tuple(map(here.index, at))).body)
    for d in names:
        size, dtype = product([v.hi + 1 for v in nest.domain]), d.value.dtype
        kept.append(Param(f"kept{len(kept)}", dtype, (size,), "inout"))
        body.append(Store(kept[-1].name, (place,), local(d.name, dtype)))
        known[d.name] = load(kept[-1].name, (place,), dtype)
    return [Nest(nest.domain, tuple(body))]
