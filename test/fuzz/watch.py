"""A worker that is watched: a network in which it dies, or which takes too long, has an outcome too."""
from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO, Any

from fuzz.outcome import Outcome

TEST = Path(__file__).resolve().parents[1]
START_SECONDS = 120


class Worker:
    """Asks one process at a time; `seconds` counts the processor time of all. `environment`: of the processes. With
    `listens`, what a process says besides its answers is a failure: a checker of accesses is below it."""

    def __init__(self, environment: dict[str, str], patience: float, listens: bool = False) -> None:
        self.environment, self.patience, self.listens = environment, patience, listens
        self.seconds = 0.0
        self.level = "native"
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._asked = 0

    def run(self, request: dict[str, Any]) -> tuple[str, Outcome]:
        """The network that ran, in JSON, and its outcome."""
        network, answer = self._ask(request)
        if isinstance(answer, Outcome):
            return network, answer
        return network, Outcome(answer["kind"], answer["key"], answer["text"])

    def script(self, network: str) -> dict[str, str]:
        """What is to be told of a network: its text, a test, and what NUMPY says."""
        _, answer = self._ask({"network": network, "want": "script"})
        return {"blame": answer.text, "text": "", "script": ""} if isinstance(answer, Outcome) else answer

    def stop(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._ended(self._process)

    def _ended(self, process: subprocess.Popen[bytes]) -> int:
        """Waits for a process, and lets go of its pipes; returns its exit status."""
        process.wait()
        for stream in (process.stdin, process.stdout, self._errors):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        self._process = None
        return process.returncode

    def _ask(self, request: dict[str, Any]) -> tuple[str, dict[str, Any] | Outcome]:
        level = json.loads(request["network"])["cpu"] if "network" in request else request["set"]["cpu"]
        if level != self.level or self._asked >= RENEWED:
            self.stop()
            self.level, self._asked = level, 0
        process = self._process or self._start()
        self._asked += 1
        end = monotonic() + self.patience
        network = request.get("network", "")
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            pass  # the process is gone: reading says so
        while True:
            answer = self._read(process, end)
            if isinstance(answer, Outcome):
                self.seconds += self.patience if answer.kind == "hang" else 0.0
                return network, answer
            if "network" in answer:
                network = answer["network"]
                continue
            self.seconds += answer["seconds"]
            told = self._told() if self.listens else ""
            if told and answer.get("kind") in ("right", "wrong"):
                return network, Outcome("access", told.splitlines()[0], told)
            return network, answer

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **self.environment, "MINIGRAD_CPU": self.level}
        environment["PYTHONPATH"] = os.pathsep.join([str(TEST.parent), str(TEST)])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the process)
        self._process = subprocess.Popen([sys.executable, "-m", "fuzz.worker"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._errors, env=environment, bufsize=0)
        self._rest, self._heard = b"", 0
        answer = self._read(self._process, monotonic() + START_SECONDS)
        if isinstance(answer, Outcome):
            raise RuntimeError(f"the worker did not start: {answer.text}")
        self.seconds += answer["ready"]
        return self._process

    def _read(self, process: subprocess.Popen[bytes], end: float) -> dict[str, Any] | Outcome:
        """The next answer."""
        assert process.stdout is not None
        while b"\n" not in self._rest:
            ready = select.select([process.stdout], [], [], max(end - monotonic(), 0))[0]
            piece = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
            if not ready:
                self.stop()
                return Outcome("hang", "hang", f"no answer within {self.patience:g} s")
            if not piece:
                process.wait()
                told = self._told()
                return self._death(self._ended(process), told)
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _death(self, code: int, told: str) -> Outcome:
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        last = "\n".join(told.splitlines()[-25:])
        return Outcome("crash", f"crash {name}", f"the process ended by {name}\n{last}")

    def _told(self) -> str:
        """What the process has said since the last time."""
        assert self._errors is not None
        self._errors.seek(self._heard)
        told = self._errors.read()
        self._heard += len(told)
        return told.decode(errors="replace").strip()


RENEWED = 400
"""Networks after which a process is replaced."""
