"""OpenCL programs: sources joined into few builds, kept in memory and on disk.

A driver parses its built-in headers for every build (150 ms on PoCL, 1.2 s for the first), so the sources of one `load`
are joined: 30 kernels cost 230 ms. A joined source is stored with its binary; each kernel's own entry names the join it
is in, so that another process, loading another selection of kernels, finds the same builds again.
"""
from __future__ import annotations

import os
import re
import warnings
from hashlib import sha256
from typing import Any

import numpy as np

from minigrad.dtype import BY_SHORT
from minigrad.errors import CompileError, InternalError
from minigrad.runtime import disk_cache
from minigrad.runtime.device import Program
from minigrad.runtime.opencl_devices import DeviceInfo
from minigrad.runtime.opencl_quirks import COMPILES_LATE, OWN_CACHE

KERNELS_PER_BUILD = 64


class Builder:
    """Builds programs for one device. Not safe for several threads: the device's lock guards it."""

    def __init__(self, info: DeviceInfo, context: Any):
        self._info, self._context = info, context
        self._options = ["-cl-fp32-correctly-rounded-divide-sqrt"] if "divide" in info.features else []
        self._identity = info.identity + "\n" + " ".join(self._options)
        self._builds: dict[str, Any] = {}
        self.fresh: dict[Program, str] = {}
        """Programs that the driver has not compiled yet, each with the source of its build: until their first launch,
        where drivers wait for that."""

    def kernels(self, programs: list[Program]) -> list[Any]:
        """A new cl.Kernel for each program, from memory, disk or the compiler. Raises CompileError."""
        found: dict[Program, Any] = {}
        missing: list[Program] = []
        for p in dict.fromkeys(programs):
            kernel = self._stored(p)
            if kernel is None:
                missing.append(p)
            else:
                found[p] = kernel
        for group in _groups(missing):
            found.update(self._compile(group))
        return [found[p] for p in programs]

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
        build = self._from_source(source)
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
            return build_quietly(cl.Program(self._context, [self._info.handle], [binary]), self._options)
        except cl.Error:
            return None

    def _from_source(self, source: str) -> Any:
        import pyopencl as cl
        try:
            return build_quietly(cl.Program(self._context, source), self.options_of(source))
        except cl.Error:
            return None

    def options_of(self, source: str) -> list[str]:
        """The options to build a source with: sub-groups belong to later versions of the language than drivers
        assume."""
        version = "CL3.0" if self._info.version.startswith("OpenCL 3") else "CL2.0"
        return [*self._options, f"-cl-std={version}"] if "sub_group_" in source else self._options

    def _refusal(self, program: Program) -> CompileError:
        """The error for a source that the driver has refused, with its words."""
        import pyopencl as cl
        log = "the second attempt succeeded"
        try:
            build_quietly(cl.Program(self._context, program.source), self.options_of(program.source))
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
    import pyopencl as cl
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return program.build(options, cache_dir=False)
        except cl.Error as e:
            saved = re.search(r"\(source saved as (\S+)\)", str(e))
            if saved:
                os.unlink(saved[1])
            raise


def _groups(programs: list[Program]) -> list[list[Program]]:
    """Programs to build together: distinct names, at most KERNELS_PER_BUILD."""
    groups: list[list[Program]] = []
    names: list[set[str]] = []
    for p in programs:
        at = next((i for i, g in enumerate(groups) if p.name not in names[i] and len(g) < KERNELS_PER_BUILD), None)
        if at is None:
            at = len(groups)
            groups.append([])
            names.append(set())
        groups[at].append(p)
        names[at].add(p.name)
    return groups


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
