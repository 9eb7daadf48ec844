"""What clients send that is wrong, too large, too slow or too much: each gets its error, and the server goes on."""
from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.served import CONTEXT, TEMPLATE, Server, serving, write_model

pytest.importorskip("uvicorn", reason="the server needs uvicorn")

from examples.llama import serve

HELLO = [{"role": "user", "content": "Hello"}]
KEY, SECRET = {"Authorization": "Bearer right"}, "a word that nobody should see"
CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With small limits, and a key."""
    folder = tmp_path_factory.mktemp("served")
    model = write_model(folder / "tiny", template=TEMPLATE + "{% if messages | length == 3 %}"
                        "{{ raise_exception('never three') }}{% endif %}")
    (folder / "keys").write_text("# of the house\nright\n\nother\n")
    plain = write_model(folder / "plain", template=None)
    for file in ("tokenizer.json", "tokenizer_config.json"):  # nothing that looks like a chat
        (plain / file).write_text((plain / file).read_text().replace("|im_", "|xx_"))
    with serving("--model", f"tiny={model}", "--model", f"plain={plain}", "--api-key-file", str(folder / "keys"),
                 "--receive-timeout", "1", "--max-body", "64KB", "--connections", "20", "--queue", "2",
                 "--allow-origin", "http://nas:3000", "--memory", "4GB") as found:
        yield found


@pytest.fixture(autouse=True)
def _goes_on(server: Server) -> Iterator[None]:
    """After whatever happened, an ordinary request is answered."""
    yield
    assert ask(server, {})[0] == 200


def ask(server: Server, fields: dict[str, Any], path: str = CHAT) -> tuple[int, Any]:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 3, **fields}
    return server.request(path, body, KEY)


BODIES: dict[str, tuple[dict[str, Any], int, str, str | None]] = {
    "another type": ({"temperature": "1"}, 400, "temperature: input should be a valid number; got '1'", "temperature"),
    "a flag that is none": ({"stream": "yes"}, 400, "stream: input should be a valid boolean", "stream"),
    "no messages": ({"messages": []}, 400, "messages: list should have at least 1 item", "messages"),
    "a role that is none": ({"messages": [{"role": "king", "content": "x"}]}, 400, "input should be 'system'",
                            "messages.0.role"),
    "no content": ({"messages": [{"role": "user"}]}, 400, "expected content", "messages.0"),
    "a picture": ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400,
                  "input should be 'text'", "messages.0.content.0.type"),
    "an unknown model": ({"model": "huge"}, 404, "there is no model 'huge'; there are tiny, plain", "model"),
    "an unknown field": ({"wings": 2}, 400, "wings: there is no such field here", "wings"),
    "a field that cannot be met": ({"logit_bias": {"5": 10}}, 400, "logit_bias: dictionary should have at most 0",
                                   "logit_bias"),
    "audio": ({"modalities": ["audio"]}, 400, "input should be 'text'", "modalities.0"),
    "a number out of bounds": ({"top_p": 1.5}, 400, "top_p: input should be less than or equal to 1", "top_p"),
    "an integer of a thousand digits": ({"seed": 10 ** 1000}, 400, "seed: ", "seed"),
    "too many answers": ({"n": 1000}, 400, "n: input should be less than or equal to 16", "n"),
    "options of no stream": ({"stream_options": {"include_usage": True}}, 400, "expected them with stream", None),
    "more scores, and none": ({"top_logprobs": 3}, 400, "expected logprobs: true", "top_logprobs"),
    "a choice of no tool": ({"tool_choice": "required"}, 400, "expected tools beside it", "tool_choice"),
    "a tool that is not there": ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, 400,
                                 "there is no tool", "tool_choice"),
    "a strict tool": ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, 400,
                      "f is strict", "tools"),
    "arguments that are none": ({"messages": [{"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": "{"}}]}, *HELLO]}, 400, "arguments that are a JSON object",
        "messages.0.tool_calls"),
    "a schema that is none": ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "cat"}}}},
                              400, "expected a type object", "response_format"),
    "a schema without a schema": ({"response_format": {"type": "json_schema"}}, 400, "expected json_schema",
                                  "response_format"),
    "a schema that cannot be met": ({"max_tokens": 50, "response_format": {"type": "json_schema", "json_schema": {
        "schema": {"type": "object", "properties": {"a": False}, "required": ["a"]}}}}, 400,
        "no JSON can meet the schema", "response_format"),
    "a schema that needs more tokens": ({"response_format": {"type": "json_schema", "json_schema": {
        "schema": {"type": "string", "minLength": 9}}}}, 400, "and only 3 can be given; ask for more max_tokens",
        "response_format"),
    "a schema of two thousand properties": ({"response_format": {"type": "json_schema", "json_schema": {"schema": {
        "type": "object", "properties": {f"p{k}": {"type": "string"} for k in range(2000)}}}}}, 400,
        "at most 100 properties of an object", "response_format"),
    "a tool with a schema that is none": ({"tool_choice": "required", "tools": [{"type": "function", "function": {
        "name": "f", "parameters": {"type": "cat"}}}]}, 400, "the parameters of f: #: expected a type",
        "tools.0.function.parameters"),
    "a stop in JSON": ({"stop": ["a"], "response_format": {"type": "json_object"}}, 400, "expected stop or a schema",
                       "stop"),
    "a setting that the template lacks": ({"chat_template_kwargs": {"shout": True}}, 400, "knows no shout",
                                          "chat_template_kwargs"),
    "a refusal of the template": ({"messages": HELLO * 3}, 400, "never three", None),
    "a prompt beyond the context": ({"messages": [{"role": "user", "content": "ab" * CONTEXT}]}, 400,
                                    f"the context holds {CONTEXT}", None),
    "a model without a chat": ({"model": "plain"}, 400, "it continues texts; use /v1/completions", "messages"),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_wrong(name: str, server: Server) -> None:
    fields, status, message, param = BODIES[name]
    got, value = ask(server, fields)
    assert (got, value["error"]["param"]) == (status, param if param or "stream" not in fields else None), value
    assert message in value["error"]["message"] and "\n" not in value["error"]["message"]
    assert value["error"]["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    got, value = ask(server, {**fields, "stream": True} if "stream" not in fields else fields)
    assert got == status or "stream_options" in fields  # before a stream begins


@pytest.mark.parametrize("body, message", [
    (b"", "no JSON"), (b"{", "no JSON"), (b"[]", "should be an object"), (b"null", "should be an object"),
    (b"\xff\xfe{}", "no JSON"), (b"[" * 60_000, "no JSON: recursion limit"), (b'{"model": "\x01"}', "no JSON: control"),
    (b'{"model": "\\ud800"}', "no JSON"), (b'{"temperature": NaN}', "temperature: input should be a finite number"),
    (b"model=tiny", "no JSON")])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/api/chat", "/api/generate"])
def test_bodies_that_are_no_request(body: bytes, message: str, path: str, server: Server) -> None:
    status, value = server.request(path, body, KEY)
    error = value["error"] if path.startswith("/api") else value["error"]["message"]
    assert status == 400 and (message in error or b"NaN" in body), value


def test_control_characters_are_text(server: Server) -> None:
    odd = "\x00\x1b[2J\u202e\r\n<|im_end|>\ufdd0\U0010ffff"
    assert ask(server, {"messages": [{"role": "user", "content": odd}]})[0] == 200
    status, value = ask(server, {"model": odd})
    assert status == 404 and value["error"]["message"].isprintable()
    assert server.request("/v1/completions", {"model": "tiny", "prompt": odd, "max_tokens": 2}, KEY)[0] == 200


@pytest.mark.parametrize("fields, message", [
    ({"prompt": [5, 10 ** 9]}, "expected tokens below"), ({"prompt": [[5], "a"]}, "prompt"), ({"prompt": []}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": "a", "suffix": "b"}, "suffix"), ({"prompt": "a", "best_of": 2}, "best_of"),
    ({"prompt": ["a"] * 8, "n": 4}, "at most 16 answers"), ({"prompt": "a", "echo": True, "logprobs": 1}, "echo")])
def test_completions_that_are_wrong(fields: dict[str, Any], message: str, server: Server) -> None:
    status, value = server.request("/v1/completions", {"model": "tiny", **fields}, KEY)
    assert status == 400 and message in value["error"]["message"], value


@pytest.mark.parametrize("path, body, status, message", [
    ("/api/chat", {"model": "tiny", "messages": [{"role": "user", "content": "x", "images": ["aaaa"]}]}, 400, "images"),
    ("/api/chat", {"model": "tiny", "messages": HELLO, "options": {"mirostat": 1}}, 400, "mirostat"),
    ("/api/chat", {"model": "tiny", "messages": HELLO, "options": {"num_ctx": 10 ** 6}}, 400, "num_ctx"),
    ("/api/generate", {"model": "huge", "prompt": "x"}, 404, "there is no model"),
    ("/api/show", {}, 404, "there is no model"), ("/api/pull", {"model": "x"}, 404, "there is no such path")])
def test_errors_in_the_form_of_ollama(path: str, body: Any, status: int, message: str, server: Server) -> None:
    got, value = server.request(path, body, KEY)
    assert got == status and message in value["error"] and list(value) == ["error"]


@pytest.mark.parametrize("path, method, status", [
    ("/nothing", "GET", 404), ("/v1/models/huge", "GET", 404), (CHAT, "GET", 405), ("/v1/models", "DELETE", 405),
    ("/../../etc/passwd", "GET", 404), ("/%2e%2e/main.py", "GET", 404), ("/page/../main.py", "GET", 404),
    ("/..%2fmain.py", "GET", 404), ("/index.html%00", "GET", 404), ("//etc/passwd", "GET", 404)])
def test_paths_that_are_none(path: str, method: str, status: int, server: Server) -> None:
    got, value = server.request(path, None, KEY, method)
    assert got == status and value["error"]["message"]


# Who may ask


@pytest.mark.parametrize("headers, status", [
    ({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": "Bearer "}, 401),
    ({"Authorization": "Basic right"}, 401), ({"Authorization": "right"}, 401),
    ({"Authorization": "Bearer rig\xfft"}, 401),
    ({"Authorization": "Bearer other"}, 200), ({"Authorization": "bearer right"}, 200)])
def test_keys(headers: dict[str, str], status: int, server: Server) -> None:
    for path in ("/v1/models", "/api/tags", "/metrics"):
        assert server.request(path, None, headers)[0] == status
    assert server.request("/health", None, headers)[0] == server.request("/", None, headers)[0] == 200


@pytest.mark.parametrize("headers, status", [
    ({"Host": "evil.example"}, 403), ({"Host": "evil.example:8000"}, 403), ({"Host": ""}, 403), ({"Host": "[::"}, 403),
    ({"Host": "localhost.evil.example"}, 403), ({"Host": "127.0.0.1.evil.example"}, 403),
    ({"Origin": "https://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Origin": "http://localhost:1"}, 403),
    ({"Host": "localhost", "Origin": "http://localhost"}, 200), ({"Host": "192.168.1.5:80"}, 200),
    ({"Host": "[::1]:80"}, 200), ({"Host": "LOCALHOST"}, 200), ({"Origin": "http://nas:3000"}, 200)])
def test_pages_elsewhere_may_not_ask(headers: dict[str, str], status: int, server: Server) -> None:
    got, value = server.request("/v1/models", None, {**KEY, **headers})
    assert got == status, value


def test_pages_that_are_allowed_can_read(server: Server) -> None:
    def head(origin: str) -> str:
        return exchange(server, f"OPTIONS {CHAT} HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n"
                                "Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n".encode())
    allowed = head("http://nas:3000")
    assert allowed.startswith("HTTP/1.1 200") and "access-control-allow-origin: http://nas:3000" in allowed.lower()
    assert head("http://evil:3000").startswith("HTTP/1.1 403")
    assert "access-control" not in head("http://evil:3000").lower()


def test_the_page_allows_nothing_foreign(server: Server) -> None:
    head = exchange(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").lower()
    assert "content-security-policy: default-src 'none'; script-src 'self'" in head
    assert "x-content-type-options: nosniff" in head and "x-frame-options: deny" in head and "server:" not in head


# Too large, too slow, too much


def exchange(server: Server, data: bytes, pause: float = 0, close: bool = False) -> str:
    """What comes back until the server closes, for bytes that are sent one by one with a pause, or at once."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        found = b""
        try:
            for part in ([data] if not pause else [data[at:at + 1] for at in range(len(data))]):
                client.sendall(part)
                time.sleep(pause)
            if close:
                client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has closed already
        try:
            while part := client.recv(65536):
                found += part
        except ConnectionResetError:
            pass
    return found.decode()


