"""A conversation: what was said by whom, kept in a JSON file and taken up again."""
from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from minigrad.errors import FormatError
from minigrad.state.fields import Fields, brief, read_json, wrong

FORMAT = "minigrad conversation 1"
ROLES = ("user", "assistant")


@dataclass
class Conversation:
    """A system message (None: the model's own), and messages of the user and the assistant in turn."""

    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def asking(self, question: str) -> list[dict[str, str]]:
        """All messages with a further question."""
        system = [] if self.system is None else [_message("system", self.system)]
        return [*system, *self.messages, _message("user", question)]

    def add(self, question: str, answer: str) -> None:
        """Appends a turn."""
        self.messages += [_message("user", question), _message("assistant", answer)]

    def save(self, path: Path) -> None:
        """Writes a file, which is whole or the one that was there before. Raises OSError, FormatError where there is no
        such folder."""
        if not path.parent.is_dir():
            raise FormatError(f"{path}: expected a folder {path.parent}, there is none")
        content = {"format": FORMAT, "system": self.system, "messages": self.messages}
        text = json.dumps(content, ensure_ascii=False, indent=1)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")  # as JSON has it
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    @staticmethod
    def load(path: Path) -> Conversation:
        """The conversation in a file. Raises FormatError where it is none, OSError where it cannot be read."""
        fields = read_json(path)
        if fields.text("format", "") != FORMAT:
            raise FormatError(f"{path}: expected the format {FORMAT!r}, got {brief(fields.content.get('format'))}; "
                              "/save writes such files")
        system = fields.text("system") if "system" in fields else None
        messages = []
        for at, each in enumerate(fields.items("messages", dict)):
            message = Fields(each, f"{path}: message {at + 1}")
            if message.text("role") != ROLES[at % 2]:
                raise wrong(message.source, "'role'", f"{ROLES[at % 2]!r}", message.text("role"))
            messages.append(_message(message.text("role"), message.text("content")))
        if len(messages) % 2:
            raise wrong(path, "'messages'", "questions with an answer each", messages[-1])
        return Conversation(system, messages)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
