"""The simplest engine: one request after another, in a thread of its own, over the session that the chat has."""
from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from examples.llama.generate import ContextFull, Session
from examples.llama.model import Llama
from examples.llama.server.requests import Answer, Busy, Request, Step
from minigrad import Tensor
from minigrad.errors import MinigradError

Job = Callable[[], object]


class SerialEngine:
    """Answers requests in the order in which they came."""

    def __init__(self, model: Llama, waiting: int = 64):
        self.context = model.capacity
        self._session, self._most = Session(model), waiting
        self._jobs: queue.Queue[tuple[Answer | None, Job] | None] = queue.Queue()
        self._running: Answer | None = None
        self._counts = {"tokens_in": 0.0, "tokens_out": 0.0}
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Answer:
        if len(request.prompt) >= self.context:
            raise ContextFull(f"the prompt has {len(request.prompt)} tokens and the context {self.context}")
        if self._jobs.qsize() >= self._most:
            raise Busy(f"{self._most} requests wait already", 5)
        answer = Answer()
        self._jobs.put((answer, lambda: self._answer(request, answer)))
        return answer

    def embed(self, prompt: Sequence[int]) -> np.ndarray:
        if len(prompt) > self.context:
            raise ContextFull(f"the text has {len(prompt)} tokens and the context {self.context}")
        future: Future[np.ndarray] = Future()

        def run() -> None:
            try:
                session = self._session
                session.tokens.clear()
                hidden = session.model.hidden(Tensor(np.array(prompt, np.int32)), 0).numpy()
                mean = hidden.mean(0)
                future.set_result((mean / max(np.linalg.norm(mean), 1e-12)).astype(np.float32))
            except BaseException as error:
                future.set_exception(error)

        self._jobs.put((None, run))
        return future.result()

    def stats(self) -> dict[str, float]:
        return {"running": float(self._running is not None), "waiting": float(self._jobs.qsize()), **self._counts}

    def close(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._jobs.put(None)
        self._thread.join(seconds)
        self._closing = True
        self._thread.join(max(0.0, end - time.monotonic()) + 5)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            answer, run = job
            self._running = answer
            try:
                run()
            except MinigradError as error:
                if answer is not None:
                    answer.end("error", error)
            except Exception as error:
                if answer is not None:
                    answer.end("error", MinigradError(f"the engine failed: {type(error).__name__}"))
            self._running = None

    def _answer(self, request: Request, answer: Answer) -> None:
        session, left = self._session, request.count

        def stopped() -> bool:
            return answer.cancelled or self._closing

        if stopped():
            return answer.end("cancelled")
        pieces = session.resume(list(request.prompt))
        answer.cached_tokens = len(request.prompt) - len(pieces)
        self._counts["tokens_in"] += len(request.prompt)
        try:
            row = session.feed(pieces, stopped)
        except Exception as error:
            if type(error).__name__ != "Stopped":
                raise
            return answer.end("cancelled")
        while not stopped():
            token = session._choose(row, request.sampler, request.ends, request.constraint, left)
            if token is None or token in request.ends:
                return answer.end("stop")
            answer.add(_step(token, row, request.top_logprobs))
            self._counts["tokens_out"] += 1
            left -= 1
            if left <= 0 or not session.room():
                return answer.end("length")
            row = session.feed([token])
        return answer.end("cancelled")


def _step(token: int, row: np.ndarray, top: int | None) -> Step:
    if top is None:
        return Step(token)
    scores = row.astype(np.float64)
    scores -= scores.max() + np.log(np.exp(scores - scores.max()).sum())
    best = np.argsort(-scores, kind="stable")[:top]
    return Step(token, float(scores[token]), tuple([(int(each), float(scores[each])) for each in best]))
