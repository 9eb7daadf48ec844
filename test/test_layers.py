"""Imports go down only: every import under minigrad/ is checked against the table of layers in docs/architecture.md."""
import ast
import re
from collections import Counter

import pytest
from support.paths import PACKAGE, ROOT, TESTS

LAYERS = [
    {"errors", "dtype", "expr", "value", "config", "target", "program", "handles", "interned",
     "record", "locks", "platforms", "ownership", "stores"},
    {"ops"},
    {"graph"},
    {"codegen", "scheduler", "runtime"},
    {"engine", "tensor", "mixins", "random", "capture", "microkernels",
     "autograd", "devices", "report", "aot"},
    {"amp", "utils", "nn", "optim", "state", "distributions", "data", "distributed", "kinds", "unbound", "methods",
     "functions", "special", "fft", "linalg", "cuda", "backends"},
    {"onnx", "torch_compile", "array_api", "cli", "__main__"},
]
CODEGEN = ["kernel", "microkernels", "ir", "transforms", "lowering", "machines", "plan", "cost", "patterns", "policy",
           "render", ""]
"""The folders of codegen: each imports those before it only, for types too. The modules beside them come last."""
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
# Within one layer, parts are strangers to each other but for these.
SIDEWAYS = {
    ("scheduler", "codegen"), ("tensor", "engine"), ("tensor", "mixins"), ("tensor", "random"), ("mixins", "engine"),
    ("mixins", "random"), ("mixins", "tensor"), ("random", "tensor"), ("capture", "engine"), ("capture", "tensor"),
    ("capture", "mixins"), ("capture", "random"), ("nn", "optim"), ("nn", "state"), ("optim", "nn"),
    ("__main__", "cli"), ("cli", "onnx"), ("microkernels", "engine"), ("devices", "engine"),
    ("report", "engine"), ("report", "capture"), ("report", "random"), ("report", "tensor"),
    ("aot", "engine"), ("aot", "capture"),
    ("data", "state"), ("data", "distributed"), ("nn", "distributed"), ("distributed", "autograd"),
    ("distributed", "optim"), ("utils", "data"), ("autograd", "tensor"), ("autograd", "mixins"),
    ("functions", "kinds"), ("functions", "nn"), ("functions", "state"),
    ("functions", "unbound"),
    ("methods", "unbound"), ("cuda", "amp"), ("special", "functions"), ("special", "methods"),
}
# The runtime knows Programs: nothing that has a Node or a Kernel in it.
FORBIDDEN = {("runtime", "ops"), ("runtime", "graph"), ("runtime", "codegen"), ("codegen", "graph")}
FACTS = {"minigrad.codegen.machines.gpus"}
"""Modules of codegen that the runtime may know: facts of GPUs, with neither a Node nor a Kernel in them."""
FREE_OF_DEVICES = {"codegen", "scheduler", "graph", "ops"}
DEVICE_LIBRARIES = {"pyopencl", "llvmlite", "ctypes"}


def part_of(module: str) -> str | None:
    """'minigrad.codegen.passes' -> 'codegen'; 'minigrad' -> '' (the public names, the top); None for others."""
    names = module.split(".")
    return None if names[0] != "minigrad" else names[1] if len(names) > 1 else ""


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(tree: ast.AST, package: str) -> list[tuple[int, str]]:
    """(line, module) of every import, those inside functions too, except under TYPE_CHECKING."""
    # `from minigrad import config` may name a part or a public name
    return [(line, f"{base}.{name}" if base == "minigrad" and name in LEVEL else base)
            for line, base, name in named_imports(tree, package)]


def named_imports(tree: ast.AST, package: str, types: bool = False) -> list[tuple[int, str, str]]:
    """(line, module, name in it) of every import, the name "" where none is told; as `imports`, with `types` those
    under TYPE_CHECKING, too."""
    found: list[tuple[int, str, str]] = []
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import):
            found += [(node.lineno, name.name, "") for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package.split(".")[:len(package.split(".")) - node.level + 1], *base.split(".")])
            found += [(node.lineno, base.strip("."), name.name) for name in node.names]
        for child in ast.iter_child_nodes(node):
            if not types and is_type_checking(node) and child in getattr(node, "body", ()):
                continue
            stack.append(child)
    return found


def violations(source: str, module: str) -> list[str]:
    """One line per import of `source`, the text of `module`, that does not go down."""
    part = part_of(module)
    if not part or module == "minigrad.__init__":
        return []
    found = []
    for line, target in imports(ast.parse(source), module.rpartition(".")[0]):
        other = part_of(target)
        where = f"{module}:{line} imports {target}: "
        if other is None:
            if part in FREE_OF_DEVICES and target.split(".")[0] in DEVICE_LIBRARIES:
                found.append(where + f"{part} never touches a device")
        elif part not in LEVEL or (other and other not in LEVEL):
            found.append(where + "not in the table of layers")
        elif other == "":
            if LEVEL[part] < LEVEL["nn"]:
                found.append(where + "the public names are above every part")
        elif part == "runtime" and target in FACTS:
            continue
        elif (part, other) in FORBIDDEN:
            found.append(where + f"{part} must not know {other}")
        elif LEVEL[other] > LEVEL[part]:
            found.append(where + f"upwards, from layer {LEVEL[part]} to {LEVEL[other]}")
        elif LEVEL[other] == LEVEL[part] != 0 and part != other and (part, other) not in SIDEWAYS:
            found.append(where + f"sideways, {part} does not know {other}")
    return found


