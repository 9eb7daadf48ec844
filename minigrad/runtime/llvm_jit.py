"""LLVM IR text to addresses of native functions: batched compilation, object cache in memory and on disk.

A translation unit is (names of its entry functions, IR text). Those that no cache knows are compiled in batches, one
object each, some of them by a second process (`llvm_batch.py`). On disk, kind 'llvm-index' maps a translation unit's
key to the object that holds it, 'llvm-object' holds the objects, 'llvm-links' the names of the objects that one links
to. Entries are renamed to `name.key`, so translation units of any origin can be loaded side by side. The code that they
link to (microkernels) is an object each, loaded before them and resolved by symbol.
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from minigrad import config
from minigrad.errors import CompileError
from minigrad.program import Link, NotStored, digest_of
from minigrad.runtime import disk_cache
from minigrad.runtime.arm_features import ARM, arm_features
from minigrad.runtime.cpu_level import processor
from minigrad.runtime.llvm_batch import Batch
from minigrad.runtime.llvm_emit import Emitter, Refused, Source
from minigrad.runtime.llvm_thread import uninterrupted
from minigrad.runtime.object_symbols import foreign_symbols, processor_of

# Part of every key: raise it when the passes of `Emitter` change.
PIPELINE = "sroa,instcombine,simplifycfg;O2;3"


class Unit(NamedTuple):
    """A translation unit. `entries` are the functions whose addresses are asked for; all else in `source` becomes
    internal.

    With a `digest` the source is not at hand: the code comes from a cache, or NotStored is raised.
    """

    entries: tuple[str, ...]
    source: str
    links: tuple[Link, ...] = ()
    digest: str = ""


class Jit:
    """One LLVM target machine and one loader for the host processor. Thread-safe; code is never unloaded."""

    def __init__(self) -> None:
        import llvmlite
        import llvmlite.binding as llvm

        self.llvm = llvm
        host, features = llvm.get_host_cpu_name(), dict(llvm.get_host_cpu_features())
        if llvm.get_process_triple().startswith(ARM):
            features |= arm_features()
        self.host = host
        """LLVM's name of the processor that we run on; `cpu` is the one to compile for."""
        self.cpu, self.features = processor(config.current().cpu, host, features)
        flags = ",".join(("+" if on else "-") + name for name, on in self.features.items())
        self.processor = self.cpu, flags
        self._emitter = emitter = Emitter(self.cpu, flags)
        self.triple = emitter.triple
        # The engine owns the machine that it is made with, so it gets one of its own.
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), emitter.new_machine())
        version = ".".join(map(str, llvm.llvm_version_info))
        self.version = f"llvm {version}"
        self.identity = f"{self.triple} {self.cpu} {flags} {self.version} llvmlite {llvmlite.__version__} " \
            + PIPELINE
        self._addresses: dict[str, tuple[int, ...]] = {}
        self._objects: set[str] = set()
        self._linked: set[str] = set()
        self.compiled = 0

    def addresses(self, units: Iterable[Unit], about: int = 0) -> list[tuple[int, ...]]:
        """The addresses of each translation unit's entries, in order. Some are compiled while others are still being
        made.

        `about` is their number, where it is known. Raises CompileError with LLVM's words and the source, and NotStored
        for a translation unit without source that no cache has.
        """
        keys: list[str] = []
        fresh: dict[str, Unit] = {}
        batch = Batch(self._emit, self.processor, about)
        try:
            for unit in units:
                key = self.key(unit)
                keys.append(key)
                if key not in self._addresses and key not in fresh:
                    fresh[key] = unit
                    if not uninterrupted(self._known, key, unit):
                        batch.add(key, (unit.entries, unit.source))
            for group, code in batch.finish():
                uninterrupted(self._keep, {key: fresh[key] for key in group}, code)
        finally:
            batch.close()
        if fresh:
            uninterrupted(self._find, fresh)
        return [self._addresses[key] for key in keys]

    def _find(self, units: dict[str, Unit]) -> None:
        """Notes the addresses of what is loaded."""
        self._engine.finalize_object()
        for key, unit in units.items():
            self._addresses[key] = tuple(self._address(f"{name}.{key}") for name in unit.entries)

    def _known(self, key: str, unit: Unit) -> bool:
        """Loads a translation unit if it is on disk, and the code that it links to in any case. Raises NotStored."""
        for link in unit.links:
            self._link(link)
        if self._fetch(key, unit):
            return True
        if unit.digest:
            raise NotStored(unit.entries[0])
        return False

    def _emit(self, sources: Mapping[str, Source]) -> bytes:
        try:
            return uninterrupted(self._emitter.emit, sources)
        except Refused as e:
            raise CompileError(f"[load] {e}", e.source) from None

    def key(self, unit: Unit) -> str:
        """The identity of a translation unit's object code: source, entries, processor, LLVM and passes."""
        text = self.identity + "\0" + ",".join(unit.entries) + "\0" + (unit.digest or digest_of(unit.source))
        return sha256(text.encode()).hexdigest()[:32]

    def object_code(self, units: list[Unit]) -> bytes:
        """Compiles the translation units into one object file, past every cache."""
        return self._emit({self.key(unit): (unit.entries, unit.source) for unit in units})

    def assembly(self, source: str) -> str:
        """The assembly of one IR text after our passes, for reading."""
        try:
            return uninterrupted(self._emitter.assembly, source)
        except Refused as e:
            raise CompileError(f"[load] {e}", e.source) from None

    def _fetch(self, key: str, unit: Unit) -> bool:
        """Loads the translation unit from disk; False if no usable object holds it."""
        index = disk_cache.get("llvm-index", key)
        if index is None:
            return False
        name = index.decode("ascii", "replace")
        if name not in self._objects:
            code = disk_cache.get("llvm-object", name)
            if code is None or not self._link_others(name, code):
                return False
            self._load(name, code)
        return True

    def _link_others(self, name: str, code: bytes) -> bool:
        """Loads the code that an object on disk links to. False if some is missing: the object may not be loaded
        then."""
        needed = foreign_symbols(code) - self._linked
        if not needed:
            return True
        links = disk_cache.get("llvm-links", name) or b""
        keys = dict(line.split(" ") for line in links.decode("ascii", "replace").splitlines() if line.count(" ") == 1)
        stored = {symbol: disk_cache.get("llvm-object", keys[symbol]) for symbol in needed if symbol in keys}
        found = {symbol: object_code for symbol, object_code in stored.items() if object_code is not None}
        if set(found) != needed:
            return False
        for symbol, object_code in found.items():
            self._load(keys[symbol], object_code)
            self._linked.add(symbol)
        return True

    def _keep(self, units: dict[str, Unit], code: bytes) -> None:
        """Loads what was compiled, and stores it for other processes."""
        self.compiled += len(units)
        foreign = foreign_symbols(code) - self._linked
        if foreign:
            # The loader would end the process.
            guilty = next((u for u in units.values() if any(f"@{name}(" in u.source for name in foreign)), None)
            raise CompileError(f"[load] expected programs without external calls, got {sorted(foreign)}",
                               guilty.source if guilty else "")
        name = sha256("".join(units).encode()).hexdigest()[:32]
        self._load(name, code)
        disk_cache.put("llvm-object", name, code)
        links = {link.symbol: self._link_key(link) for unit in units.values() for link in unit.links}
        if links:
            disk_cache.put("llvm-links", name, "\n".join(f"{s} {k}" for s, k in links.items()).encode())
        for key in units:
            disk_cache.put("llvm-index", key, name.encode())

    def _link(self, link: Link) -> None:
        """Loads code that programs call, compiling it if no cache has it."""
        if link.symbol in self._linked:
            return
        key = self._link_key(link)
        code = disk_cache.get("llvm-object", key)
        if code is None:
            code = self.link_object(link)
            disk_cache.put("llvm-object", key, code)
        self._load(key, code)
        self._linked.add(link.symbol)

    def _link_key(self, link: Link) -> str:
        return self.key(Unit((link.symbol, link.language), link.source))

    def link_object(self, link: Link) -> bytes:
        """The object that defines `link.symbol`, past every cache. Raises CompileError with the compiler's words."""
        if link.language == "c":
            code = self._compile_c(link)
        else:
            try:
                code = uninterrupted(lambda: self._emitter.finish(link_module(self._emitter, link)))
            except Refused as e:
                raise CompileError(f"[load] {e}", e.source) from None
        foreign = foreign_symbols(code)
        if foreign:
            raise CompileError(f"[load] expected {link.name} to call nothing, got {sorted(foreign)}", link.source)
        return code

    def _compile_c(self, link: Link) -> bytes:
        clang = shutil.which("clang")
        if clang is None:
            raise CompileError(f"[load] expected clang for {link.name}, which is in C, found none", link.source)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "object.o")
            level = config.current().cpu  # whose names clang knows too
            command = [clang, "-x", "c", "-O2", f"-march={level}", "-ffp-contract=fast", "-fPIC", "-fno-unwind-tables",
                       "-fno-asynchronous-unwind-tables", "-c", "-o", path, "-"]
            done = subprocess.run(command, input=_renamed(link).encode(), capture_output=True)
            if done.returncode:
                words = done.stderr.decode(errors="replace")
                raise CompileError(f"[load] {link.name}: clang says {words}", link.source)
            with open(path, "rb") as file:
                code = file.read()
        if processor_of(code) != processor_of(self._emitter.finish(self._emitter.parse(""))):
            raise CompileError(f"[load] expected {clang} to compile for {self.triple}, got code for another processor",
                               link.source)
        return code

    def _load(self, name: str, code: bytes) -> None:
        self._engine.add_object_file(self.llvm.ObjectFileRef.from_data(code))
        self._objects.add(name)

    def _address(self, symbol: str) -> int:
        address = self._engine.get_function_address(symbol)
        if not address:
            raise CompileError(f"[load] expected the symbol {symbol} in a loaded object, got nothing")
        return address


def link_module(emitter: Emitter, link: Link) -> Any:
    """The module of code that programs call, in LLVM IR or in assembly; it defines `link.symbol`."""
    if link.language == "llvm":
        module = emitter.parse(link.source)
        emitter.rename(module, (link.name,), link.source, "", link.symbol)
        return module
    return emitter.parse("".join(f'module asm "{_escaped(line)}"\n' for line in _renamed(link).splitlines()))


def _renamed(link: Link) -> str:
    """The source with the name that it defines replaced by the symbol."""
    return re.sub(rf"\b{re.escape(link.name)}\b", link.symbol, link.source)


def _escaped(line: str) -> str:
    return line.replace("\\", "\\5C").replace('"', "\\22")
