"""The text files of an exported program: a C header, and a Python loader that needs numpy alone."""
from __future__ import annotations

from importlib.resources import files

from minigrad.aot.layout import Layout
from minigrad.capture.graphs import CallGraph
from minigrad.dtype import DType
from minigrad.expr import Index, bounds, product
from minigrad.expr.text import to_text
from minigrad.ops.node import Node
from minigrad.ops.op import Shape

_C_TYPES = {"float32": "float", "float64": "double", "bool": "uint8_t", "float16": "uint16_t", "bfloat16": "uint16_t"}


def c_type(dtype: DType) -> str:
    """The type of an element in C; half types are their bits."""
    return _C_TYPES.get(dtype.name, f"{dtype.name}_t")


def shape_text(shape: Shape) -> str:
    """A shape over symbolic dims, as C and Python read its sizes."""
    return f"[{', '.join(map(_plain, shape))}]"


def _plain(e: Index) -> str:
    return to_text(e).replace("dim(", "(")


def header(name: str, layout: Layout, level: str, triple: str) -> str:
    """The C header: sizes, and the functions with what each pointer is."""
    call, upper = layout.call, name.upper()
    changed = {c.argument for c in call.changed}
    inputs = [f"{'' if k in changed else 'const '}{c_type(node.dtype)} *{n}"
              for k, (n, node) in enumerate(call.inputs.items())]
    numbers = [f"int64_t {n}" for n in call.variables]
    outputs = [f"{c_type(node.dtype)} *{n}" for n, node in call.outputs.items()]
    state = sum([bounds(c.nbytes)[1] for c in layout.reset])
    values = {
        "NAME": name, "UPPER": upper, "TARGET": f"{level}, {triple}", "WEIGHTS_BYTES": layout.weights_bytes,
        "MEMORY_BYTES": layout.memory_bytes, "STATE_BYTES": state,
        "SIZES": "\n".join([f"#define {upper}_{n.upper()}_ELEMENTS {bounds(product(node.shape))[1]}"
                            for n, node in [*call.inputs.items(), *call.outputs.items()]]),
        "DESCRIPTIONS": "\n".join(_descriptions(call)),
        "PARAMETERS": ", ".join([f"{name} *program", *inputs, *numbers, *outputs]),
    }
    return _filled("program.h", values)


def _descriptions(call: CallGraph) -> list[str]:
    changed = {c.argument for c in call.changed}
    lines = [f"{n}: {node.dtype} {shape_text(node.shape)}{', read and overwritten' if k in changed else ''}"
             for k, (n, node) in enumerate(call.inputs.items())]
    lines += [f"{n}: from {_plain(v.lo)} to {_plain(v.hi)}" for n, v in call.variables.items()]
    lines += [f"{n}: {node.dtype} {shape_text(node.shape)}, written" for n, node in call.outputs.items()]
    return [f" *   {line}" for line in lines]


def loader(name: str, layout: Layout) -> str:
    """The Python loader."""
    call = layout.call
    values = {"NAME": name, "MEMORY_BYTES": layout.memory_bytes, "WEIGHTS_BYTES": layout.weights_bytes,
              "INPUTS": _table(call.inputs), "DIMS": repr({n: (_plain(v.lo), _plain(v.hi))
                                                          for n, v in call.variables.items()}),
              "OUTPUTS": _table(call.outputs),
              "CHANGED": repr([n for k, n in enumerate(call.inputs) if k in {c.argument for c in call.changed}])}
    return _filled("program.py.txt", values)


def _filled(template: str, values: dict[str, object]) -> str:
    text = (files("minigrad.aot") / "templates" / template).read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", str(value))
    return text


def _table(nodes: dict[str, Node]) -> str:
    """Names with element types of numpy and shapes, as Python."""
    return repr({n: (node.dtype.np.name, [_plain(d) for d in node.shape]) for n, node in nodes.items()})