def head(length: int | str, more: str = "") -> bytes:
    return (f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer right\r\nContent-Length: {length}\r\n"
            f"{more}\r\n").encode()


def test_a_huge_body(server: Server) -> None:
    assert "is larger than 65536 bytes" in exchange(server, head(10 ** 9) + b" " * 200_000)
    chunked = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    assert "is larger than 65536 bytes" in exchange(server, chunked + b"4000\r\n" + b" " * 0x4000 + b"\r\n" + (
        b"20000\r\n" + b" " * 0x20000))


def test_slow_senders(server: Server) -> None:
    began = time.monotonic()
    answer = exchange(server, head(100), pause=0.05)
    assert answer.startswith("HTTP/1.1 408") and "the head of the request did not come" in answer
    assert "the body did not come within 1 seconds" in exchange(server, head(100) + b"{")
    assert exchange(server, b"").startswith("HTTP/1.1 408")  # who says nothing at all
    assert time.monotonic() - began < 15


def test_half_closed_connections(server: Server) -> None:
    assert exchange(server, head(1000) + b"{", close=True) == ""
    assert exchange(server, b"GET /heal", close=True) == ""
    exchange(server, head(0), close=True)


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET /\r\n\r\n", head("x"), head(-1),
                                  b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
                                  b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", b"\x00" * 100])
