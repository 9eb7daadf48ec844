"""The LLVM IR in `minigrad/runtime/native/`, for every system and processor that it serves."""
import re
from pathlib import Path

import llvmlite.binding as llvm
import pytest

import minigrad.runtime
from minigrad.runtime import builtin_call, executor_ir, limits

FOLDER = Path(minigrad.runtime.__file__).parent / "native"
TRIPLES = [
    "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "riscv64-unknown-linux-gnu",
    "powerpc64le-unknown-linux-gnu", "x86_64-apple-darwin23", "arm64-apple-darwin23", "x86_64-pc-windows-msvc",
]
PROBES = {f"{name} of {lanes} lanes": make(lanes) for lanes in (4, 8, 16) for name, make in (
    ("multiply_add_12", lambda lanes: limits.multiply_add(lanes, 12)),
    ("multiply_add_16", lambda lanes: limits.multiply_add(lanes, 16)), ("read_stream", limits.read_stream))}


def parsed(text):
    module = llvm.parse_assembly(text)
    module.verify()
    return module


def defined(module):
    """The functions that others may call; each function that is declared alone is LLVM's own."""
    for function in module.functions:
        assert not function.is_declaration or function.name.startswith("llvm."), function.name
    return {f.name for f in module.functions if f.linkage is llvm.Linkage.external and not f.is_declaration}


@pytest.mark.parametrize("triple", TRIPLES)
def test_the_executor_is_valid_and_whole_for_each_system(triple):
    module = parsed(executor_ir.emit_executor(triple))
    assert defined(module) == {"run", "work", "spin", "stop", *builtin_call.ENTRIES}


@pytest.mark.parametrize("program", PROBES.values(), ids=PROBES)
def test_probes_are_valid_for_each_length_of_vectors(program):
    assert defined(parsed(program.source)) == {program.name}


def test_each_file_serves_somebody():
    executors = {part for triple in TRIPLES for part in executor_ir.parts(triple)}
    assert {path.stem for path in FOLDER.iterdir()} == executors | {probe.split()[0] for probe in PROBES}


def test_places_that_python_writes_are_those_of_the_types():
    module = parsed(executor_ir.emit_executor(TRIPLES[0]))
    layout = llvm.create_target_data("e-m:e-i64:64-n8:16:32:64-S128")

    def at(name, field):
        return layout.get_element_offset(module.get_struct_type(name), field)

    def size(name):
        return layout.get_abi_size(module.get_struct_type(name))

    assert [at("State", k) for k in (5, 6, 7, 11)] == [
        executor_ir.THREADS, executor_ir.SPIN, executor_ir.SYSTEM, executor_ir.WORKERS]
    assert (size("State"), size("Worker"), at("Worker", 1)) == (
        executor_ir.WORKERS, executor_ir.WORKER_BYTES, executor_ir.SCRATCH)
    assert [size(name) // 8 for name in ("Table", "Command", "Piece")] == [
        executor_ir.HEADER_WORDS, executor_ir.COMMAND_WORDS, executor_ir.PIECE_WORDS]


def test_no_module_holds_functions_of_ir():
    written = re.compile(r"^(define|declare) ", re.MULTILINE)
    package = FOLDER.parent.parent
    assert not [str(p) for p in package.rglob("*.py") if written.search(p.read_text(encoding="utf-8"))]
