"""Launches as the native executor's command table: argument words, chunks, pieces of tables."""
from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any

from minigrad.errors import InternalError
from minigrad.runtime.device import Buffer, Launch, Program, grouped
from minigrad.runtime.executor_ir import COMMAND_WORDS, HEADER_WORDS, PIECE_WORDS
from minigrad.runtime.host import address_of

# The partition depends on the extent alone, so that every bit of the result is the same for any number of threads.
CHUNKS = 64
# Sharing costs about 1 us while the workers watch and 3 us when they must be woken.
SERIAL_NANOSECONDS = 15_000.0

Argument = Buffer | int | float
Encoder = Callable[[int | float], int]


class Executable:
    """A loaded program: `address` of its function; `encoders` make argument words of scalars, None stands for a
    buffer."""

    __slots__ = ("program", "address", "encoders")

    def __init__(self, program: Program, address: int):
        self.program = program
        self.address = address
        self.encoders = tuple(_encoder(kind) for kind in program.arguments)


class Prepared:
    """A list of launches as the executor's table: header, commands, argument words and table pieces, in one array.

    It keeps the buffers of its launches alive. Words of arguments may be overwritten between runs, and extents changed
    by `resize`. `pointer` is the table's address as the executor takes it; `admitted` the state of the pool that is
    ready for it.
    """

    def __init__(self, launches: list[Launch]) -> None:
        """Raises InternalError where arguments do not match their program."""
        self.launches = launches
        groups = grouped(launches)
        self.count = len(groups)
        """The number of commands: a launch group is one."""
        self.scratch = max((item.executable.program.scratch for item in launches), default=0)
        self.parallel = False
        self.rows: list[list[int]] = []
        """Per launch, the positions in the array at which the arguments of each of its rows start."""
        words = [0] * (HEADER_WORDS + COMMAND_WORDS * self.count)
        words[1] = self.count
        relative: list[int] = []  # positions of words that hold an index into this array, to become addresses
        self._commands: list[int] = []
        """Per launch, the position of its command; -1 if it has a table or is in a launch group of several."""
        for i, group in enumerate(groups):
            at = HEADER_WORDS + i * COMMAND_WORDS
            item = group[0]
            if len(group) > 1:
                total, size, chunks = self._add_group(words, relative, group, at)
            elif item.table:
                total, size, chunks, starts = _add_table(words, relative, item, at)
                self._note(-1, starts)
            else:
                start = len(words)
                words += _encode(item.executable, item.arguments)
                words[at + 1] = start
                relative.append(at + 1)
                self._note(at, [start])
                total = item.extent
                size, chunks = _partition(total, item.work)
            words[at] = item.executable.address
            words[at + 2:at + 5] = max(total, 0), size, chunks
            if chunks > 1:
                self.parallel = True
        self.words = array("Q", words)
        """The table. The positions of arguments in it are in `rows`."""
        address, _ = self.words.buffer_info()
        self.pointer = address
        self.admitted: object = None
        for position in relative:
            self.words[position] = address + 8 * words[position]

    def _note(self, command: int, rows: list[int]) -> None:
        self._commands.append(command)
        self.rows.append(rows)

    def _add_group(self, words: list[int], relative: list[int], group: list[Launch], at: int) -> tuple[int, int, int]:
        """Appends the arguments of launches without tables and their pieces, cut by their shares of the work; returns
        (pieces, pieces per chunk, chunks)."""
        starts = []
        for item in group:
            if item.table:
                raise InternalError(f"[prepare] expected launches without tables in a group, got "
                                    f"{item.executable.program.name}")
            starts.append(len(words))
            words += _encode(item.executable, item.arguments)
            self._note(-1, [starts[-1]])
        work = sum(item.work for item in group)
        known = all(item.work > 0 for item in group)
        words[at + 5] = len(words)
        relative.append(at + 5)
        for item, start in zip(group, starts, strict=True):
            share = item.work / work if known else 1 / len(group)
            longest = -(-item.extent // max(1, round(CHUNKS * share)))
            _add_pieces(words, relative, item.executable, start, item.extent, longest)
        pieces = (len(words) - words[at + 5]) // PIECE_WORDS
        few = pieces < 2 or (known and work < SERIAL_NANOSECONDS)
        return (pieces, max(pieces, 1), 1) if few else (pieces, 1, pieces)

    def admit(self, state: object, address: int) -> None:
        """Notes that a pool with this state, which lies at `address`, is ready for it."""
        self.admitted, self.words[0] = state, address

    def resize(self, launch: int, extent: int, work: float) -> None:
        """Replaces the parallel iterations and the estimate of work of a launch that has no table and is alone."""
        at = self._commands[launch]
        if at < 0:
            raise InternalError(f"[prepare] expected a launch that is alone and has no table, got launch {launch}")
        size, chunks = _partition(extent, work)
        self.words[at + 2:at + 5] = array("Q", (max(extent, 0), size, chunks))
        if chunks > 1 and not self.parallel:
            self.parallel, self.admitted = True, None

    def release(self) -> None:
        """Lets go of the buffers: from now on the caller holds those whose addresses are in the table."""
        self.launches = []


def _add_pieces(words: list[int], relative: list[int], executable: Executable, start: int, extent: int, longest: int,
                ) -> None:
    """Appends the pieces of one row whose arguments are at `start`, at most `longest` iterations each."""
    for begin in range(0, extent, longest):
        relative.append(len(words) + 1)
        words += (executable.address, start, begin, min(begin + longest, extent))


def _add_table(words: list[int], relative: list[int], item: Launch, at: int) -> tuple[int, int, int, list[int]]:
    """Appends the rows' arguments and their pieces; returns (pieces, pieces per chunk, chunks, starts of the rows)."""
    rows = []
    for arguments, extent in item.table:
        if extent > 0:
            rows.append((len(words), extent))
            words += _encode(item.executable, arguments)
    longest = -(-sum(extent for _, extent in rows) // CHUNKS)
    start = len(words)
    for position, extent in rows:
        _add_pieces(words, relative, item.executable, position, extent, longest)
    pieces = (len(words) - start) // PIECE_WORDS
    words[at + 5] = start
    relative.append(at + 5)
    if pieces < 2 or 0.0 < item.work < SERIAL_NANOSECONDS:
        return pieces, max(pieces, 1), 1, [start for start, _ in rows]
    # At most `CHUNKS` pieces come from cuts, the others are whole small rows: of long tables a chunk has many.
    size = -(-pieces // (4 * CHUNKS))
    return pieces, size, -(-pieces // size), [start for start, _ in rows]


def _partition(extent: int, work: float) -> tuple[int, int]:
    """(iterations per chunk, chunks) of a launch; one chunk where it is not worth sharing."""
    if extent < 2 or 0.0 < work < SERIAL_NANOSECONDS:
        return max(extent, 1), 1
    size = -(-extent // CHUNKS)
    return size, -(-extent // size)


def _encode(executable: Executable, arguments: tuple[Argument, ...]) -> list[int]:
    encoders = executable.encoders
    if len(arguments) != len(encoders):
        raise InternalError(f"[launch] expected {len(encoders)} arguments for {executable.program.name}, "
                            f"got {len(arguments)}")
    words: Any = zip(encoders, arguments, strict=True)
    return [(value.address or address_of(value)) if encode is None else encode(value) for encode, value in words]


_HALF, _FLOAT, _DOUBLE = struct.Struct("<e"), struct.Struct("<f"), struct.Struct("<d")
_WORD16, _WORD32, _WORD64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")


def _encoder(kind: str) -> Encoder | None:
    """A function from a scalar of `kind` to an argument word; None for a buffer."""
    if kind.partition(":")[0] == "buffer":
        return None
    if kind not in _ENCODERS:
        raise InternalError(f"[load] expected an argument type of {sorted(_ENCODERS)} or buffer, got {kind}")
    return _ENCODERS[kind]


def _encode_integer(value: int | float) -> int:
    return int(value) & 0xFFFF_FFFF_FFFF_FFFF


def _encode_bool(value: int | float) -> int:
    return 1 if value else 0


def _encode_double(value: int | float) -> int:
    return _WORD64.unpack(_DOUBLE.pack(value))[0]


def _encode_float(value: int | float) -> int:
    try:
        return _WORD32.unpack(_FLOAT.pack(value))[0]
    except OverflowError:
        return 0xFF80_0000 if value < 0 else 0x7F80_0000


def _encode_half(value: int | float) -> int:
    try:
        return _WORD16.unpack(_HALF.pack(value))[0]
    except OverflowError:
        return 0xFC00 if value < 0 else 0x7C00


def _encode_bfloat(value: int | float) -> int:
    bits = _encode_float(value)
    if value != value:
        return bits >> 16 | 0x40  # stays a NaN whatever the low bits were
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


_ENCODERS: dict[str, Encoder] = {
    **{f"{kind}{bits}": _encode_integer for kind in "iu" for bits in (8, 16, 32, 64)},
    "b8": _encode_bool, "f64": _encode_double, "f32": _encode_float, "f16": _encode_half, "bf16": _encode_bfloat,
}