def test_what_is_no_http(data: bytes, server: Server) -> None:
    answer = exchange(server, data)
    assert answer.startswith("HTTP/1.1 4") and json.loads(answer.split("\r\n\r\n")[1])["error"]["message"]


def test_more_connections_than_are_taken(server: Server) -> None:
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
    try:
        answers = [client.recv(4096) for client in held[-5:]]
        assert all(b"503" in answer and b"20 connections are open" in answer for answer in answers)
    finally:
        for client in held:
            client.close()
    time.sleep(0.1)


def test_more_requests_than_can_wait(server: Server) -> None:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 100, "n": 16}
    found: list[tuple[int, Any]] = []
    threads = [threading.Thread(target=lambda: found.append(server.request(CHAT, body, KEY))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {status for status, _ in found} <= {200, 429} and 429 in [status for status, _ in found]
    refused = next(value for status, value in found if status == 429)
    assert refused["error"]["type"] == "rate_limit_error" and refused["error"]["code"] == "queue_full"


def test_nothing_of_requests_is_logged(server: Server) -> None:
    ask(server, {"messages": [{"role": "user", "content": SECRET}], "user": SECRET})
    ask(server, {SECRET: 1})
    server.request(f"/{SECRET.replace(' ', '-')}", None, KEY)
    said = server.errors
    assert "word" not in said and "HTTP" not in said and "127.0.0.1:" in said


# Before it begins


@pytest.mark.parametrize("arguments, message", [
    (["--model", "/nowhere/x.gguf"], "/nowhere/x.gguf: there is no such file or folder; check --model"),
    (["--model", "a=TINY", "--model", "a=TINY"], "two models are named a"),
    (["--model", "a=TINY", "--memory", "1MB"], "the model a does not fit: it takes about"),
    (["--model", "a=TINY/tokenizer.json", "--port", "0"], "tokenizer.json"),
    (["--model", "a=TINY", "--cache-memory", "1KB", "--port", "0"], "does not hold one conversation"),
    (["--model", "a=TINY", "--host", "no.such.host.invalid"], "cannot listen there"),
    (["--model", "a=TINY", "--api-key-file", "/nowhere/keys"], "/nowhere/keys"),
    (["--memory", "lots"], "expected a size such as 512MB or 6GB, got 'lots'"),
    (["--port", "70000"], "expected at most 65535, got 70000")])
def test_options_that_are_wrong(arguments: list[str], message: str, tmp_path: Path,
                               capsys: pytest.CaptureFixture) -> None:
    if any(["TINY" in argument for argument in arguments]):
        write_model(tmp_path / "tiny")
    words = [argument.replace("TINY", str(tmp_path / "tiny")) for argument in arguments]
    try:
        status = serve.main(words)
    except SystemExit as error:
        status = int(str(error.code))
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("weights ")]
    assert status in (1, 2) and len(said) == 1 and message in said[0], said
