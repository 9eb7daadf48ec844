"""The tokens of a conversation, by the model's own chat template: a program in Jinja, which runs in Jinja's sandbox.

What people write is only text: where it has the name of a control token, the tokens of its characters are fed.
"""
from __future__ import annotations

import json
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from examples.llama.tokenizer import Tokenizer
from minigrad.errors import FormatError
from minigrad.state.fields import brief, one_line

CHATML = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LLAMA3 = """{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>

{{ message['content'] | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}\
<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""
_USUAL = (("<|im_start|>", CHATML), ("<|start_header_id|>", LLAMA3))
"""For models that come without a template: a control token that only one of the formats has."""

BREAK, ANSWER = "\ufdd0", "\ufdd1"
"""Stand between characters that are no name of a token together, and so at the ends of answers. Unicode keeps them for
such uses; texts have none."""
SECONDS, BYTES = 5, 256 << 20
"""The most processor time, and memory besides what there is, that a template may take."""


class Refused(FormatError):
    """The template does not take this conversation."""


def template_of(source: str | None, tokenizer: Tokenizer) -> Template | None:
    """A model's own template, or the usual one for its vocabulary. None for a model that only continues text."""
    if source is None:
        source = next((usual for mark, usual in _USUAL if mark in tokenizer.special), None)
    return None if source is None else Template(source, tokenizer)


class Template:
    """A chat template with the tokenizer that it is for. Raises FormatError where it is no template."""

    def __init__(self, source: str, tokenizer: Tokenizer):
        if find_spec("jinja2") is None:
            raise FormatError('this model\'s chat template needs jinja2: pip install "minigrad[chat]"')
        self.tokenizer, self.source = tokenizer, source
        with _limits(), _one_line():
            self.program = _environment().from_string(source)
        names = sorted([name for name in tokenizer.special if len(name) > 1 and name.strip() == name],
                       key=len, reverse=True)
        either = "|".join(map(re.escape, names)) or "(?!)"
        self._control, self._inside = re.compile(f"({either})"), re.compile(f"(?={either})(.)", re.DOTALL)

    def render(self, messages: Sequence[Mapping[str, Any]], answering: bool = True,
               tools: Sequence[Mapping[str, Any]] | None = None, settings: Mapping[str, Any] | None = None) -> str:
        """The conversation as text, up to where the answer starts, if it is `answering`; with descriptions of `tools`,
        and `settings` that are the template's own, such as enable_thinking.
        """
        names = {**(settings or {}), "messages": list(messages), "tools": tools, "documents": None,
                 "add_generation_prompt": answering, **self.tokenizer.named}
        with _limits(), _one_line():
            return self.program.render(names)

    def tokens(self, messages: Sequence[Mapping[str, Any]], known: Mapping[str, list[int]] | None = None,
               tools: Sequence[Mapping[str, Any]] | None = None, settings: Mapping[str, Any] | None = None
               ) -> list[int]:
        """The tokens of the conversation, up to where the answer starts; further arguments are those of `render`.
        Raises Refused, FormatError.

        Text between two control tokens is encoded at once, so that words are cut as they were in training; but answers
        that are `known` are the tokens that the model gave.
        """
        text = self.render([self._message(message) for message in messages], True, self._plain(tools),
                           self._plain(settings))
        tokenizer, tokens = self.tokenizer, [] if self.tokenizer.bos is None else [self.tokenizer.bos]
        strip = False
        for part in self._control.split(text):
            if part in tokenizer.special:
                token = tokenizer.special[part]
                if tokens != [token] or token != tokenizer.bos:  # which the template writes itself
                    tokens.append(token)
                strip = part in tokenizer.strip_after
            elif part:
                tokens += self._encoded(part.lstrip() if strip else part, known or {})
        return tokens

    def _encoded(self, text: str, known: Mapping[str, list[int]]) -> list[int]:
        """The tokens of what stands between two control tokens."""
        tokens: list[int] = []
        run = ""
        for part in text.replace(BREAK, "").split(ANSWER):
            if part in known:
                tokens += self.tokenizer.encode(run) if run else []
                tokens += known[part]
                run = ""
            else:
                run += part
        return tokens + (self.tokenizer.encode(run) if run else [])

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message in which no text has the name of a control token."""
        content, end = message["content"], ANSWER if message["role"] == "assistant" else BREAK
        plain = {key: self._plain(value) for key, value in message.items() if key != "content"}
        return {**plain, "content": content if content is None else self._marked(content, end)}

    def _plain(self, value: Any) -> Any:
        """The value with breaks inside the names of control tokens, in all texts that it has."""
        if isinstance(value, str):
            return self._inside.sub(rf"\1{BREAK}", value.replace(BREAK, "\ufffd").replace(ANSWER, "\ufffd"))
        if isinstance(value, Mapping):
            return {self._plain(key): self._plain(inner) for key, inner in value.items()}
        return [self._plain(inner) for inner in value] if isinstance(value, list | tuple) else value

    def _marked(self, text: str, end: str) -> str:
        """The text with breaks inside the names of control tokens and with `end` at its ends, within white space,
        which templates cut off; so no name is made of it, nor of it and what stands around.
        """
        text = text.replace(BREAK, "\ufffd").replace(ANSWER, "\ufffd")
        core = text.strip()
        if not core:
            return text and end + text
        start = text.index(core)
        inside = self._inside.sub(rf"\1{BREAK}", core)
        return f"{text[:start]}{end}{inside}{end}{text[start + len(core):]}"


# Jinja


def _environment() -> Any:
    """As transformers has it: what templates rely on besides Jinja itself."""
    from jinja2 import ext, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """{% generation %} marks answers for training; here it changes nothing."""

        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[Generation, ext.loopcontrols])
    environment.filters["tojson"] = _json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment


def _json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None,
          sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise Refused(f"the model's chat template refuses the conversation: {one_line(str(message))}")


class _TooLong(Exception):
    """The time is over."""


_FAILURES = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SyntaxError, TypeError,
             ValueError, AssertionError, RuntimeError, _TooLong)


@contextmanager
def _one_line() -> Iterator[None]:
    """Inside, what a template does wrong is a FormatError."""
    from jinja2 import TemplateError
    try:
        yield
    except FormatError:
        raise
    except (TemplateError, *_FAILURES) as error:
        reason = {_TooLong: "it takes too long", MemoryError: "it takes too much memory"}.get(type(error))
        said = reason or one_line(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise FormatError(f"the model's chat template does not work: {brief(said)[1:-1]}; download the model "
                          "again or use another one") from None


@contextmanager
def _limits() -> Iterator[None]:
    """Inside, SECONDS and BYTES bound what is done, on systems that can; the sandbox does not."""
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    import resource

    def over(*_: object) -> None:
        raise _TooLong

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = Path("/proc/self/statm")
    most = int(used.read_text().split()[0]) * resource.getpagesize() + BYTES if used.is_file() else soft
    previous = signal.signal(signal.SIGVTALRM, over)
    try:
        if used.is_file() and (soft == resource.RLIM_INFINITY or most < soft):
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, previous)
