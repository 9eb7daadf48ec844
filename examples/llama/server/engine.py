"""The engine: requests join and leave a batch at every token, prompts are fed in pieces between tokens.

One thread, the only one that computes, goes round: it drops what was cancelled, lets in what waits, gives each
conversation that answers a row and the prompts what is left of a step, and chooses a token for each answer. Prompts of
which least was fed go first, so that a short one does not wait for a long one's end.

An answer does not depend on what else runs, to the last bit: see `batch.py`. So whatever had to make room is fed again.
"""
from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field

import numpy as np

from examples.llama.generate import ContextFull
from examples.llama.server.batch import Batch, Piece
from examples.llama.server.paged import PAGE
from examples.llama.server.pages import PageTable
from examples.llama.server.requests import Answer, Busy, Finish, Request, step_of
from examples.llama.server.snapshots import Snapshots
from minigrad.errors import MinigradError

PIECE = 32
"""Tokens of prompts in a step, at the start of a prompt: as long as these take, an answer waits for its next token."""
PAGES_OF_A_ROW = 20
"""The pages that a row looks at in the time of all else that is done for it, of SmolLM2 on a processor."""
PATIENCE = 3
"""Steps in which a prompt may have no part before it comes first."""


@dataclass(eq=False)
class _Run:
    """A request that waits or runs: `tokens` are those of the prompt and of the answer, of which `fed` are in the
    cache, in `pages`, the first `known` of them known; `served` were fed since it came, and none in the last `skipped`
    steps. An embedding has no request, and collects hidden states in `total`."""

    tokens: list[int]
    answer: Answer
    request: Request | None
    left: int
    number: int
    began: float = field(default_factory=time.monotonic)
    fed: int = 0
    served: int = 0
    slot: int = -1
    pages: list[int] = field(default_factory=list)
    known: int = 0
    skipped: int = 0
    total: np.ndarray | None = None

    @property
    def given(self) -> int:
        """Tokens of the prompt."""
        return len(self.tokens) if self.request is None else len(self.request.prompt)

    @property
    def answers(self) -> bool:
        """True where one more token gives the next one."""
        return self.fed >= self.given and self.fed == len(self.tokens) - 1


