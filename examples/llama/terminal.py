"""A chat in the terminal: questions with a history, commands, Ctrl-C, and a progress bar."""
from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

from examples.llama.assistant import Assistant
from examples.llama.conversation import Conversation
from examples.llama.generate import ContextFull
from examples.llama.templates import Refused
from minigrad.config import current
from minigrad.errors import FormatError, MinigradError

HELP = """/help           this list
/reset          forgets the conversation
/save FILE      writes the conversation to a file
/load FILE      takes up a conversation from a file
/system TEXT    changes the system message; without TEXT there is none but the model's own
/stats          speeds of the answers, and what the context holds
//...           a question that begins with a slash
Ctrl-C          stops an answer; a second one, or one at the prompt, leaves"""
HISTORY_LINES = 1000


@contextmanager
def interruptible() -> Iterator[list[bool]]:
    """Inside, the first Ctrl-C only fills the list, so that no step is cut in half; the second one interrupts."""
    pressed: list[bool] = []

    def on_interrupt(*_: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def history() -> Iterator[None]:
    """Inside, questions can be recalled by the arrow keys, those of earlier chats, too, where there is readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = Path(current().cache_dir) / "chat_history"
    with suppress(OSError):  # there is none yet
        readline.read_history_file(path)
    try:
        yield
    finally:
        readline.set_history_length(HISTORY_LINES)
        with suppress(OSError):  # it is only a convenience
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)


def load(make: Callable[[Callable[[str], object]], Assistant], warm: bool) -> tuple[Assistant, float]:
    """The assistant that `make` makes, and the seconds that compiling took if it is to be `warm`; a bar on a terminal
    shows how far it is.
    """
    # A bar with a delay is not shown before its first step begins: downloads show their own.
    with tqdm(total=2, disable=None, leave=False, delay=1e-3, bar_format="{desc} {bar} {elapsed}",
              file=sys.stderr) as bar:
        assistant = make(lambda step: bar.set_description_str(step))
        bar.update()
        if not warm:
            return assistant, 0.0
        bar.total += assistant.warm_up_steps() - 1
        bar.set_description_str("compiling")
        return assistant, assistant.warm_up(bar.update)


class Terminal:
    """Asks an assistant what is typed."""

    def __init__(self, assistant: Assistant):
        self.assistant = assistant

    def answer(self, text: str) -> None:
        """Prints the answer to `text` as it comes."""
        assistant = self.assistant
        with interruptible() as pressed:
            assistant.answer(text, lambda part: print(part, end="", flush=True), lambda: bool(pressed))
        print(flush=True)
        if not assistant.session.room():
            print(f"(stopped: the conversation fills the context of {assistant.session.model.capacity} tokens)",
                  file=sys.stderr)
        if assistant.options.timing:
            print(assistant.session.timing.report(assistant.session.model.weight_bytes()), file=sys.stderr)

    def talk(self) -> None:
        """Questions and commands from the terminal, until its end or Ctrl-C. A closed one has none."""
        if sys.stdin is None:
            return
        if not sys.stdin.isatty():
            self._talk("")
            return
        print("/help lists the commands", file=sys.stderr)
        with history():
            self._talk("> ")

    def _talk(self, prompt: str) -> None:
        while True:
            try:
                text = input(prompt)
            except EOFError:
                return
            if not text.strip() and self.assistant.template is not None:
                continue  # Return alone is no question
            try:
                if text.startswith("/") and not text.startswith("//"):
                    self.command(text)
                else:
                    self.answer(text.removeprefix("/"))
            except (ContextFull, Refused) as error:
                print(f"chat.py: {error}", file=sys.stderr)

    def command(self, text: str) -> None:
        """Does what a line that begins with a slash says; mistakes are one line."""
        name, _, rest = text[1:].strip().partition(" ")
        known: dict[str, Callable[[str], str]] = {
            "help": lambda rest: HELP, "stats": lambda rest: self.assistant.stats(), "reset": self._reset,
            "save": self._save, "load": self.take_up, "system": self._system}
        try:
            if name not in known:
                raise MinigradError(f"there is no command /{name}; /help lists them")
            print(known[name](rest.strip()), file=sys.stderr)
        except (MinigradError, OSError) as error:
            print(f"chat.py: {error}", file=sys.stderr)

    def _reset(self, _: str) -> str:
        self.assistant.conversation.messages.clear()
        return "(the conversation is forgotten)"

    def _save(self, file: str) -> str:
        path = _file(file, "/save")
        self.assistant.conversation.save(path)
        return f"({len(self.assistant.conversation.messages)} messages are in {path})"

    def take_up(self, file: str) -> str:
        """Goes on with the conversation in a file. Raises FormatError, OSError, changing nothing."""
        if self.assistant.template is None:
            raise FormatError("this model has no chat format: it continues texts, and cannot take up a conversation")
        self.assistant.conversation = Conversation.load(_file(file, "/load"))
        return f"(took up a conversation of {len(self.assistant.conversation.messages)} messages)"

    def _system(self, text: str) -> str:
        if self.assistant.template is None:
            raise FormatError("this model has no chat format: it continues texts, without a system message")
        self.assistant.conversation.system = text or None
        return f"(the system message is {text!r})" if text else "(the system message is the model's own)"


def _file(name: str, command: str) -> Path:
    if not name:
        raise MinigradError(f"expected {command} FILE, got no file")
    return Path(name).expanduser()
