"""The interface of devices: programs, buffers, launches. Never a Node, a Kernel or loop IR."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, product
from operator import not_
from threading import Lock
from typing import Any

import numpy as np

from minigrad.config import current
from minigrad.program import Program
from minigrad.stores import Store, at_once
from minigrad.target import MARGINS, SUB_GROUPS, WINOGRAD, Target, Tuned

ASKED_FOR = "mma-tf32", SUB_GROUPS, MARGINS, *WINOGRAD.values()
"""Features that change what is computed or where: programs use them where `Config.units`, in this order, says so."""

__all__ = ["Buffer", "Device", "Launch", "Program", "grouped"]


@dataclass(slots=True, weakref_slot=True, eq=False)
class Buffer:
    """`nbytes` of device memory at `offset` bytes into `handle` (a numpy uint8 array on the CPU, a cl.Buffer on CL).

    `base` keeps what owns the memory alive: an arena, or a user's array. `address` is where the first byte lies, in
    host memory or as a device numbers its bytes, filled on first use (0: not asked yet, or no such thing). `version`
    counts how often a plan overwrote the buffer in place. `shared`: other libraries may see and write the memory, which
    no plan overwrites then.
    """

    device: Device
    nbytes: int
    handle: Any
    offset: int = 0
    base: Any = None
    address: int = 0
    version: int = 0
    shared: bool = False


@dataclass(slots=True)
class Launch:
    """One stage to run: `executable` from `load`, buffers and Python scalars in argument order, parallel iterations.

    With `table`, the launch is one program over many rows: each row is (arguments, extent), see the one-launch
    optimizer; `arguments` and `extent` are then unused. Launches of one list run in order; a device may overlap those
    it can prove independent. Neighbours with one number `group`, unless it is negative, are independent: a launch
    group. `work` estimates the time of the whole launch on one core, in nanoseconds (0.0: unknown); devices use it to
    decide what is too small to share out. `item` is free for the maker of the list.
    """

    executable: Any
    arguments: tuple[Buffer | int | float, ...]
    extent: int
    table: tuple[tuple[tuple[Buffer | int | float, ...], int], ...] = field(default=())
    work: float = 0.0
    item: int = 0
    group: int = -1


def grouped(launches: Sequence[Launch]) -> list[list[Launch]]:
    """The launches in order, as launch groups: neighbours with one number `group` together, any other alone."""
    found: list[list[Launch]] = []
    for launch in launches:
        if found and launch.group >= 0 and found[-1][-1].group == launch.group:
            found[-1].append(launch)
        else:
            found.append([launch])
    return found


class Kept(ABC):
    """Launches whose arguments stay set: only what changed is written before a run. `lock` is held to write and to run.
    A place is one argument of one row, as `place` gives it."""

    @property
    @abstractmethod
    def lock(self) -> Lock:
        """The lock that keeps other threads from writing."""

    @abstractmethod
    def place(self, row: int, argument: int) -> Any:
        """The place of an argument of a row, for the setters below."""

    @abstractmethod
    def set_addresses(self, places: Sequence[Sequence[Any]], addresses: Sequence[int]) -> None:
        """Sets buffers that begin at these addresses, each at all of its places."""

    @abstractmethod
    def set_number(self, places: Sequence[Any], value: int | float) -> None:
        """Sets a scalar or a dim at these places, in the type that each program takes."""

    @abstractmethod
    def set_extent(self, row: int, extent: int) -> None:
        """Sets the parallel iterations, one or more, of a row that is a launch of its own."""

    @abstractmethod
    def address(self, place: Any) -> int:
        """The address that `set_addresses` last wrote at a place."""

    @abstractmethod
    def run(self, threads: int = 0, stores: Sequence[Store] = ()) -> None:
        """Runs, or queues, all launches, and makes the stores at once with the last. `threads`: a setting, or 0."""


class Device(ABC):
    """A place that runs Programs. `name` is canonical ('CPU', 'CL:0'); `queues` says whether `launch` may return before
    the work is done; `keeps_early` whether launches are worth keeping as soon as they run again (`keep`); `calls_host`
    whether launches may be calls of Python over memory of the host (runtime/host_calls.py); `simulates` whether nothing
    runs, and the engine tells executables how long a launch takes (runtime/simulated.py). `driver` names the compiler
    and its version, on which the time of a plan depends."""

    name: str
    queues = True
    keeps_early = calls_host = simulates = False
    driver = ""
    _targets: dict[tuple[bool, ...], Target]
    _tuned: dict[tuple[bool, ...], Target]

    @property
    def target(self) -> Target:
        """The facts of the device that code generation may use, part of every plan's key: of features that change what
        is computed, those that the settings ask for."""
        settings = current()
        found = (self._tuned if settings.tuned else self._targets)[settings.units]
        return replace(found, plans=settings.plans) if settings.plans else found

    @target.setter
    def target(self, target: Target) -> None:
        self._targets, own = {}, {MARGINS, *(() if target.is_gpu else WINOGRAD.values())}
        for asked in product((False, True), repeat=len(ASKED_FOR)):
            left_out = frozenset(compress(ASKED_FOR, map(not_, asked)))
            self._targets[asked] = replace(target, features=(target.features | own) - left_out)
        self._tuned = self._targets

    @property
    def tuned(self) -> Tuned | None:
        """The plans that a search has found for the device; None where there are none."""
        return next(iter(self._tuned.values())).tuned

    @tuned.setter
    def tuned(self, tuned: Tuned | None) -> None:
        self._tuned = {asked: replace(target, tuned=tuned) for asked, target in self._targets.items()}

    @abstractmethod
    def alloc(self, nbytes: int) -> Buffer:
        """At least `nbytes` bytes, aligned to 64; contents undefined. Raises DeviceError when out of memory."""

    @abstractmethod
    def free(self, buffer: Buffer) -> None:
        """Gives the memory back (it may be kept for reuse)."""

    def address_of(self, handle: Any) -> int:
        """The address of the first byte of a handle from `alloc`: no two live ones share addresses."""
        raise NotImplementedError(f"{self.name} does not say where memory lies")

    @abstractmethod
    def copy_in(self, buffer: Buffer, data: np.ndarray) -> None:
        """Copies a contiguous host array into the buffer, after queued work that uses it."""

    @abstractmethod
    def copy_out(self, buffer: Buffer, out: np.ndarray) -> None:
        """Copies the buffer into a contiguous host array, after queued work that writes it."""

    @abstractmethod
    def load(self, programs: Iterable[Program]) -> list[Any]:
        """Compiles (or fetches from the caches) each program, perhaps before the next one is taken.

        Raises CompileError with the driver's words.
        """

    @abstractmethod
    def launch(self, launches: list[Launch]) -> None:
        """Queues the launches in order; returns without waiting for them where the device can."""

    def launch_and(self, launches: list[Launch], stores: Sequence[Store]) -> None:
        """`launch`, then the stores: at once with the last launch on devices that override this."""
        self.launch(launches)
        at_once(stores)

    def keep(self, launches: list[Launch], memories: list[tuple[int, ...]]) -> Kept | None:
        """Launches that will run again and again with other arguments, or None where the device gains nothing by it.

        Buffers among their arguments are stand-ins: addresses are set before the first run. `memories` has, for each
        row (of all launches in order, tables row by row), the number of the memory that each of its buffers is part of.
        """
        return None

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until everything queued is done."""

    @abstractmethod
    def elapsed(self) -> float:
        """Seconds the device spent in kernels since the last call; wall time where the driver cannot tell.

        The result of the first call means nothing: call it before and after.
        """
