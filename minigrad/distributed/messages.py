"""Messages between processes: one thread sends and receives them, and adds up what came, while the others compute.

What is combined is cut into a part for each process. It gets that part from all the others, combines them in the order
of the ranks, and sends the result to all: every process sends and receives as much as in a ring, has the same bits at
the end, and has them whatever came first. Small arrays go to everybody whole, who all do the same. Processes of one
machine read each other's memory (shared.py), and only say when.

MPI goes on with a message only while somebody calls it: the thread asks again and again, and sleeps in between.
"""
from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from threading import Condition, Event, Thread
from typing import Any
from zlib import crc32

import numpy as np

from minigrad.config import current
from minigrad.distributed.shared import Shared, place
from minigrad.dtype import bfloat16_to_float32, float32_to_bfloat16
from minigrad.errors import MinigradError, quantity

WHOLE_BYTES = 1 << 16
"""Arrays of fewer bytes go to everybody whole: what counts is then how often one waits."""

TEXT_BYTES, NOTE_BYTES = 192, 64
"""Bytes of what goes before each message: a text that says what it is, which must be the same in all processes, and a
note that need not be."""

LEAST_SLEEP_S, MOST_SLEEP_S = 2e-5, 5e-4
"""Seconds that the thread sleeps when nothing has come: a tenth of the time for which nothing has, within these, and
the most where nobody waits."""

PATIENCE_S = 30.0
"""Seconds of waiting after which a line says for whom."""

GOODBYE, GRACE_S = 0, 1.0
"""The tag of the last message of a process, and how long what it sent before may take to come."""

FIRST_TAG = 1

Steps = Generator[bool, None, Any]
"""Gives True after it got on, False where it has to wait; returns a result."""


class Job:
    """Something that goes on in the thread. `wait` gives its result, or raises its error."""

    def __init__(self, what: str, steps: Steps, tag: int, owner: Messages):
        self.what, self.steps, self.tag, self.owner = what, steps, tag, owner
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended = Event()

    def advance(self) -> bool:
        """Goes on as far as it can; True where that was anything."""
        try:
            return next(self.steps)
        except StopIteration as end:
            self.result = end.value
        except BaseException as error:
            self.error = error
        self.ended.set()
        return True

    def wait(self) -> Any:
        """The result, once it is there."""
        self.owner.waiting += 1
        try:
            if not self.ended.wait(PATIENCE_S):
                print(f"minigrad: rank {self.owner.rank} has waited {PATIENCE_S:.0f} s for another process in "
                      f"{self.what}; every process must ask for the same", file=sys.stderr, flush=True)
                self.ended.wait()
        finally:
            self.owner.waiting -= 1
        if self.error is not None:
            raise self.error
        return self.result


