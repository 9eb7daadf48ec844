"""Loop IR that packs words: neighbours are read as one (`codegen/kernel/words.py`)."""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.ir.nodes import Alloc, BufferParam, Function
from minigrad.codegen.ir.walk import map_all, map_function, statements
from minigrad.codegen.kernel.words import VIEW, with_words
from minigrad.dtype import uint32
from minigrad.value import Value, walk


def read_words(function: Function) -> Function:
    """The function with words read from its inputs. The buffers that it reads so are its last ones, too, as they are
    seen, under names that end in `VIEW`. A function that packs no words stays as it is."""
    if not any(isinstance(s, Alloc) and s.dtype is uint32 and s.scope == "scratch" for s in statements(function)):
        return function
    inputs = {b.name: b for b in function.buffers if b.mode == "in" and b.start is None}
    views: dict[str, BufferParam] = {}

    def words(value: Value) -> Value:
        made = with_words(value) if value.dtype is uint32 else value
        if made is value:
            return value
        names = {v.buffer for v in walk(made) if v.op == "load"}
        seen = {name: name.removesuffix(VIEW) for name in names if name.endswith(VIEW)}
        if not all(source in inputs for source in seen.values()):
            return value
        for name, source in seen.items():
            b = inputs[source]
            views[name] = BufferParam(name, uint32, b.size * b.dtype.itemsize // uint32.itemsize, "in")
        return made

    made = map_function(function, lambda body: map_all(body, words, lambda e: e, lambda _, e: e))
    return replace(made, buffers=(*made.buffers, *views.values())) if views else function
