"""OpenCL programs: sources joined into few builds, kept in memory and on disk.

A driver parses its built-in headers for every build (150 ms on PoCL, 1.2 s for the first), so the sources of one `load`
are joined: 30 kernels cost 230 ms. A join that is long enough is built by another thread while further programs are
being made. It is stored with its binary; each kernel's own entry names the join it is in, so that another process,
loading another selection of kernels, finds the same builds again.
"""
from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from hashlib import sha256
from typing import Any

import numpy as np

from minigrad.config import current
from minigrad.dtype import BY_SHORT
from minigrad.errors import CompileError, InternalError
from minigrad.runtime import disk_cache
from minigrad.runtime.device import Program
from minigrad.runtime.opencl_devices import DeviceInfo
from minigrad.runtime.opencl_quirks import COMPILES_LATE, INTERPRETER, OWN_CACHE

KERNELS_PER_BUILD = 64
CHARS_PER_BUILD = 100_000
"""Characters of source in a build where a driver compiles while it builds: half a second of Intel's compiler, with
which several builds at once are busy for about as long as each other."""


class Builder:
    """Builds programs for one device. Not safe for several threads: the device's lock guards it."""

    def __init__(self, info: DeviceInfo, context: Any):
        self._info, self._context = info, context
        self.options = ["-cl-fp32-correctly-rounded-divide-sqrt"] if "divide" in info.features else []
        if info.language:
            self.options.append(f"-cl-std={info.language}")
        self._identity = info.identity + "\n" + " ".join(self.options)
        self._builds: dict[str, Any] = {}
        self.fresh: dict[Program, str] = {}
        """Programs that the driver has not compiled yet, each with the source of its build: until their first launch,
        where drivers wait for that."""

    def kernels(self, programs: Iterable[Program]) -> dict[Program, Any]:
        """A new cl.Kernel for each program, from memory, disk or the compiler. Raises CompileError."""
        found: dict[Program, Any] = {}
        begun: list[tuple[list[Program], str, Future]] = []
        rest: list[list[Program]] = []
        with _quiet(), ExitStack() as stack:
            threads = 1 if INTERPRETER in self._info.quirks else current().threads
            pool = ThreadPoolExecutor(threads) if threads > 1 else None
            if pool is not None:
                stack.callback(pool.shutdown, cancel_futures=True)
            for group, whole in self._missing(programs, found):
                if pool is not None and whole:
                    source = join_sources([p.source for p in group])
                    begun.append((group, source, pool.submit(self._from_source, source)))
                else:
                    rest.append(group)
            for group in rest:
                found.update(self._compile(group))
            for group, source, build in begun:
                found.update(self._kept(group, source, build.result()))
        return found

    def _missing(self, programs: Iterable[Program],
                 found: dict[Program, Any]) -> Iterator[tuple[list[Program], bool]]:
        """Programs to compile in one build, of distinct names, with True where they are enough for one. Fills in
        `found`: all that are asked for, with the kernels that memory or the disk has."""
        late = COMPILES_LATE in self._info.quirks
        groups: list[dict[str, Program]] = []
        for p in programs:
            if p in found:
                continue
            found[p] = self._stored(p)
            if found[p] is not None:
                continue
            group = next((g for g in groups if p.name not in g), None)
            if group is None:
                groups.append(group := {})
            group[p.name] = p
            chars = 0 if late else sum([len(one.source) for one in group.values()])
            if len(group) == KERNELS_PER_BUILD or chars > CHARS_PER_BUILD:
                groups.remove(group)
                yield list(group.values()), True
        for group in groups:
            yield list(group.values()), False

    def _key(self, text: str) -> str:
        return sha256(f"{self._identity}\n{text}".encode()).hexdigest()

    def _stored(self, program: Program) -> Any:
        """The kernel from a build of this or an earlier process, or None."""
        join = disk_cache.get("opencl-kernel", self._key(program.name + "\n" + program.source))
        if join is None:
            return None
        key = join.decode(errors="replace")
        build = self._builds.get(key)
        if build is None:
            entry = disk_cache.get("opencl-build", key)
            if entry is None:
                return None
            size = int.from_bytes(entry[:8], "little")
            source, binary = entry[8:8 + size].decode(errors="replace"), entry[8 + size:]
            build = self._from_binary(binary) or self._from_source(source)
            if build is None:
                return None
            self._builds[key] = build
        return _kernel(build, program.name)

    def _compile(self, programs: list[Program]) -> dict[Program, Any]:
        """Builds the joined sources; where that fails, each alone, so that the error names its own source."""
        source = join_sources([p.source for p in programs])
        return self._kept(programs, source, self._from_source(source))

    def _kept(self, programs: list[Program], source: str, build: Any) -> dict[Program, Any]:
        """The kernels of a build, which memory and disk have from now on."""
        if build is None and len(programs) > 1:
            return {p: k for single in programs for p, k in self._compile([single]).items()}
        if build is None:
            raise self._refusal(programs[0])
        key = self._key(source)
        self._builds[key] = build
        text = source.encode()
        disk_cache.put("opencl-build", key, len(text).to_bytes(8, "little") + text + self._binary(build))
        found = {}
        for p in programs:
            kernel = _kernel(build, p.name)
            if kernel is None:
                raise CompileError(f"[load] expected a kernel named {p.name} in its source", p.source)
            disk_cache.put("opencl-kernel", self._key(p.name + "\n" + p.source), key.encode())
            found[p] = kernel
            if COMPILES_LATE in self._info.quirks:
                self.fresh[p] = source
        return found

    def _binary(self, build: Any) -> bytes:
        import pyopencl as cl
        if OWN_CACHE in self._info.quirks:
            return b""
        try:
            return build.get_info(cl.program_info.BINARIES)[0]
        except (cl.Error, IndexError):
            return b""

    def _from_binary(self, binary: bytes) -> Any:
        import pyopencl as cl
        if not binary:
            return None
        try:
            return build_quietly(cl.Program(self._context, [self._info.handle], [binary]), self.options)
        except cl.Error:
            return None

    def _from_source(self, source: str) -> Any:
        import pyopencl as cl
        try:
            return _built(cl.Program(self._context, source), self.options)
        except cl.Error:
            return None

    def _refusal(self, program: Program) -> CompileError:
        """The error for a source that the driver has refused, with its words."""
        import pyopencl as cl
        log = "the second attempt succeeded"
        try:
            build_quietly(cl.Program(self._context, program.source), self.options)
        except cl.Error as e:
            log = str(e)
        return CompileError(f"[load] {self._info.platform} ({self._info.name}) refused kernel {program.name}: {log}",
                            program.source)


