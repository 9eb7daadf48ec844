"""The chat: its options, commands, conversations that are kept, interrupted and taken up again, bad input in one line.
"""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.paths import ROOT

from examples.llama import assistant as assistants
from examples.llama import chat, generate
from examples.llama.assistant import Assistant
from examples.llama.conversation import Conversation
from examples.llama.generate import ContextFull, Session
from examples.llama.templates import Template
from examples.llama.terminal import Terminal, interruptible
from minigrad.engine.stats import stats
from minigrad.errors import FormatError

ZEPHYR = """{% for message in messages %}<|{{ message['role'] }}|>
{{ message['content'] }}{{ eos_token }}
{% endfor %}{{ '<|assistant|>\n' }}"""


@pytest.fixture
def stories(data_dir: Path) -> Path:
    return data_dir / "llm" / "stories260K"


def run_chat(*arguments: str, capsys: pytest.CaptureFixture) -> tuple[int, str, str]:
    code = chat.main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_chat_continues_a_text(stories: Path, capsys: pytest.CaptureFixture) -> None:
    text = json.loads((stories / "golden_greedy.json").read_text())["text"]
    model = str(stories / "stories260K.bin")
    assert run_chat("--model", model, "--prompt", "", "--count", "200", capsys=capsys) == (0, text + "\n", "")
    code, out, err = run_chat("--model", str(stories / "hf"), "--tokenizer", str(stories / "tok512.bin"), "--prompt",
                              "Once upon a time", "--count", "20", "--timing", capsys=capsys)
    assert code == 0 and text.startswith("Once upon a time" + out.rstrip("\n"))
    assert err.startswith("weights ") and " of memory, " in err  # said before it is loaded
    assert "compiled in" in err and "tok/s" in err and "GB/s of weights" in err


def test_stop_strings(stories: Path, capsys: pytest.CaptureFixture) -> None:
    text = json.loads((stories / "golden_greedy.json").read_text())["text"]
    words = text.split(" ")
    stop = f"{words[9]} {words[10]}"
    code, out, _ = run_chat("--model", str(stories / "stories260K.bin"), "--prompt", "", "--stop", "no such text",
                            "--stop", stop, capsys=capsys)
    assert code == 0 and out == text[:text.index(stop)] + "\n"