def test_imports_go_down() -> None:
    found = []
    for path in sorted((ROOT / "minigrad").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found += violations(path.read_text(), module)
    assert not found, "\n".join(found)


def codegen_violations(source: str, module: str) -> list[str]:
    """One line per import among the folders of codegen that does not go down."""
    part = codegen_part(module)
    found = []
    for line, base, name in named_imports(ast.parse(source), module.rpartition(".")[0], types=True):
        if base.startswith("minigrad.codegen"):
            other = codegen_part(f"{base}.{name}" if base == "minigrad.codegen" else base)
            if CODEGEN.index(other) > CODEGEN.index(part):
                found.append(f"{module}:{line} imports {base}: upwards, from {part} to {other or 'codegen'}")
    return found


def codegen_part(module: str) -> str:
    """The folder of codegen that a module is in; '' for modules beside them."""
    names = module.split(".")
    return names[2] if len(names) > 2 and (PACKAGE / "codegen" / names[2]).is_dir() else ""


def test_imports_go_down_inside_codegen() -> None:
    assert {path.name for path in (PACKAGE / "codegen").iterdir() if (path / "__init__.py").exists()} == {*CODEGEN[:-1]}
    found = []
    for path in sorted((PACKAGE / "codegen").rglob("*.py")):
        found += codegen_violations(path.read_text(), ".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("module, source", [
    ("minigrad.codegen.plan.sums", "if TYPE_CHECKING:\n    from minigrad.codegen.policy.rows import plan"),
    ("minigrad.codegen.kernel.nodes", "from minigrad.codegen.ir.nodes import Loop"),
    ("minigrad.codegen.render.llvm", "from minigrad.codegen import passes"),
    ("minigrad.codegen.policy.rows", "def f():\n    from minigrad.codegen.passes import stages_of"),
])
def test_a_wrong_import_inside_codegen_is_found(module: str, source: str) -> None:
    assert len(codegen_violations(source, module)) == 1


