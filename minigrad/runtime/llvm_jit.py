"""LLVM IR text to addresses of native functions: batched compilation, object cache in memory and on disk.

A unit is (names of its entry functions, IR text). All units of one call that no cache knows are parsed one by one (so
that an error names its unit), linked into one module and compiled to one object: LLVM's fixed cost per module is as
large as a small kernel's. On disk, kind 'llvm-index' maps a unit's key to the object that holds it, 'llvm-object' holds
the objects, 'llvm-links' the names of the objects that one links to. Entries are renamed to `name.key`, so units of any
origin can be loaded side by side. What units link to (microkernels) is an object each, loaded before them and resolved
by symbol.
"""
from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import threading
from hashlib import sha256
from typing import Any, NamedTuple

from minigrad.errors import CompileError
from minigrad.program import Link, NotStored, digest_of
from minigrad.runtime import disk_cache

# What the loader may resolve from the process: LLVM turns copies and fills into these by itself.
LIBRARY_SYMBOLS = frozenset({"memcpy", "memmove", "memset"})
# Part of every key: raise it when the passes below change.
PIPELINE = "sroa,instcombine,simplifycfg;O2;1"

# LLVM takes one caller at a time anyway. A fork waits for it, so that the child never inherits it locked.
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Unit(NamedTuple):
    """`entries` are the functions whose addresses are asked for; everything else in `source` becomes internal.

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

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
        self.llvm = llvm
        self.triple = llvm.get_process_triple()
        self.cpu = llvm.get_host_cpu_name()
        self.features = {name: on for name, on in sorted(llvm.get_host_cpu_features().items())}
        flags = ",".join(("+" if on else "-") + name for name, on in self.features.items())
        target = llvm.Target.from_triple(self.triple)
        self._machine = target.create_target_machine(cpu=self.cpu, features=flags, opt=2, jit=True)
        # The engine owns the machine that it is made with, so it gets one of its own.
        self._engine = llvm.create_mcjit_compiler(
            llvm.parse_assembly(""), target.create_target_machine(cpu=self.cpu, features=flags, opt=2, jit=True))
        version = ".".join(map(str, llvm.llvm_version_info))
        self.identity = f"{self.triple} {self.cpu} {flags} llvm {version} llvmlite {llvmlite.__version__} {PIPELINE}"
        self._addresses: dict[str, tuple[int, ...]] = {}
        self._objects: set[str] = set()
        self._linked: set[str] = set()
        self.compiled = 0

    def addresses(self, units: list[Unit]) -> list[tuple[int, ...]]:
        """The addresses of each unit's entries, in order.

        Raises CompileError with LLVM's words and the source, NotStored for a unit without source that no cache has.
        """
        keys = [self.key(unit) for unit in units]
        with _lock:
            missing = {key: unit for key, unit in zip(keys, units, strict=True) if key not in self._addresses}
            if missing:
                for link in {link.symbol: link for unit in missing.values() for link in unit.links}.values():
                    self._link(link)
                wanted = {key: unit for key, unit in missing.items() if not self._fetch(key, unit)}
                if any(unit.digest for unit in wanted.values()):
                    raise NotStored(next(unit.entries[0] for unit in wanted.values() if unit.digest))
                if wanted:
                    self._compile(wanted)
                self._engine.finalize_object()
                for key, unit in missing.items():
                    self._addresses[key] = tuple(self._address(f"{name}.{key}") for name in unit.entries)
            return [self._addresses[key] for key in keys]

    def key(self, unit: Unit) -> str:
        """The identity of a unit's object code: source, entries, processor, LLVM and passes."""
        text = self.identity + "\0" + ",".join(unit.entries) + "\0" + (unit.digest or digest_of(unit.source))
        return sha256(text.encode()).hexdigest()[:32]

    def object_code(self, units: list[Unit]) -> bytes:
        """Compiles the units into one object file, past every cache."""
        with _lock:
            return self._emit({self.key(unit): unit for unit in units})

    def assembly(self, source: str) -> str:
        """The assembly of one IR text after our passes, for reading."""
        with _lock:
            module = self._parse(source)
            self._run_passes(module)
            return self._machine.emit_assembly(module)

    def _fetch(self, key: str, unit: Unit) -> bool:
        """Loads the unit from disk; False if no usable object holds it."""
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
        """Loads what other units of an object on disk link to. False if something is missing: it may not be loaded."""
        needed = undefined_symbols(code) - LIBRARY_SYMBOLS - self._linked
        if not needed:
            return True
        stored = disk_cache.get("llvm-links", name) or b""
        keys = dict(line.split(" ") for line in stored.decode("ascii", "replace").splitlines() if line.count(" ") == 1)
        found = {symbol: disk_cache.get("llvm-object", keys[symbol]) for symbol in needed if symbol in keys}
        if set(found) != needed or any(object_code is None for object_code in found.values()):
            return False
        for symbol, object_code in found.items():
            assert object_code is not None
            self._load(keys[symbol], object_code)
            self._linked.add(symbol)
        return True

    def _compile(self, units: dict[str, Unit]) -> None:
        code = self._emit(units)
        self.compiled += len(units)
        foreign = undefined_symbols(code) - LIBRARY_SYMBOLS - self._linked
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
        """Loads what programs call, compiling it if no cache has it."""
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
            source = link.source
            if link.language == "asm":
                source = "".join(f'module asm "{_escaped(line)}"\n'
                                 for line in _renamed(link).splitlines())
            with _lock:
                module = self._parse(source)
                if link.language == "llvm":
                    self._rename(module, Unit((link.name,), source), "", link.symbol)
                self._run_passes(module)
                code = self._machine.emit_object(module)
        foreign = undefined_symbols(code) - LIBRARY_SYMBOLS
        if foreign:
            raise CompileError(f"[load] expected {link.name} to call nothing, got {sorted(foreign)}", link.source)
        return code

    def _compile_c(self, link: Link) -> bytes:
        clang = shutil.which("clang")
        if clang is None:
            raise CompileError(f"[load] expected clang for {link.name}, which is in C, found none", link.source)
        command = [clang, "-x", "c", "-O2", "-march=native", "-ffp-contract=fast", "-fPIC", "-fno-unwind-tables",
                   "-fno-asynchronous-unwind-tables", "-c", "-o", "-", "-"]
        done = subprocess.run(command, input=_renamed(link).encode(), capture_output=True)
        if done.returncode:
            raise CompileError(f"[load] {link.name}: clang says {done.stderr.decode(errors='replace')}", link.source)
        return done.stdout

    def _emit(self, units: dict[str, Unit]) -> bytes:
        whole = None
        for key, unit in units.items():
            module = self._parse(unit.source)
            self._rename(module, unit, key)
            if whole is None:
                whole = module
            else:
                whole.link_in(module)
        self._run_passes(whole)
        return self._machine.emit_object(whole)

    def _parse(self, source: str) -> Any:
        try:
            module = self.llvm.parse_assembly(source)
            module.verify()
        except RuntimeError as e:
            raise CompileError(f"[load] LLVM refused the program: {' '.join(str(e).split())}", source) from None
        return module

    def _rename(self, module: Any, unit: Unit, key: str, symbol: str = "") -> None:
        """Entries become `name.key`, or `symbol`; everything else becomes internal."""
        found = 0
        for function in module.functions:
            if function.is_declaration:
                continue
            # Nothing of ours unwinds: no unwind tables to store, load and register.
            function.add_function_attribute("nounwind")
            name = function.name
            if name in unit.entries:
                function.name = symbol or f"{name}.{key}"
                found += 1
            else:
                function.linkage = "internal"
        for variable in module.global_variables:
            if not variable.is_declaration:
                variable.linkage = "internal"
        if found != len(unit.entries):
            raise CompileError(f"[load] expected definitions of {unit.entries}, got {found} of them", unit.source)

    def _run_passes(self, module: Any) -> None:
        # The code is explicit already; the O2 pipeline would cost ten times as much and gain nothing.
        llvm = self.llvm
        builder = llvm.create_pass_builder(self._machine, llvm.create_pipeline_tuning_options(0))
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.run(module, builder)

    def _load(self, name: str, code: bytes) -> None:
        self._engine.add_object_file(self.llvm.ObjectFileRef.from_data(code))
        self._objects.add(name)

    def _address(self, symbol: str) -> int:
        address = self._engine.get_function_address(symbol)
        if not address:
            raise CompileError(f"[load] expected the symbol {symbol} in a loaded object, got nothing")
        return address


def _renamed(link: Link) -> str:
    """The source with the name that it defines replaced by the symbol."""
    return re.sub(rf"\b{re.escape(link.name)}\b", link.symbol, link.source)


def _escaped(line: str) -> str:
    return line.replace("\\", "\\5C").replace('"', "\\22")


def undefined_symbols(code: bytes) -> frozenset[str]:
    """Names that an ELF64 little-endian object takes from outside; empty for other formats, which we cannot read."""
    if code[:6] != b"\x7fELF\x02\x01":
        return frozenset()
    section_table, = struct.unpack_from("<Q", code, 40)
    entry_size, count = struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, section_table + i * entry_size) for i in range(count)]
    names = set()
    for _, kind, _, _, offset, size, link, _, _, symbol_size in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        strings = sections[link][4]
        for at in range(offset + symbol_size, offset + size, symbol_size):
            name, _, _, section = struct.unpack_from("<IBBH", code, at)
            if section == 0 and name:
                names.add(code[strings + name:code.index(b"\0", strings + name)].decode())
    return frozenset(names)
