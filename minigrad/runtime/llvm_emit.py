"""LLVM IR text to object code. It imports LLVM alone, so that a process of its own can run this file and help.

    python llvm_emit.py CPU FEATURES     reads requests from stdin and answers each on stdout

A request is its length as u32 and JSON, [[key, entries, source], ...]; an answer one byte, 'o' before an object and 'e'
before an error's text, the length as u32, and that.
"""
from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

Source = tuple[tuple[str, ...], str]
"""The names of the entries, which get the key appended, and the IR text that defines them."""

QUICK = "; quick"
"""The start of a source whose code is generated without combined instructions, strength reduction of addresses and a
second scheduling: a third of the time. Its renderer (`codegen/render/llvm.py`) knows that the code is as good, and has
the same constant: this file imports nothing of minigrad. A test compares them."""


def is_quick(source: str) -> bool:
    """True for a source that begins with `QUICK`."""
    return source.startswith(QUICK)


class Refused(Exception):
    """LLVM's error for a source. The caller makes a CompileError of it."""

    def __init__(self, words: str, source: str):
        super().__init__(words)
        self.source = source


class Emitter:
    """LLVM's target machine for a processor, and the passes that pay."""

    def __init__(self, cpu: str, flags: str, jit: bool = True) -> None:
        """`cpu` and `flags` in LLVM's words: a name it knows, and features as `+avx,-avx2`. Without `jit` the code is
        for a linker, and may lie anywhere."""
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
        self.llvm = llvm
        self.triple = llvm.get_process_triple()
        self.cpu, self.flags = cpu, flags
        self._where = {"jit": True} if jit else {"reloc": "pic", "codemodel": "small"}
        self.machine, self.quick_machine = self.new_machine(), self.new_machine(1)

    def new_machine(self, level: int = 2) -> Any:
        """A machine of LLVM's for our processor, which an owner may keep; `level` is that of optimization."""
        target = self.llvm.Target.from_triple(self.triple)
        return target.create_target_machine(cpu=self.cpu, features=self.flags, opt=level, **self._where)

    def emit(self, sources: Mapping[str, Source]) -> bytes:
        """One object of all sources by key. They are parsed one by one, so that an error names its source."""
        whole = None
        for key, (entries, source) in sources.items():
            module = self.parse(source)
            self.rename(module, entries, source, key)
            if whole is None:
                whole = module
            else:
                whole.link_in(module)
        return self.finish(whole, all(is_quick(source) for _, source in sources.values()))

    def finish(self, module: Any, quick: bool = False) -> bytes:
        """The object of a module, after our passes."""
        self.run_passes(module, quick)
        with self.generator(quick) as machine:
            code: bytes = machine.emit_object(module)
        return code

    def assembly(self, source: str) -> str:
        """The assembly of a source, likewise."""
        module = self.parse(source)
        self.run_passes(module, is_quick(source))
        with self.generator(is_quick(source)) as machine:
            text: str = machine.emit_assembly(module)
        return text

    @contextmanager
    def generator(self, quick: bool) -> Iterator[Any]:
        """The machine that generates code, `quick` without strength reduction. That option is LLVM's, of the whole
        process, so it is set for the time of this context only."""
        if not quick:
            yield self.machine
            return
        self.llvm.set_option("", "-disable-lsr=true")
        try:
            yield self.quick_machine
        finally:
            self.llvm.set_option("", "-disable-lsr=false")

    def parse(self, source: str) -> Any:
        """The module of a source, verified. Raises Refused with LLVM's words."""
        try:
            module = self.llvm.parse_assembly(source)
            module.verify()
        except RuntimeError as e:
            raise Refused(f"LLVM refused the program: {' '.join(str(e).split())}", source) from None
        return module

    def rename(self, module: Any, entries: tuple[str, ...], source: str, key: str, symbol: str = "") -> None:
        """Entries become `name.key`, or `symbol`; everything else becomes internal."""
        found = 0
        for function in module.functions:
            if function.is_declaration:
                continue
            # Nothing of ours unwinds: no unwind tables to store, load and register.
            function.add_function_attribute("nounwind")
            name = function.name
            if name in entries:
                function.name = symbol or f"{name}.{key}"
                found += 1
            else:
                function.linkage = "internal"
        for variable in module.global_variables:
            if not variable.is_declaration:
                variable.linkage = "internal"
        if found != len(entries):
            raise Refused(f"expected definitions of {entries}, got {found} of them", source)

    def run_passes(self, module: Any, quick: bool = False) -> None:
        """Runs the few passes that pay: the code is explicit already, and O2 would cost ten times as much and gain
        nothing."""
        llvm = self.llvm
        builder = llvm.create_pass_builder(self.machine, llvm.create_pipeline_tuning_options(0))
        passes = llvm.create_new_module_pass_manager()
        if not quick:
            passes.add_sroa_pass()
            passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.run(module, builder)


def write_request(stream: IO[bytes], sources: Mapping[str, Source]) -> None:
    """Sends the sources by key, as `serve` reads them."""
    text = json.dumps([[key, *source] for key, source in sources.items()]).encode()
    stream.write(struct.pack("<I", len(text)) + text)
    stream.flush()


def read_answer(stream: IO[bytes]) -> bytes | None:
    """The object, or None for an error, or for a stream that ends."""
    head = stream.read(5)
    if len(head) < 5:
        return None
    size, = struct.unpack("<I", head[1:])
    data = stream.read(size)
    return data if head[:1] == b"o" and len(data) == size else None


def serve(requests: IO[bytes], answers: IO[bytes], cpu: str, flags: str) -> None:
    """Answers requests until there are no more; those that come meanwhile are read while LLVM works."""
    line: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_receive, args=(requests, line), daemon=True).start()
    emitter = Emitter(cpu, flags)
    while text := line.get():
        try:
            rows = json.loads(text)
            kind, data = b"o", emitter.emit({key: (tuple(entries), source) for key, entries, source in rows})
        except Refused as e:
            kind, data = b"e", str(e).encode()
        answers.write(kind + struct.pack("<I", len(data)) + data)
        answers.flush()


def _receive(requests: IO[bytes], line: SimpleQueue[bytes]) -> None:
    """Puts requests in line, and nothing (b"") at their end."""
    while len(head := requests.read(4)) == 4:
        line.put(requests.read(struct.unpack("<I", head)[0]))
    line.put(b"")


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer, *sys.argv[1:])
