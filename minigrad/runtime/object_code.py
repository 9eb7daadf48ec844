"""Programs for a processor that runs them elsewhere: compiled into one object file for a linker, never loaded here."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

import numpy as np

from minigrad.config import CPU_LEVELS
from minigrad.errors import CompileError, ConfigError, DeviceError
from minigrad.program import Link, Program
from minigrad.runtime.commands import Executable
from minigrad.runtime.cpu import facts_of, shared_jit
from minigrad.runtime.cpu_level import level_features
from minigrad.runtime.device import Buffer, Device, Launch
from minigrad.runtime.llvm_emit import Emitter, Refused
from minigrad.runtime.llvm_jit import link_module
from minigrad.runtime.llvm_thread import uninterrupted
from minigrad.runtime.object_symbols import foreign_symbols
from minigrad.target import Target


class ObjectCode(Device):
    """A processor of this kind (`native`) or of another level of x86-64, whose programs are written to object files.
    `flags` are its features in LLVM's words."""

    def __init__(self, level: str, threads: int):
        """`threads` is how many the plans are made for, as they are for the device CPU. Raises ConfigError for a level
        that is not known here."""
        jit = shared_jit()
        levels = CPU_LEVELS if jit.triple.startswith("x86_64") else ("native",)
        if level not in levels:
            raise ConfigError(f"[export] expected a target of {', '.join(levels)}, got {level!r}")
        cpu, features = (jit.host, jit.features) if level == "native" else (level, level_features(level, jit.features))
        # A process has to ask for AMX before it uses it, which object code cannot do.
        features = {name: on and not name.startswith("amx") for name, on in features.items()}
        self.name, self.cpu, self.triple = f"object code for {level}", cpu, jit.triple
        self.flags = ",".join(("+" if on else "-") + name for name, on in features.items())
        self.target: Target = facts_of(jit.triple, cpu, features, jit.host, threads)

    def load(self, programs: Iterable[Program]) -> list[Executable]:
        """The programs, which nothing here calls."""
        return [Executable(p, 0) for p in programs]

    def compile(self, programs: Sequence[Program], driver: str, entries: Sequence[str]) -> bytes:
        """One object with the functions `entries` of the IR text `driver`, which calls program k as `program.k`; all
        else is internal. It needs memcpy, memmove and memset from whoever links it, and nothing else.

        Raises CompileError with LLVM's words, and for code that programs call which is in C.
        """
        links = {link.symbol: link for p in programs for link in p.links}
        try:
            code = uninterrupted(self._linked, programs, list(links.values()), driver, entries)
        except Refused as e:
            raise CompileError(f"[export] {e}", e.source) from None
        foreign = foreign_symbols(code)
        if foreign:
            raise CompileError(f"[export] expected object code without external calls, got {sorted(foreign)}", driver)
        return code

    def _linked(self, programs: Sequence[Program], links: list[Link], driver: str, entries: Sequence[str]) -> bytes:
        emitter = Emitter(self.cpu, self.flags, jit=False)
        whole = emitter.parse(driver)
        for k, program in enumerate(programs):
            module = emitter.parse(program.source)
            emitter.rename(module, (program.name,), program.source, "", f"program.{k}")
            whole.link_in(module)
        for link in links:
            if link.language == "c":
                raise CompileError(f"[export] expected {link.name} in LLVM IR or assembly, got C", link.source)
            whole.link_in(link_module(emitter, link))
        for function in whole.functions:
            if not function.is_declaration and function.name not in entries:
                function.linkage = "internal"
        return emitter.finish(whole)

    def _nothing_here(self) -> NoReturn:
        raise DeviceError(f"[export] {self.name} is only compiled here: nothing runs it")

    def alloc(self, nbytes: int) -> Buffer:
        self._nothing_here()

    def free(self, buffer: Buffer) -> None:
        self._nothing_here()

    def copy_in(self, buffer: Buffer, data: np.ndarray) -> None:
        self._nothing_here()

    def copy_out(self, buffer: Buffer, out: np.ndarray) -> None:
        self._nothing_here()

    def launch(self, launches: list[Launch]) -> None:
        self._nothing_here()

    def synchronize(self) -> None:
        """Does nothing: nothing is ever queued."""

    def elapsed(self) -> float:
        """No time: nothing runs."""
        return 0.0