class BatchEngine:
    """Answers many requests at once. `running` of them have a place at most, `queue` wait.

    A step has at most `piece` tokens of prompts, and no more than answers leave rows for. `snapshot_bytes` bounds
    copies of recurrent states, by which a prompt that begins like an earlier one is not fed again from its start.
    """

    def __init__(self, batch: Batch, queue: int = 64, piece: int = PIECE, snapshot_bytes: int = 256 << 20):
        self.batch, self.context, self.queue = batch, batch.context, queue
        self.running = batch.slots
        self.piece = piece
        self.pages = PageTable(batch.pages)
        self.snapshots = Snapshots(snapshot_bytes)
        self._slots = list(range(batch.slots))[::-1]
        self._waiting: deque[_Run] = deque()
        self._runs: list[_Run] = []
        self._changed = threading.Condition()
        self._number = 0
        self._deadline: float | None = None
        self._seconds = 1.0  # of a request, a moving average
        self._tokens_in = self._tokens_out = self._preempted = 0
        self._jobs: deque[Callable[[], object]] = deque()
        settings = copy_context()  # those of whoever made the engine
        self._thread = threading.Thread(target=lambda: settings.run(self._serve), name="engine", daemon=True)
        self._thread.start()

    # ---- from any thread ----

    def submit(self, request: Request) -> Answer:
        """Queues a request. Raises Busy, ContextFull, or MinigradError for what can never be answered."""
        self._check(request.prompt)
        if request.count < 1:
            raise MinigradError(f"expected to be asked for at least one token, got {request.count}")
        room = self.context - len(request.prompt) + 1  # the last token is not fed
        return self._queue(list(request.prompt), request, min(request.count, room)).answer

    def embed(self, prompt: Sequence[int]) -> np.ndarray:
        """The mean of the last hidden states of all tokens, of length 1, float32 [width]. Raises as `submit` does."""
        self._check(prompt)
        run = self._queue(list(prompt), None, 0)
        for _ in run.answer:
            pass
        if run.total is None:
            raise MinigradError("the embedding was cancelled: the server is stopping")
        return (run.total / max(float(np.linalg.norm(run.total)), 1e-30)).astype(np.float32)

    def stats(self) -> dict[str, float]:
        """Figures of this moment, and sums since the start."""
        with self._changed:
            runs, waiting = len(self._runs), len(self._waiting)
        size = self.batch.page_bytes()
        return {"running": runs, "waiting": waiting, "cache_bytes": self.pages.held * size + self.snapshots.nbytes,
                "cache_in_use_bytes": self.pages.in_use * size,
                "cache_capacity_bytes": self.pages.capacity * size + self.snapshots.capacity,
                "tokens_in": self._tokens_in, "tokens_out": self._tokens_out, "preempted": self._preempted}

    def close(self, seconds: float) -> None:
        """Takes no further requests; what runs may finish within so long, what waits is refused."""
        with self._changed:
            self._deadline = time.monotonic() + seconds
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def between(self, job: Callable[[], object]) -> None:
        """Calls a function in the engine's thread between two steps, and waits for its end. Raises what it raises."""
        done, failed = threading.Event(), list[BaseException]()

        def guarded() -> None:
            try:
                job()
            except BaseException as error:
                failed.append(error)
            done.set()

        with self._changed:
            if self._deadline is not None:
                raise MinigradError("the server is stopping")
            self._jobs.append(guarded)
            self._changed.notify_all()
        done.wait()
        if failed:
            raise failed[0]

    def _check(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise MinigradError("expected a prompt of at least one token, got none")
        vocabulary = self.batch.model.config.vocabulary
        if not all([0 <= token < vocabulary for token in prompt]):
            raise MinigradError(f"expected tokens from 0 to {vocabulary - 1}, got others in the prompt")
        room = min(self.context, self.pages.capacity * PAGE)
        if len(prompt) > room:
            raise ContextFull(f"the prompt has {len(prompt)} tokens and the context holds {room}")

    def _queue(self, tokens: list[int], request: Request | None, left: int) -> _Run:
        with self._changed:
            if self._deadline is not None:
                raise Busy("the server is stopping", 1.0)
            if len(self._waiting) >= self.queue:
                wait = self._seconds * (len(self._waiting) + 1) / self.running
                raise Busy(f"{len(self._waiting)} requests wait already", max(1.0, round(wait, 1)))
            self._number += 1
            run = _Run(tokens, Answer(), request, left, self._number)
            self._waiting.append(run)
            self._changed.notify_all()
        return run

    # ---- in the engine's thread ----

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting or self._runs or self._jobs)
                                       or self._deadline is not None)
                jobs, self._jobs = self._jobs, deque()
                stopping = self._deadline is not None
            for job in jobs:
                job()
            if stopping and self._stop():
                return
            self._drop_cancelled()
            self._admit()
            if self._runs:
                try:
                    self._step()
                except MinigradError as error:  # whoever took part in it has no sound cache any more
                    self._fail(error)
                except Exception as error:
                    self._fail(MinigradError(f"the engine failed: {error}"))

    def _stop(self) -> bool:
        """Refuses what waits; True once nothing runs, or may."""
        with self._changed:
            waiting, self._waiting = list(self._waiting), deque()
        for run in waiting:
            run.answer.end("error", MinigradError("the server is stopping"))
        if self._deadline is not None and time.monotonic() >= self._deadline:
            for run in list(self._runs):
                self._end(run, "cancelled")
        return not self._runs

    def _fail(self, error: MinigradError) -> None:
        for run in list(self._runs):
            self._end(run, "error", error)
        self.pages, self.snapshots = PageTable(self.pages.capacity), Snapshots(self.snapshots.capacity)

    def _drop_cancelled(self) -> None:
        for run in [run for run in self._runs if run.answer.cancelled]:
            self._end(run, "cancelled")
        with self._changed:
            gone = [run for run in self._waiting if run.answer.cancelled]
            for run in gone:
                self._waiting.remove(run)
        for run in gone:
            run.answer.end("cancelled")

    def _admit(self) -> None:
        """Lets in what waits, in order, as long as there are places, and pages for the whole of its tokens."""
        while True:
            with self._changed:
                if not self._waiting or not self._slots:
                    return
                run = self._waiting[0]
                found = [] if run.request is None else self._prefix(run)
                fresh = len([page for page in found if not self.pages.is_unused(page)])
                needed = -(-(len(run.tokens) + 1) // PAGE) - fresh
                if self._runs and needed > self.pages.available:
                    return
                self._waiting.popleft()
            self._begin(run, found)

    def _prefix(self, run: _Run) -> list[int]:
        """Pages that hold the start of its tokens, of which at least one is left to feed."""
        found = self.pages.find(run.tokens, (len(run.tokens) - 1) // PAGE)
        if self.batch.stateful:  # as far as there is a state
            found = found[:run.given // PAGE]
            while found and not self.snapshots.has(self.pages.serial(found[-1])):
                found.pop()
        return found

    def _begin(self, run: _Run, found: list[int]) -> None:
        self.pages.share(found)
        run.pages, run.known, run.fed = list(found), len(found), len(found) * PAGE
        run.slot = self._slots.pop()
        if found and self.batch.stateful:
            self.batch.load_slot(run.slot, self.snapshots.get(self.pages.serial(found[-1])))
        if not run.served:
            run.answer.cached_tokens = run.fed
            self._tokens_in += run.given
        self._runs.append(run)

    def _end(self, run: _Run, finish: Finish, error: MinigradError | None = None) -> None:
        self._release(run)
        self._seconds += 0.1 * (time.monotonic() - run.began - self._seconds)
        run.answer.end(finish, error)

    def _release(self, run: _Run) -> None:
        self._runs.remove(run)
        self.pages.give_back(run.pages)
        self._slots.append(run.slot)
        run.pages, run.known, run.fed, run.slot = [], 0, 0, -1

    # ---- a step ----

    def _step(self) -> None:
        """Gives each answer its next token, and prompts a piece."""
        answering = [(run, 1) for run in self._runs if run.answers]
        feeding = [run for run in self._runs if not run.answers]
        shares = self._shares(feeding, self.batch.rows - len(answering))
        own = bool(shares) and (self.batch.stateful or shares[0][0].request is None)
        for calls in ([answering, shares] if own else [answering + shares]):
            calls = [(run, count) for run, count in calls if run in self._runs and self._have_pages(run, count)]
            calls = [(run, count) for run, count in calls if run in self._runs]  # none that had to make room meanwhile
            if calls:
                self._feed(calls)

    def _shares(self, feeding: Sequence[_Run], rows: int) -> list[tuple[_Run, int]]:
        """Which prompts are fed, and how many tokens of each: of the first in turn as many as a step should take, and
        of others those that end with it, so that no first token waits for the middle of another prompt."""
        shares: list[tuple[_Run, int]] = []
        left = float(self.piece)
        for run in sorted(feeding, key=lambda run: (run.skipped < PATIENCE, run.served, run.number)):
            run.skipped += 1
            cost = 1 + run.fed / PAGE / PAGES_OF_A_ROW
            count = min(rows, self._until(run) - run.fed, max(int(left / cost), 0 if shares else 1))
            own = self.batch.stateful or run.request is None
            if count < 1 or (shares and (own or run.fed + count < len(run.tokens))):
                continue
            run.skipped = 0
            shares.append((run, count))
            rows, left = 0 if own else rows - count, left - count * cost
        return shares

    def _until(self, run: _Run) -> int:
        """The number of its tokens that may be fed in one piece: of a model with states, to where a state is kept."""
        kept = (run.given - 1) // PAGE * PAGE
        return kept if self.batch.stateful and run.fed < kept else len(run.tokens)

    def _have_pages(self, run: _Run, count: int) -> bool:
        """Takes the pages for so many further tokens. Where there are none, whoever came last makes room, be it this
        one itself."""
        while len(run.pages) * PAGE < run.fed + count:
            page = self.pages.take()
            if page is not None:
                run.pages.append(page)
                continue
            last = max(self._runs, key=lambda other: other.number)
            if last is run and len(self._runs) == 1:
                self._end(run, "error", ContextFull(
                    f"the cache holds {self.pages.capacity * PAGE} tokens; ask for less, or give it more memory"))
                return False
            self._make_room(last)
            if last is run:
                return False
        return True

    def _make_room(self, run: _Run) -> None:
        """Sends a conversation back to the front of the queue; what the cache no longer has of it is fed again."""
        self._preempted += 1
        if self.batch.stateful and len(run.tokens) > run.given:
            # Its answer's states came token by token, and would not come again to the last bit.
            return self._end(run, "error", MinigradError("the cache is full; ask again, or give it more memory"))
        self._release(run)
        run.total = None
        with self._changed:
            self._waiting.appendleft(run)

    def _feed(self, calls: Sequence[tuple[_Run, int]]) -> None:
        """One call of the model, and the tokens that follow from it."""
        pieces = [Piece(run.tokens[run.fed:run.fed + count], run.fed, run.pages, run.slot,
                        run.request is not None and run.fed + count == len(run.tokens), run.fed < run.given)
                  for run, count in calls]
        if calls[0][0].request is None:
            hidden = self.batch.hidden(pieces[0])
            run = calls[0][0]
            run.total = hidden.sum(0, dtype=np.float64) + (0 if run.total is None else run.total)
        else:
            logits = iter(self.batch.run(pieces))
        for (run, count), piece in zip(calls, pieces, strict=True):
            run.fed += count
            run.served += count
            self._know(run)
            if piece.wanted:
                self._choose(run, next(logits))
            elif run.request is None and run.fed == len(run.tokens):
                self._end(run, "stop")

    def _know(self, run: _Run) -> None:
        """Makes pages known that are full now."""
        if run.request is None:
            return
        end = min(run.fed, run.given) if self.batch.stateful else run.fed
        while run.known < end // PAGE:
            at = run.known
            run.pages[at] = self.pages.know(run.pages[at], run.pages[at - 1] if at else None,
                                            run.tokens[at * PAGE:(at + 1) * PAGE])
            run.known += 1
        if self.batch.stateful and run.fed and run.fed == (run.given - 1) // PAGE * PAGE:
            serial = self.pages.serial(run.pages[run.known - 1])
            if not self.snapshots.has(serial):
                self.snapshots.put(serial, self.batch.save_slot(run.slot))

    def _choose(self, run: _Run, row: np.ndarray) -> None:
        """The next token of an answer, or its end."""
        request = run.request
        assert request is not None  # embeddings choose nothing
        if not np.isfinite(row.max()):  # nor is it with a NaN
            return self._end(run, "error", MinigradError(
                "the model answers with infinities or NaN instead of scores; its weights are damaged"))
        try:
            if request.constraint is None:
                token: int | None = request.sampler.choose(row, run.tokens)
            else:
                token = request.constraint.choose(lambda allowed: request.sampler.choose(row, run.tokens, allowed),
                                                  request.ends, run.left)
        except MinigradError as error:
            return self._end(run, "error", error)
        if token is None or token in request.ends:
            return self._end(run, "stop")
        run.tokens.append(token)
        run.left -= 1
        self._tokens_out += 1
        run.answer.add(step_of(token, row, request.top_logprobs))
        if run.left <= 0:
            self._end(run, "length")