class Messages:
    """The messages of this process to and from all others, over an MPI communicator of its own."""

    def __init__(self, world: Any, mpi: Any):
        self.world, self.mpi = world, mpi
        self.rank, self.size = world.Get_rank(), world.Get_size()
        self.others = [r for r in range(self.size) if r != self.rank]
        self.waiting = 0
        self._shared = Shared() if current().shared_memory and one_machine(world) else None
        self._jobs: list[Job] = []
        self._gone: dict[int, float] = {}
        self._changed = Condition()
        self._closing = False
        self._thread = Thread(target=self._work, name="minigrad-messages", daemon=True)
        self._thread.start()

    @property
    def shares_memory(self) -> bool:
        """True where all processes read each other's memory."""
        return self._shared is not None

    def start(self, what: str, steps: Steps, tag: int) -> Job:
        """Begins something, which `what` names where it fails, after all that was begun before with this tag."""
        job = Job(what, steps, tag, self)
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()
        return job

    def _work(self) -> None:
        since = time.monotonic()
        while True:
            with self._changed:
                while not self._jobs and not self._closing:
                    self._changed.wait()
                jobs = list(self._jobs)
            if not jobs:
                return
            first = {job.tag: job for job in reversed(jobs)}  # messages of one tag are told apart by their order
            moved = [job.advance() for job in jobs if first[job.tag] is job]
            if any(job.ended.is_set() for job in jobs):
                with self._changed:
                    self._jobs = [job for job in self._jobs if not job.ended.is_set()]
            now = time.monotonic()
            if any(moved):
                since = now
                continue
            self._look_for_the_dead(jobs)
            pause = max(LEAST_SLEEP_S, (now - since) / 10) if self.waiting else MOST_SLEEP_S
            time.sleep(min(pause, MOST_SLEEP_S))

    def _look_for_the_dead(self, jobs: list[Job]) -> None:
        """Ends the jobs that wait for a process that has said goodbye."""
        self._hear_goodbyes()
        gone = [r for r, since in self._gone.items() if time.monotonic() - since > GRACE_S]
        for job in jobs:
            if gone and job.what != "goodbye":
                job.error = MinigradError(f"[{job.what}] expected rank {gone[0]} to take part, but it has ended")
                job.ended.set()

    def _hear_goodbyes(self) -> None:
        while self.world.Iprobe(tag=GOODBYE):
            status = self.mpi.Status()
            self.world.Recv(bytearray(0), tag=GOODBYE, status=status)
            self._gone[status.Get_source()] = time.monotonic()

    def close(self) -> None:
        """Says goodbye to the others, waits until they do, and stops."""
        if self._thread.is_alive():
            self.start("goodbye", self._goodbye(), GOODBYE)
            with self._changed:
                self._closing = True
                self._changed.notify()
            self._thread.join()

    def _goodbye(self) -> Steps:
        yield from self._done([self.world.Isend(bytearray(0), r, GOODBYE) for r in self.others])
        while len(self._gone) < len(self.others):
            self._hear_goodbyes()
            yield False

    def abort(self) -> None:
        """Ends all processes."""
        self.world.Abort(1)

    # What is sent

    def _done(self, requests: list[Any]) -> Steps:
        while not self.mpi.Request.Testall(requests):
            yield False
        yield True

    def _agreed(self, what: str, text: str, tag: int, note: str = "") -> Generator[bool, None, list[str]]:
        """The notes of all processes, by rank, after it was made sure that all are about to do the same. Raises
        MinigradError that names one that is not."""
        own = text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES) + note.encode().ljust(NOTE_BYTES)
        found = [bytearray(own) for _ in range(self.size)]
        yield from self._done([*[self.world.Irecv(found[r], r, tag) for r in self.others],
                               *[self.world.Isend(own, r, tag) for r in self.others]])
        for r, other in enumerate(found):
            if other[:TEXT_BYTES] != own[:TEXT_BYTES]:
                raise MinigradError(f"[{what}] expected the same in all processes, got {text} in rank {self.rank}, and "
                                    f"{other[:TEXT_BYTES].decode(errors='replace').strip()} in rank {r}")
        return [other[TEXT_BYTES:].decode().strip() for other in found]

    # What is done

    def begin(self, arrays: Sequence[np.ndarray], dtype: str, how: str, channel: int) -> Callable[[], None]:
        """Begins to combine arrays of one element type (its name) with those of the other processes, in place; returns
        what waits for the end. Exchanges of one `channel` come in one order in all processes."""
        tag = FIRST_TAG + 2 * channel
        return self.start("all_reduce", self._combined(arrays, dtype, how, tag), tag).wait

    def _combined(self, arrays: Sequence[np.ndarray], dtype: str, how: str, tag: int) -> Steps:
        flat = [a.reshape(-1) for a in arrays]
        text = described(arrays, dtype, how)
        if self._shared is not None:
            yield from self._combined_in_place(self._shared, flat, text, dtype, how, tag)
            return
        yield from self._agreed("all_reduce", text, tag)
        whole = flat[0] if len(flat) == 1 else np.concatenate(flat)
        if self._goes_whole(whole):
            parts = yield from self._swapped(whole, [whole] * self.size, tag + 1)
            combine(parts, dtype, how, flat)
        else:
            pieces = np.array_split(whole, self.size)
            parts = yield from self._swapped(pieces[self.rank], pieces, tag + 1)
            combine(parts, dtype, how, [pieces[self.rank]])
            yield from self._spread(pieces, tag + 1)
            if whole is not flat[0]:
                spread_out(whole, flat)

    def _combined_in_place(self, shared: Shared, flat: Sequence[np.ndarray], text: str, dtype: str, how: str, tag: int,
                           ) -> Steps:
        """`_combined` in memory that the processes share."""
        kind, nbytes = flat[0].dtype, sum([a.nbytes for a in flat])
        memory, note = shared.own(tag, nbytes)
        own = memory.view(kind)
        np.concatenate(flat, out=own)
        notes = yield from self._agreed("all_reduce", text, tag, note)
        parts = [own if r == self.rank else shared.of(r, tag, notes[r], nbytes).view(kind) for r in range(self.size)]
        if self._goes_whole(own):
            combine(parts, dtype, how, flat)
            return
        pieces = [np.array_split(p, self.size) for p in parts]
        combine([p[self.rank] for p in pieces], dtype, how, [pieces[self.rank][self.rank]])  # which nobody else reads
        yield from self._agreed("all_reduce", text, tag + 1)
        ends = np.cumsum([0, *[len(p) for p in pieces[0]]])
        for r, piece in enumerate(pieces):
            spread_out(piece[r], flat, int(ends[r]))

    def _goes_whole(self, array: np.ndarray) -> bool:
        """True where every process combines all of it: a part for each would be sent twice, or is small."""
        return self.size == 2 or array.nbytes < WHOLE_BYTES

    def _swapped(self, like: np.ndarray, mine: Sequence[np.ndarray], tag: int
                 ) -> Generator[bool, None, list[np.ndarray]]:
        """The arrays that all processes send to this one, by rank, each like `like`; this one sends `mine[r]` to r."""
        found = [mine[r] if r == self.rank else np.empty_like(like) for r in range(self.size)]
        yield from self._done([*[self.world.Irecv(raw(found[r]), r, tag) for r in self.others],
                               *[self.world.Isend(raw(mine[r]), r, tag) for r in self.others]])
        return found

    def _spread(self, pieces: Sequence[np.ndarray], tag: int) -> Steps:
        """Sends this process's piece to all, and fills in theirs."""
        yield from self._done([*[self.world.Irecv(raw(pieces[r]), r, tag) for r in self.others],
                               *[self.world.Isend(raw(pieces[self.rank]), r, tag) for r in self.others]])

    def gathered(self, array: np.ndarray, dtype: str, what: str, tag: int) -> Steps:
        """The arrays of all processes, by rank: [size, ...]."""
        yield from self._agreed(what, described([array], dtype, "all"), tag)
        found = yield from self._swapped(array, [array] * self.size, tag + 1)
        return np.stack(found)

    def copied(self, arrays: Sequence[np.ndarray], names: str, source: int, tag: int) -> Steps:
        """Fills in arrays with those of the rank `source`."""
        yield from self._agreed("broadcast", described(arrays, names, f"from {source}"), tag)
        requests = []
        for a in arrays:
            if self.rank == source:
                requests += [self.world.Isend(raw(a), r, tag + 1) for r in self.others]
            else:
                requests.append(self.world.Irecv(raw(a), source, tag + 1))
        yield from self._done(requests)


