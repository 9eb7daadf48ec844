"""An answer as people read it: tokens become text, with reasoning and calls of tools apart, up to where it stops."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from examples.llama.sampling import StopStrings
from examples.llama.server.calls import Call, CallForm
from examples.llama.server.requests import Step
from examples.llama.tokenizer import StreamDecoder, Tokenizer

THINK, THOUGHT = "<think>", "</think>"
MARKS = (THINK, THOUGHT, "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]")
"""Control tokens that have a meaning here; of others an answer has nothing to show."""


@dataclass(frozen=True)
class Piece:
    """A part of an answer: text, reasoning, calls; the steps that brought it; and why the answer ended, if it did."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    steps: tuple[Step, ...] = ()
    finish: str | None = None


@dataclass(frozen=True)
class Manner:
    """The way to read an answer: it begins in reasoning (`thinks`), it may have calls of `tools` in a `form`, or is one
    (`forced`); with `one_call` it ends after the first. It ends before one of `stops`, too.
    """

    thinks: bool = False
    reasons: bool = True
    form: CallForm | None = None
    tools: frozenset[str] = frozenset()
    forced: bool = False
    one_call: bool = False
    stops: tuple[str, ...] = ()
    continues: bool = False


class Until:
    """A text up to the first of some markers, which may come in pieces."""

    def __init__(self, markers: Sequence[str]):
        self.markers, self.held = [marker for marker in markers if marker], ""

    def add(self, text: str) -> tuple[str, str | None, str]:
        """(what comes before a marker, the marker or None, what is after it)."""
        self.held += text
        found = min([(at, marker) for marker in self.markers if (at := self.held.find(marker)) >= 0], default=None)
        if found is not None:
            at, marker = found
            before, after, self.held = self.held[:at], self.held[at + len(marker):], ""
            return before, marker, after
        keep = max([count for marker in self.markers for count in range(1, len(marker))
                    if self.held.endswith(marker[:count])], default=0)
        shown, self.held = self.held[:len(self.held) - keep], self.held[len(self.held) - keep:]
        return shown, None, ""


class Speech:
    """One answer, read as it comes."""

    def __init__(self, tokenizer: Tokenizer, manner: Manner):
        self.manner = manner
        self.decoder = StreamDecoder(tokenizer, manner.continues)
        self.marks = {tokenizer.special[name]: name for name in MARKS if name in tokenizer.special}
        self.stops = StopStrings(manner.stops)
        self.called = self.ended = self.said = False
        self.skips = manner.thinks  # white space between a marker and the first word
        self.state = "call" if manner.forced else "reasoning" if manner.thinks else "text"
        self.until = self._until()
        self.call = ""

    def _until(self) -> Until:
        """The markers that the present state ends with."""
        form = self.manner.form
        if self.state == "reasoning":
            return Until([THOUGHT])
        if self.state == "call":
            return Until([form.end] if form is not None and not self.manner.forced else [])
        return Until([THINK if self.manner.reasons and not self.said else "", form.start if form is not None else ""])

    def add(self, steps: Iterable[Step]) -> Piece:
        """The piece that these steps bring; nothing of those after the end."""
        piece, taken = Piece(), []
        for step in steps:
            if self.ended:
                break
            taken.append(step)
            mark = self.marks.get(step.token)
            text = self.decoder.add(step.token)
            piece = self._read(piece, text if mark is None else text + mark)
        return replace(piece, steps=tuple(taken))

    def finish(self) -> Piece:
        """The rest, when no more steps come."""
        if self.ended:
            return Piece()
        piece = self._read(Piece(), self.decoder.finish())
        rest, self.until.held = self.until.held, ""
        piece = self._called(piece, self.call + rest) if self.state == "call" else self._said(piece, rest)
        return replace(piece, text=piece.text + self.stops.finish())

    def _read(self, piece: Piece, text: str) -> Piece:
        while text and not self.ended:
            if self.state == "text" and self._whole_call(text):
                self.state, self.until = "call", Until([])
            before, marker, text = self.until.add(text)
            if self.state == "call":
                self.call += before
            else:
                piece = self._said(piece, before)
            if marker is not None:
                piece = self._turned(piece, marker)
        return piece

    def _whole_call(self, text: str) -> bool:
        """Says whether the answer begins as a call of a form that has nothing else beside."""
        form = self.manner.form
        return form is not None and form.whole and not self.said and (self.until.held + text).lstrip()[:1] == "{"

    def _turned(self, piece: Piece, marker: str) -> Piece:
        """After a marker: into reasoning, into a call, or back."""
        if self.state == "call":
            piece = self._called(piece, self.call)
            self.call = ""
        self.state = "reasoning" if marker == THINK else "text" if self.state != "text" else "call"
        self.skips = True
        self.until = self._until()
        return piece

    def _said(self, piece: Piece, text: str) -> Piece:
        if self.state == "reasoning":
            return replace(piece, reasoning=piece.reasoning + text)
        text = text.lstrip() if self.skips else text
        if text.strip():
            self.said, self.skips = True, False
            self.until.markers = [marker for marker in self.until.markers if marker != THINK]
        shown = self.stops.add(text)
        self.ended = self.stops.found
        return replace(piece, text=piece.text + shown)

    def _called(self, piece: Piece, text: str) -> Piece:
        """The piece with what stands in a call; where it is none of a known tool, it is text as it came."""
        form = self.manner.form
        calls = None if form is None else form.parse(text)
        if form is None or calls is None or not {call.name for call in calls} <= self.manner.tools:
            return replace(piece, text=piece.text + self.stops.add(
                text if self.manner.forced or form is None else f"{form.start}{text}{form.end}"))
        calls = calls[:1] if self.manner.one_call else calls
        self.called, self.ended = True, self.manner.one_call
        return replace(piece, calls=piece.calls + tuple(calls))
