"""Formats of conversations, that chat models were trained on, and the tokens of a conversation in one."""
from __future__ import annotations

import re
from dataclasses import dataclass, replace

from examples.llama.tokenizer import Tokenizer


@dataclass(frozen=True)
class Template:
    """The text around messages; {} is where one goes. Names of control tokens in it become those tokens, while in what
    the user writes they are ordinary characters.

    `user` ends where the answer starts, `close` ends an answer in the history; `system` stands before the first user
    message, or with `system_inside` in it.
    """

    name: str
    system: str
    user: str
    close: str
    default_system: str = ""
    system_inside: bool = False


CHATML = Template("chatml", "<|im_start|>system\n{}<|im_end|>\n",
                  "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>\n")
LLAMA3 = Template("llama3", "<|start_header_id|>system<|end_header_id|>\n\n{}<|eot_id|>",
                  "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>")
ZEPHYR = Template("zephyr", "<|system|>\n{}</s>\n", "<|user|>\n{}</s>\n<|assistant|>\n", "</s>\n")
LLAMA2 = Template("llama2", "<<SYS>>\n{}\n<</SYS>>\n\n", "[INST] {} [/INST]", "</s>", system_inside=True)

# A word that only one of the formats has in a model's own chat template.
_MARKS = (("<|im_start|>", CHATML), ("<|start_header_id|>", LLAMA3), ("<|user|>", ZEPHYR), ("[INST]", LLAMA2))
_DEFAULT_SYSTEM = re.compile(r"<\|im_start\|>system(?:\n|\\n)([^'\"{}<]+)<\|im_end\|>")


def detect(chat_template: str | None, tokenizer: Tokenizer) -> Template | None:
    """The format that a model's own chat template (Jinja) writes, or, where it has none, the one whose control tokens
    the vocabulary has. None for a model that only continues text.
    """
    if chat_template is None:
        return next((template for mark, template in _MARKS[:2] if mark in tokenizer.special), None)
    for mark, template in _MARKS:
        if mark in chat_template:
            default = _DEFAULT_SYSTEM.search(chat_template)
            return replace(template, default_system=default[1]) if default else template
    return None


def first_question(template: Template, tokenizer: Tokenizer, text: str, system: str | None) -> list[int]:
    """The start of a conversation: BOS where the model has one, the system message (None: the model's usual one),
    `text`.
    """
    tokens = [] if tokenizer.bos is None else [tokenizer.bos]
    message = template.default_system if system is None else system
    if message and template.system_inside:
        text = template.system.replace("{}", message) + text
    elif message:
        tokens += _fill(template.system, message, tokenizer)
    return tokens + question(template, tokenizer, text)


def question(template: Template, tokenizer: Tokenizer, text: str) -> list[int]:
    """The user's message, up to where the answer starts."""
    return _fill(template.user, text, tokenizer)


def closing(template: Template, tokenizer: Tokenizer) -> list[int]:
    """The tokens that end an answer in the history."""
    return _fill(template.close + "{}", "", tokenizer)


def _fill(form: str, message: str, tokenizer: Tokenizer) -> list[int]:
    """Tokens of `form` with the message in it. Text between two control tokens is encoded at once, the message with
    what stands around it, so that words are cut as they were in training.
    """
    before, after = form.split("{}")
    names = "|".join(re.escape(name) for name in sorted(tokenizer.special, key=len, reverse=True))
    control = re.compile(f"({names})" if names else "(?!)")
    parts = [(part, True) for part in control.split(before)] + [(message, False)]
    parts += [(part, True) for part in control.split(after)]
    tokens: list[int] = []
    run = ""
    for part, ours in parts:
        if ours and part in tokenizer.special:
            tokens += tokenizer.encode(run) if run else []
            tokens.append(tokenizer.special[part])
            run = ""
        else:
            run += part
    return tokens + (tokenizer.encode(run) if run else [])
