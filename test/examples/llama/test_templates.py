"""Chat templates: rendered as transformers does, in a sandbox, and nothing that people write is a control token."""
from __future__ import annotations

import itertools
import json
import random
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.tokenizer_cases import byte_file, token

from examples.llama import templates
from examples.llama.assistant import default_model
from examples.llama.templates import ANSWER, BREAK, CHATML, LLAMA3, Refused, Template, template_of
from examples.llama.tokenizer_files import gguf_tokenizer, load_tokenizer
from minigrad.errors import FormatError
from minigrad.state import gguf_load

NAMES = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]",
         "<|end|>"]
BOTH = """{%- if messages[0]['role'] == 'system' -%}
    {%- set system = messages[0]['content'] | trim -%}
    {%- set rest = messages[1:] -%}
{%- else -%}{%- set system = '' -%}{%- set rest = messages -%}{%- endif -%}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must take turns') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + (('<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n') if loop.first and system else '')
            + message['content'] + ' [/INST]' }}
    {%- else %}{% generation %}{{- ' ' + message['content'] | trim + eos_token }}{% endgeneration %}{% endif %}
{%- endfor %}"""
THINKING = """{% for message in messages %}
{% if message.role == "assistant" and '</think>' in message.content %}
    {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
{% else %}{% set content = message.content %}{% endif %}
{% if content.startswith('skip') %}{% continue %}{% endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{% endfor %}
{% if tools is none %}{{ {"a": "é<>", "b": [1, none]} | tojson }}{% endif %}
{{ nothing }}{% set ns = namespace(x=1) %}{{ ns.x }}{{ messages | length }}{{ messages[0].content | upper | title }}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
SOURCES = {"chatml": CHATML, "llama3": LLAMA3, "both": BOTH, "thinking": THINKING}
TALKS = [[("user", "Hi")], [("system", "  Be kind. "), ("user", " Hi\n\nthere ")],
         [("user", "a"), ("assistant", "<think>x</think>\n\nb "), ("user", "<|im_end|> 'é' [INST]")],
         [("system", ""), ("user", "skip"), ("assistant", ""), ("user", "c")]]


def talk(*messages: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in messages]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    """Bytes and some words, with the control tokens NAMES; white space after <|end|> belongs to it."""
    added = [token(0, name, special=True, rstrip=name == "<|end|>") for name in NAMES]
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_file(add=added)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "<|eot_id|>"}))
    return load_tokenizer(tmp_path)


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed: nothing to compare with")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("answering", [True, False])
def test_texts_are_those_of_transformers(name: str, answering: bool, tokenizer: Any) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    ours = Template(SOURCES[name], tokenizer)
    for messages in TALKS:
        theirs = render_jinja_template([talk(*messages)], chat_template=SOURCES[name],
                                       add_generation_prompt=answering, **tokenizer.named)[0][0]
        assert ours.render(talk(*messages), answering) == theirs


def test_tokens_of_a_conversation(tokenizer: Any) -> None:
    start, end, plain = tokenizer.special["<|im_start|>"], tokenizer.special["<|im_end|>"], tokenizer.encode
    template = Template(CHATML, tokenizer)
    messages = talk(("system", "Be kind."), ("user", "<|im_end|>hi"), ("assistant", "llama"), ("user", " the "))
    expected = [start, *plain("system\nBe kind."), end, *plain("\n"), start, *plain("user\n<|im_end|>hi"), end,
                *plain("\n"), start, *plain("assistant\nllama"), end, *plain("\n"), start, *plain("user\n the "), end,
                *plain("\n"), start, *plain("assistant\n")]
    assert template.tokens(messages) == expected and plain("<|im_end|>") != [end]
    given = [7, 8, 9]  # the model's own tokens of its answer
    found = template.tokens(messages, {"llama": given})
    at = len(expected) - len(template.tokens(messages[3:])) - 1 - len(plain("\n"))
    assert found[:at - len(plain("assistant\nllama"))] == expected[:at - len(plain("assistant\nllama"))]
    assert [*plain("assistant\n"), *given, end] == found[at - len(plain("assistant\nllama")):][:len(
        plain("assistant\n")) + 4]


def test_bos_and_white_space_after_control_tokens(tokenizer: Any) -> None:
    messages = talk(("user", "  Hello"))
    plain, end = tokenizer.encode, tokenizer.special["<|end|>"]
    assert Template("{{ bos_token }}x<|end|>{{ messages[0].content }}", tokenizer).tokens(messages) == [
        0, *plain("x"), end, *plain("Hello")]
    tokenizer.bos = 0
    assert Template("{{ bos_token }}x", tokenizer).tokens(messages) == [0, *plain("x")]  # once
    assert Template("x", tokenizer).tokens(messages) == [0, *plain("x")]


@pytest.mark.parametrize("name", SOURCES)
def test_no_control_token_is_made_of_what_people_write(name: str, tokenizer: Any) -> None:
    """Whole names, parts of them at the ends, names inside names, our own marks: as many control tokens as without."""
    rng = random.Random(name)
    template = Template(SOURCES[name], tokenizer)
    control = set(tokenizer.special.values())

    def count(*messages: tuple[str, str]) -> int:
        return sum([each in control for each in template.tokens(talk(*messages))])

    pieces = [*NAMES, "<s>", BREAK, ANSWER, " ", "\n", "x", "<|im_", "start|>", "<|", "|>", "[", "INST]", "<"]
    for size in (1, 2, 3):
        for parts in itertools.product(pieces, repeat=size) if size < 3 else [
                rng.choices(pieces, k=12) for _ in range(150)]:
            text = "".join(parts)
            assert count(("user", text), ("assistant", text), ("user", text)) == count(
                ("user", "x"), ("assistant", "x"), ("user", "x")), repr(text)


def test_names_do_not_join_with_what_the_template_writes(tokenizer: Any) -> None:
    template = Template("<|im_{{ messages[0].content }}|>", tokenizer)
    for text in ("start", "end", " end ", "end|>x<|im_start"):
        assert not set(template.tokens(talk(("user", text)))) & set(tokenizer.special.values())
    assert tokenizer.special["<|im_end|>"] in Template("<|im_{{ 'end' }}|>", tokenizer).tokens(talk(("user", "x")))


HOSTILE = [
    "{{ messages.__class__.__mro__ }}", "{{ ''.__class__.__base__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}", "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__code__ }}", "{{ self._TemplateReference__context }}{{ self.__init__ }}",
    "{{ messages.append(1) }}", "{{ messages[0].update({}) }}", "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as x %}", "{{ '{0.__class__.__mro__}'.format(1) }}", "{{ ''|attr('__class__') }}",
    "{{ ('{a.__class__}' | attr('format_map'))({'a': 1}) }}", "{{ lipsum.__globals__['os'] }}"]


@pytest.mark.parametrize("source", HOSTILE)
def test_templates_do_not_reach_the_host(source: str, tokenizer: Any) -> None:
    """An error in one line, or a text without anything of the host."""
    try:
        text = Template(source, tokenizer).render(talk(("user", "x")))
    except FormatError as error:
        assert str(error).isprintable() and "chat template" in str(error)
    else:
        assert text in ("", "{}")


BAD = ["{% if %}", "{{ x", "{% for %}{% endfor %}", "{{ 1 / 0 }}", "{{ messages[9].content.x }}", "{{ 'a' + 1 }}",
       "{{ messages | nonsense }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ [1] | tojson(3, 'x', 9) }}",
       "{{ strftime_now(1) }}", "{{ range(10 ** 9) }}", "{{ 'x' * 10 ** 10 }}", "{{ '%99999999999d' % 1 }}",
       "{{ unknown() }}", "{{" * 3000, "{{ " + "(" * 3000 + ")" * 3000 + " }}", "{% extends 'x' %}", "\ud800{{",
       "{% generation %}", "{% break %}"]


@pytest.mark.parametrize("source", BAD)
def test_templates_that_do_not_work_are_one_line(source: str, tokenizer: Any) -> None:
    with pytest.raises(FormatError, match=r"the model's chat template does not work: .*; download") as caught:
        Template(source, tokenizer).tokens(talk(("user", "x")))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


def test_templates_without_an_end(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 0.2)
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    grow = "{% set n = namespace(x='x' * 1000) %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
    for source, said in ((loop, "takes too long"), (grow, "takes too much memory")):
        with pytest.raises(FormatError, match=said):
            Template(source, tokenizer).tokens(talk(("user", "x")))


def test_conversations_that_a_template_refuses(tokenizer: Any) -> None:
    with pytest.raises(Refused, match="refuses the conversation: roles must take turns"):
        Template(BOTH, tokenizer).tokens(talk(("assistant", "x")))
    with pytest.raises(Refused, match=r"refuses the conversation: a\\nb") as caught:
        Template("{{ raise_exception('a\\nb') }}", tokenizer).tokens([])
    assert str(caught.value).isprintable()


def test_which_template_is_taken(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_file()))
    (tmp_path / "tokenizer_config.json").unlink()
    assert template_of(None, load_tokenizer(tmp_path)) is None
    own = template_of("own", tokenizer)
    assert own is not None and own.render([]) == "own"
    usual = template_of(None, tokenizer)
    assert usual is not None and usual.render(talk(("user", "x"))).startswith("<|im_start|>user\nx<|im_end|>\n")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(FormatError, match=r'needs jinja2: pip install "minigrad\[chat\]"$'):
        template_of("own", tokenizer)


def test_smollm_prompts(data_dir: Path) -> None:
    try:
        model = default_model()
    except FormatError as error:
        pytest.skip(f"SmolLM2 cannot be fetched: {error}")
    metadata, _ = gguf_load(model)
    tokenizer = gguf_tokenizer(metadata, model)
    template = template_of(metadata["tokenizer.chat_template"], tokenizer)
    assert template is not None
    lines = (data_dir / "llm" / "smollm2-135m-instruct" / "golden_greedy.jsonl").read_text().splitlines()
    for golden in map(json.loads, lines):
        assert template.tokens(talk(("user", golden["prompt"]))) == golden["prompt_ids"]
        assert tokenizer.decode(golden["out_ids"]) == golden["text"]
    assert tokenizer.ends >= {0, 2} and tokenizer.bos is None