def one_machine(world: Any) -> bool:
    """True where all processes can open each other's memory."""
    here = place()
    return bool(here) and hasattr(os, "memfd_create") and set(world.allgather(here)) == {here}


def raw(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8)


def described(arrays: Sequence[np.ndarray], dtype: str, how: str) -> str:
    """A text about what is exchanged: shapes, or of many arrays their number, sizes and a digest of their shapes."""
    shapes = ", ".join([str(list(a.shape)) for a in arrays])
    text = f"{how} of {dtype} {shapes}"
    if len(text) <= TEXT_BYTES:
        return text
    elements = quantity(sum(a.size for a in arrays), "element")
    return f"{how} of {dtype}, {quantity(len(arrays), 'tensor')} of {elements}, shapes {crc32(shapes.encode()):08x}"


_FUNCTIONS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def combine(parts: Sequence[np.ndarray], dtype: str, how: str, into: Sequence[np.ndarray]) -> None:
    """Combines the flat parts of all processes element by element, the first one with the second, and so on, into
    arrays that take the elements of the result in order, and may lie in one of the parts.

    Half types are combined in float32, and rounded at the end; bfloat16 comes and goes as its bits.
    """
    function, at = _FUNCTIONS[how], 0
    widen = {"bfloat16": bfloat16_to_float32, "float16": lambda a: a.astype(np.float32)}.get(dtype)
    with np.errstate(all="ignore"):
        for out in into:
            first, second, *others = [p[at:at + out.size] for p in parts]
            at += out.size
            if widen is None:
                total = function(first, second, out=out if not others else None)
                for other in others:
                    function(total, other, out=total)
            else:
                total = function(widen(first), widen(second))
                for other in others:
                    function(total, widen(other), out=total)
                total = float32_to_bfloat16(total) if dtype == "bfloat16" else total.astype(out.dtype)
            if total is not out:
                out[...] = total


def spread_out(whole: np.ndarray, into: Sequence[np.ndarray], start: int = 0) -> None:
    """Copies elements into arrays that take all elements in order, from number `start` on."""
    at, end = 0, start + len(whole)
    for out in into:
        low, high = max(at, start), min(at + out.size, end)
        if low < high:
            out[low - at:high - at] = whole[low - start:high - start]
        at += out.size