def join_sources(sources: list[str]) -> str:
    """One source from several: paragraphs (separated by blank lines) in order, equal ones once."""
    paragraphs = [part for source in sources for part in re.split(r"\n[ \t]*\n", source.strip("\n"))]
    return "\n\n".join(dict.fromkeys(part for part in paragraphs if part.strip())) + "\n"


def build_quietly(program: Any, options: list[str]) -> Any:
    """Builds a cl.Program past pyopencl's own cache and without its warnings. Raises cl.Error with the driver's log."""
    with _quiet():
        return _built(program, options)


def _quiet() -> AbstractContextManager:
    """Without pyopencl's warnings of what compilers say, in all threads: only one may leave it."""
    import pyopencl as cl
    return warnings.catch_warnings(action="ignore", category=cl.CompilerWarning)


def _built(program: Any, options: list[str]) -> Any:
    import pyopencl as cl
    try:
        return program.build(options, cache_dir=False)
    except cl.Error as e:
        saved = re.search(r"\(source saved as (\S+)\)", str(e))
        if saved:
            os.unlink(saved[1])
        raise


def scalar_type(short: str) -> Any:
    """The numpy type of a scalar argument: half types are passed as float, bool as uchar."""
    if short not in BY_SHORT:
        raise InternalError(f"[load] expected 'buffer:<bytes>' or a type's short name as argument, got {short!r}")
    dtype = BY_SHORT[short]
    return np.uint8 if dtype.kind == "b" else dtype.compute.np.type


def _kernel(build: Any, name: str) -> Any:
    import pyopencl as cl
    try:
        return cl.Kernel(build, name)
    except cl.Error:
        return None