def test_chat_is_a_script(stories: Path, tmp_path: Path) -> None:
    command = [sys.executable, chat.__file__, "--model", str(stories / "stories260K.bin"), "--count", "5", "--prompt"]
    done = subprocess.run([*command, "One day"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith("\n") and len(done.stdout) > 5
    done = subprocess.run([*command, "One day", "--tokenizer", "none"], cwd=tmp_path, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.startswith("chat.py: none: there is no such")


def test_chat_is_reproducible_with_a_seed(stories: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["--model", str(stories / "stories260K.bin"), "--prompt", "", "--count", "30", "--temperature", "1",
                 "--top-k", "40", "--top-p", "0.9", "--min-p", "0.01", "--repeat-penalty", "1.1", "--seed"]
    first = run_chat(*arguments, "1", capsys=capsys)
    assert first == run_chat(*arguments, "1", capsys=capsys) != run_chat(*arguments, "2", capsys=capsys)


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}


def test_answers_by_a_schema_always_parse(stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """However few tokens there are, and though the model only knows stories."""
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    arguments = ["--model", str(stories / "stories260K.bin"), "--prompt", "Lily", "--json-schema", str(path)]
    for more in (["--count", "21"], ["--count", "60"], ["--count", "60", "--temperature", "2", "--seed", "1"],
                 ["--context", "30", "--no-speculation"]):
        code, out, err = run_chat(*arguments, *more, capsys=capsys)
        assert code == 0 and (not err or err.startswith("(stopped")), more
        assert set(json.loads(out)) == {"name", "age"}, more
    code, out, err = run_chat(*arguments, "--count", "10", capsys=capsys)
    assert (code, out) == (1, "") and "may take 19 tokens, and only 10 can be given" in err
    path.write_text(json.dumps({**SCHEMA, "minProperties": 3}))
    code, out, err = run_chat(*arguments, capsys=capsys)
    assert (code, out) == (1, "") and "'minProperties' is not supported" in err and len(err.splitlines()) == 1


# Conversations


def talk(*lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes these lines the ones that are typed."""
    waiting = iter(lines)

    def read(_: str) -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)


def test_chat_reads_questions_until_the_end(stories: Path, capsys: pytest.CaptureFixture,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    talk("Once upon", "Lily", monkeypatch=monkeypatch)
    code, out, _ = run_chat("--model", str(stories / "stories260K.bin"), "--count", "5", capsys=capsys)
    assert code == 0 and len(out.splitlines()) == 2
    monkeypatch.setattr(sys, "stdin", None)  # as where it is closed
    assert run_chat("--model", str(stories / "stories260K.bin"), capsys=capsys)[:2] == (0, "")


def make(stories: Path, *more: str) -> Assistant:
    """A chat in Zephyr's format, which needs no control tokens but </s>, with a model that never heard of it."""
    options = chat.parse_arguments(["--model", str(stories / "stories260K.bin"), "--count", "6", "--context", "200",
                                    *more])
    made = Assistant(options)
    made.template = Template(ZEPHYR, made.tokenizer)
    return made


@pytest.fixture
def turns(stories: Path) -> Assistant:
    return make(stories)


def ask(assistant: Assistant, question: str) -> str:
    parts: list[str] = []
    assistant.answer(question, parts.append)
    return "".join(parts)


def test_what_the_cache_holds_is_not_fed_again(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two turns the model is where it would be, had it seen everything in one go: to the last digits of float32,
    where keys and values are that; as halves, last digits that differ round some of them to their neighbours."""
    turns = make(stories, "--cache-type", "float32")
    fed: list[list[int]] = []
    results: list[np.ndarray] = []
    feed = turns.session.feed

    def spy(tokens: list[int], *more: Any) -> np.ndarray:
        fed.append(tokens)
        results.append(feed(tokens, *more))
        return results[-1]

    monkeypatch.setattr(turns.session, "feed", spy)
    first = ask(turns, "Hello there")
    whole = turns.prompt_tokens("Tell me a story about a big dog")
    assert turns.tokenizer.decode(whole).count(first) == 1
    known = list(turns.session.tokens)
    del fed[:]
    ask(turns, "Tell me a story about a big dog")
    assert fed[0] == whole[len(known):] and turns.session.tokens[:len(whole)] == whole
    again = Session(turns.session.model).feed(turns.session.tokens)
    np.testing.assert_allclose(again, results[-1], rtol=1e-6, atol=1e-5)


def test_a_conversation_is_saved_and_taken_up(turns: Assistant, stories: Path, tmp_path: Path,
                                              capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "a folder's talk.json"
    terminal = Terminal(turns)
    terminal.command("/system Be kind.")
    answers = [ask(turns, "Hello"), ask(turns, "Who are you?")]
    terminal.command(f"/save {path}")
    third = ask(turns, "Tell me more")
    other = Terminal(make(stories))
    other.command(f"/load {path}")
    assert [message["content"] for message in other.assistant.conversation.messages] == [
        "Hello", answers[0], "Who are you?", answers[1]]
    assert other.assistant.conversation.system == "Be kind."
    assert ask(other.assistant, "Tell me more") == third
    other.command("/reset")
    assert other.assistant.conversation.messages == [] and other.assistant.conversation.system == "Be kind."
    other.command("/system")
    assert other.assistant.conversation.system is None
    assert "(4 messages are in " in (said := capsys.readouterr().err) and "(took up a conversation of 4" in said
    assert list(tmp_path.iterdir()) == [path]


def test_texts_that_are_no_unicode_are_saved(tmp_path: Path) -> None:
    """As a terminal gives them: bytes of another encoding, as surrogates."""
    said = Conversation("\udce9\\udce9")
    said.add("a\udcff\\\ud800", "\U0001f600")
    said.save(tmp_path / "talk.json")
    assert Conversation.load(tmp_path / "talk.json") == said


BAD_CONVERSATIONS = [
    "", "[]", "{}", '{"format": "minigrad conversation 2", "messages": []}',
    '{"format": "minigrad conversation 1"}', '{"format": "minigrad conversation 1", "messages": [1]}',
    '{"format": "minigrad conversation 1", "system": 1, "messages": []}',
    '{"format": "minigrad conversation 1", "messages": [{"role": "user", "content": "x"}]}',
    '{"format": "minigrad conversation 1", "messages": [{"role": "assistant", "content": "x"}]}',
    '{"format": "minigrad conversation 1", "messages": [{"role": "user", "content": "x"}, '
    '{"role": "assistant", "content": ["x"]}]}', "\udcff", "[" * 100_000]


@pytest.mark.parametrize("text", BAD_CONVERSATIONS)
def test_files_that_are_no_conversation(text: str, turns: Assistant, tmp_path: Path,
                                        capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "talk.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(FormatError):
        Conversation.load(path)
    before = turns.conversation
    Terminal(turns).command(f"/load {path}")
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and said.startswith("chat.py: ") and turns.conversation is before


def test_commands(turns: Assistant, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch,
                  tmp_path: Path) -> None:
    talk("/help", "Hello", "/stats", "/nonsense", "/save", f"/load {tmp_path / 'none'}", "//slash",
         "", f"/save {tmp_path / 'none' / 'a.json'}", monkeypatch=monkeypatch)
    Terminal(turns).talk()
    captured = capsys.readouterr()
    assert [message["content"] for message in turns.conversation.messages[::2]] == ["Hello", "/slash"]
    assert len(captured.out.splitlines()) >= 2
    for said in ("/system TEXT", "all answers: prefill", "of 200 tokens", "there is no command /nonsense",
                 "expected /save FILE", "No such file", f"expected a folder {tmp_path / 'none'}, there is none"):
        assert said in captured.err


def test_a_model_without_a_format_takes_up_nothing(stories: Path, tmp_path: Path,
                                                   capsys: pytest.CaptureFixture) -> None:
    Conversation().save(tmp_path / "talk.json")
    code, out, err = run_chat("--model", str(stories / "stories260K.bin"), "--prompt", "x", "--load",
                              str(tmp_path / "talk.json"), capsys=capsys)
    assert (code, out) == (1, "") and "cannot take up a conversation" in err


def test_the_end_of_the_context(turns: Assistant, capsys: pytest.CaptureFixture) -> None:
    turns.options.count = 1000
    terminal = Terminal(turns)
    terminal.answer("Hello")
    assert "(stopped: the conversation fills the context of 200 tokens)" in capsys.readouterr().err
    messages = list(turns.conversation.messages)
    with pytest.raises(ContextFull, match=r"would have .* tokens and the cache holds 200; .*/reset.*--context"):
        terminal.answer("More")
    assert turns.conversation.messages == messages
    terminal.command("/reset")
    turns.options.count = 3
    terminal.answer("Hello again")  # and the chat goes on
    assert len(turns.conversation.messages) == 2


def test_ctrl_c_stops_an_answer(turns: Assistant, monkeypatch: pytest.MonkeyPatch) -> None:
    turns.options.count = 50
    add = assistants.StreamDecoder.add
    calls = []

    def press(decoder: Any, token: int) -> str:
        calls.append(token)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return add(decoder, token)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us ignoring it
    monkeypatch.setattr(assistants.StreamDecoder, "add", press)
    terminal = Terminal(turns)
    terminal.answer("Hello")
    assert len(calls) == 3
    monkeypatch.undo()
    terminal.answer("Are you still there?")  # and the conversation goes on
    assert len(turns.conversation.messages) == 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), interruptible() as pressed:
        os.kill(os.getpid(), signal.SIGINT)
        assert pressed
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_stops_a_prompt_between_its_pieces(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "PIECE", 16)
    turns = make(stories)
    pressed: list[bool] = []

    def press(logits: Any) -> np.ndarray:
        pressed.append(True)
        return logits.numpy()

    monkeypatch.setattr(generate, "_checked", press)
    turns.answer("word " * 20, lambda part: None, lambda: bool(pressed))
    assert len(pressed) == 1 and turns.session.position == 16 and turns.conversation.messages == []
    assert turns.session.timing.prefill_tokens == 16  # what was fed counts


def test_long_prompts_are_fed_in_pieces(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every length, by the same two plans, with the same outcome as at once, but for a last bit, which would round a
    key to another half."""
    model = make(stories, "--cache-type", "float32").session.model
    tokens = [1, *np.random.default_rng(0).integers(3, 512, 150).tolist()]
    whole = Session(model).feed(tokens)
    monkeypatch.setattr(generate, "PIECE", 32)
    session = Session(model)
    for _ in range(2):
        session.position = 0
        session.feed(tokens[:40])
        session.feed(tokens[40:41])
    before = stats.snapshot()
    for length in (151, 33, 64, 97):
        session.position = 0
        logits = session.feed(tokens[:length])
        assert session.tokens == tokens[:length]
        if length == len(tokens):
            np.testing.assert_allclose(logits, whole, atol=1e-4)
    after = stats.snapshot() - before
    assert (after.programs, after.schedules) == (0, 0)


# Bad input


def bad(tmp_path: Path, stories: Path) -> dict[str, tuple[list[str], str]]:
    """Arguments and what the one line must say."""
    whole = (stories / "stories260K.bin").read_bytes()
    (tmp_path / "short.bin").write_bytes(whole[:5000])
    (tmp_path / "long.bin").write_bytes(whole + b"1234")
    (tmp_path / "v2.bin").write_bytes(b"24ka\2\0\0\0" + bytes(300))
    (tmp_path / "text.bin").write_bytes(b"this is not a model, it is a text of some length")
    (tmp_path / "short.gguf").write_bytes(b"GGUF\3\0\0\0")
    (tmp_path / "model.onnx").write_bytes(b"x")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    good, other = str(stories / "stories260K.bin"), str(stories.parents[1] / "tokenizers" / "tokenizer.model.v1")
    return {"missing": (["--model", "none.gguf"], "there is no such model"),
            "short": (["--model", str(tmp_path / "short.bin")], "truncated or corrupt: the array"),
            "long": (["--model", str(tmp_path / "long.bin")], "corrupt: expected 1056540 bytes"),
            "version": (["--model", str(tmp_path / "v2.bin")], "expected version 1 of llama2.c's format, got 2"),
            "text": (["--model", str(tmp_path / "text.bin")], "expected a model of llama2.c"),
            "gguf": (["--model", str(tmp_path / "short.gguf")], "truncated or corrupt"),
            "kind": (["--model", str(tmp_path / "model.onnx")], "expected a file that ends in .gguf"),
            "bert": (["--model", str(folder)], "the model's type is 'bert', of which the layers are not written"),
            "tokenizer": (["--model", str(stories / "hf")], "expected tokenizer.model or tokenizer.json"),
            "vocabulary": (["--model", good, "--tokenizer", other], "the tokenizer has 32000 tokens and the model 512"),
            "device": (["--model", good, "--device", "TPU"], "expected a device CPU, NUMPY, CL"),
            "schema": (["--model", good, "--json-schema", str(tmp_path / "text.bin")], "expected a JSON Schema"),
            "no schema": (["--model", good, "--json-schema", "none.json"], "No such file"),
            "hub": (["--model", "hf:one"], "expected hf:owner/name or hf:owner/name:file")}


@pytest.mark.parametrize("case", ["missing", "short", "long", "version", "text", "gguf", "kind", "bert", "tokenizer",
                                  "vocabulary", "device", "schema", "no schema", "hub"])
def test_bad_input_is_one_line(tmp_path: Path, stories: Path, capsys: pytest.CaptureFixture, case: str) -> None:
    arguments, message = bad(tmp_path, stories)[case]
    code, out, err = run_chat(*arguments, "--prompt", "x", capsys=capsys)
    assert code == 1 and out == "" and message in err
    assert err.startswith("chat.py: ") and len(err.splitlines()) == 1
    with pytest.raises(Exception, match=r"."):
        chat.main([*arguments, "--prompt", "x", "--debug"])


@pytest.mark.parametrize("arguments", [["--count", "0"], ["--temperature", "-1"], ["--top-k", "x"], ["--seed", "-5"],
                                       ["--nonsense"], ["--min-p", "2"], ["--repeat-penalty", "0"],
                                       ["--presence-penalty", "nan"], ["--repeat-last", "-2"],
                                       ["--stop", "x", "--json-schema", "a.json"]])
def test_bad_options(arguments: list[str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as error:
        chat.main(arguments)
    assert error.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1


def test_ctrl_c_while_modules_are_imported_leaves_no_traceback() -> None:
    """The process is interrupted as soon as it runs chat.py."""
    code = ("import os, runpy, signal, sys\n"
            "class Finder:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name == 'minigrad':\n"
            "            os.kill(os.getpid(), signal.SIGINT)\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "sys.meta_path.insert(0, Finder())\n"
            f"runpy.run_path({str(ROOT / 'examples' / 'llama' / 'chat.py')!r}, run_name='__main__')\n")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")
