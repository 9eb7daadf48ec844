"""A server of language models in a process of its own, over tiny models with random weights that tests write."""
from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from support.paths import ROOT, TESTS
from support.tokenizer_cases import byte_file, token

from minigrad import Tensor, config
from minigrad.state import safe_load, safe_save

NAMES = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
END = NAMES.index("<|im_end|>")
TEMPLATE = """{%- if tools %}<|im_start|>system
Tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %} in <tool_call></tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>\
{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking %}<think>
{% endif %}"""
CONTEXT = 512
START_SECONDS = 120


def write_model(folder: Path, family: str = "llama", seed: int = 0, template: str | None = TEMPLATE,
                context: int = CONTEXT) -> Path:
    """A model of test/models with a vocabulary of bytes and some words, a longer context and a chat template."""
    folder.mkdir(parents=True)
    source = TESTS / "models" / family
    content = byte_file(add=[token(0, name, special=True) for name in NAMES])
    size = len(content["model"]["vocab"]) + len(NAMES)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    settings = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    rng = np.random.default_rng(seed)
    with config(device="NUMPY"):
        tensors = safe_load(source / "model.safetensors")
        words = {name: rng.normal(size=(size, int(value.numpy().shape[1]))).astype(np.float32) / 4
                 for name, value in tensors.items() if "embed_tokens" in name or "lm_head" in name}
        for name in [name for name in words if "lm_head" in name]:
            words[name][END - len(NAMES)] = 0  # never the best: greedy answers have no end
        safe_save({**tensors, **{name: Tensor(rows) for name, rows in words.items()}}, folder / "model.safetensors")
    described = json.loads((source / "config.json").read_text())
    described |= {"vocab_size": size, "max_position_embeddings": context, "bos_token_id": 0, "eos_token_id": None}
    (folder / "config.json").write_text(json.dumps(described))
    return folder


class Server:
    """A server that runs; `errors` is what it has said on stderr."""

    def __init__(self, process: subprocess.Popen[str], log: Path, address: str):
        self.process, self.log, self.address = process, log, address
        self.port = int(address.rsplit(":", 1)[1])

    @property
    def errors(self) -> str:
        return self.log.read_text()

    def request(self, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str | None = None
                ) -> tuple[int, Any]:
        """(status, value) of a request; bytes are sent as they are, others as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        asked = urllib.request.Request(self.address + path, data, headers or {}, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=60) as response:
                status, found = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, found = error.code, error.read()
        try:
            return status, json.loads(found)
        except ValueError:
            return status, found.decode()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal; returns the status that the process ends with."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    """A server with these options on a free port."""
    folder = Path(tempfile.mkdtemp())
    log = folder / "log"
    command = [sys.executable, str(ROOT / "examples/llama/serve.py"), "--port", "0", *arguments]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, text=True)
    try:
        yield Server(process, log, _address(process, log))
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _address(process: subprocess.Popen[str], log: Path) -> str:
    for _ in range(START_SECONDS * 20):
        found = [line for line in log.read_text().splitlines() if "http://" in line]
        if found:
            return found[-1][found[-1].index("http://"):]
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"the server did not begin: {log.read_text()}")