def test_the_page_has_the_same_table_of_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    stated = {part: int(layer) for layer, parts in re.findall(r"^\| (\d) \| `([^`]*)` \|", page, re.MULTILINE)
              for part in parts.split()}
    package = ROOT / "minigrad"
    parts = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/*.py")}
    assert stated == {part: LEVEL[part] for part in parts - {"__init__"}}


# What functions may import for themselves: libraries, and what these modules import.
LATE_LIBRARIES = {
    "pyopencl": "with the first OpenCL device: large, and of no use where there is none",
    "llvmlite": "with the first kernel that no cache has: large",
    "tomllib": "with the first plan",
    "fcntl": "not on every system",
    "safetensors": "with the first file of its kind",
    "tqdm": "where progress is shown",
    "mpi4py": "where there are several processes; installed by choice",
    "PIL": "with the first image; installed by choice",
}
LATE = {
    "minigrad.runtime.registry": "a kind of device loads when a device of it is opened",
    "minigrad.engine.realize": "scheduling and code generation load when something is computed, not with the package",
    "minigrad.codegen.passes": "a language's renderer loads with the first kernel in it, checks under verify",
    "minigrad.cli.models": "what reads models needs the extra onnx",
    "minigrad.cli.dojo": "what reads models needs the extra onnx",
    "minigrad.engine.compile": "the model of time loads with the first program for a card that is not here",
    "minigrad.cli.tune": "likewise",
    "minigrad.capture.jit": "a search loads where one is asked for",
    "minigrad.engine.compiled": "what MINIGRAD_DEBUG prints needs all of code generation",
}


def test_imports_stand_above_functions() -> None:
    wrong, used = [], set()
    for path in sorted((ROOT / "minigrad").rglob("*.py")):
        tree, module = ast.parse(path.read_text()), ".".join(path.relative_to(ROOT).with_suffix("").parts)
        outside = {line for line, _, _ in named_imports(ast.Module([n for n in tree.body if not is_scope(n)], []), "")}
        for line, target, _ in named_imports(tree, module.rpartition(".")[0]):
            reason = module if part_of(target) else target.partition(".")[0]
            if line not in outside:
                used.add(reason)
                wrong += [f"{path}:{line} imports {target}"] * (reason not in LATE | LATE_LIBRARIES)
    assert not wrong, "\n".join(wrong)
    assert used == {*LATE, *LATE_LIBRARIES}


def is_scope(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def graph_of_modules(types: str = "-") -> dict[str, set[str]]:
    """Whom each module imports, inside functions too; under TYPE_CHECKING, too, where its name begins with `types`."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
             for path in (ROOT / "minigrad").rglob("*.py")}
    graph = {}
    for module, path in paths.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        found = modules_of(ast.parse(path.read_text()), package, set(paths), module.startswith(types))
        graph[module] = found - {module}
    return graph


def modules_of(tree: ast.AST, package: str, modules: set[str], types: bool = False) -> set[str]:
    """Those of `modules` that a text imports: `from package import name` imports package.name, if it is one."""
    found = set()
    for _, target, name in named_imports(tree, package, types):
        found.add(f"{target}.{name}" if f"{target}.{name}" in modules else target)
    return found & modules


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that reach each other."""
    graph = dict(graph)
    while ends := [m for m, targets in graph.items() if not targets & graph.keys()]:
        for m in ends:
            del graph[m]
    reached = {m: _reached(graph, m) for m in graph}
    together = {frozenset(n for n in reached[m] if m in reached.get(n, ())) for m in graph}
    return [set(c) for c in together if c]


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    stack = [start]
    while stack:
        more = graph.get(stack.pop(), set()) - found
        found |= more
        stack += more
    return found


def test_no_module_imports_itself_through_others() -> None:
    assert circles(graph_of_modules()) == []


CIRCLES_OF_TYPES = {
    "llvm_memory llvm_transposes", "opencl_instructions opencl_values",
    "accesses conditions emitter index language steps values",
}
"""Of modules in codegen/render, for the sake of Emitter and of what writes an access: left to be undone."""


def test_no_module_of_codegen_imports_itself_for_types() -> None:
    found = [sorted(circle) for circle in circles(graph_of_modules("minigrad.codegen"))]
    render = "minigrad.codegen.render."
    assert {" ".join(m.removeprefix(render) for m in circle) for circle in found} == CIRCLES_OF_TYPES


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a", "f"}, "f": {"e"}}
    assert sorted(map(sorted, circles(graph))) == [["b", "c"], ["e", "f"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


TYPES_IGNORED = 28


def test_few_errors_of_types_are_ignored() -> None:
    found = [f"{path.relative_to(ROOT)}:{k}" for path in sorted(PACKAGE.rglob("*.py"))
             for k, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1) if "# type: ignore" in line]
    assert len(found) <= TYPES_IGNORED, f"{len(found)}, more than {TYPES_IGNORED}:\n" + "\n".join(found)


def test_files_have_400_lines_at_most() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
               for folder in ("minigrad", "bench", "examples") for path in (ROOT / folder).rglob("*.py")}
    most = {"examples/llama/model.py": 600}  # all families of models in one file, to be read from its end to its start
    assert {name: length for name, length in lengths.items() if length > most.get(name, 400)} == {}


def test_lines_have_120_columns_at_most() -> None:
    """Remarks to tools at their ends included, which ruff leaves out."""
    folders = "minigrad", "bench", "test", "examples"
    long = [f"{path.relative_to(ROOT)}:{k}" for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))
            for k, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1) if len(line) > 120]
    assert not long, long


@pytest.mark.parametrize("module, source, message", [
    ("minigrad.expr.core", "from minigrad.ops.op import Op", "upwards, from layer 0 to 1"),
    ("minigrad.ops.movement", "def f():\n    from minigrad.scheduler.groups import g", "upwards, from layer 1 to 3"),
    ("minigrad.graph.autodiff", "import minigrad.tensor", "upwards, from layer 2 to 4"),
    ("minigrad.codegen.kernel.nodes", "from minigrad.runtime import device", "sideways, codegen does not know runtime"),
    ("minigrad.codegen.passes", "from ..scheduler.fuse import x", "sideways, codegen does not know scheduler"),
    ("minigrad.runtime.cpu", "from minigrad.ops.node import Node", "runtime must not know ops"),
    ("minigrad.codegen.render.llvm", "import llvmlite.binding", "codegen never touches a device"),
    ("minigrad.engine.realize", "from minigrad import Tensor", "the public names are above every part"),
    ("minigrad.engine.realize", "from minigrad import nn", "upwards, from layer 4 to 5"),
    ("minigrad.ops.extra", "from minigrad.helpers import x", "not in the table of layers"),
])
def test_a_wrong_import_is_found(module: str, source: str, message: str) -> None:
    found = violations(source, module)
    assert len(found) == 1 and message in found[0], found


@pytest.mark.parametrize("module, source", [
    ("minigrad.scheduler.fuse", "from minigrad.codegen.kernel.nodes import Kernel\nimport numpy"),
    ("minigrad.engine.realize", "from minigrad.runtime.device import Device\nfrom minigrad import config"),
    ("minigrad.ops.op", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from minigrad.tensor import Tensor"),
    ("minigrad.nn.linear", "from minigrad import Tensor"),
    ("minigrad.runtime.cpu", "import llvmlite.binding"),
])
def test_a_right_import_passes(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_tests_lie_in_folders_named_as_what_they_test() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    assert {folder for folder in folders if not (PACKAGE / folder).is_dir() and not (ROOT / folder).is_dir()} == set()


def test_names_of_tests_are_unique() -> None:
    """Pytest imports test files by their names alone: a second one of a name is an error of collection."""
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
