"""A server of two tiny models, asked by the clients that people use: openai, ollama, LangChain's, curl."""
from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.served import CONTEXT, Server, serving, write_model

pytest.importorskip("uvicorn", reason="the server needs uvicorn")

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"temperature": 0, "max_tokens": 12}
MODELS = ("tiny", "hybrid")
TOOL = {"type": "function", "function": {"name": "weather", "description": "tells the weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"],
    "additionalProperties": False}}}
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}, "kind": {"enum": ["cat", "dog"]}},
          "required": ["age", "kind"], "additionalProperties": False}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    models = [f"tiny={write_model(folder / 'tiny')}", f"hybrid={write_model(folder / 'hybrid', 'qwen35', 1)}"]
    with serving(*[word for model in models for word in ("--model", model)], "--memory", "4GB") as found:
        yield found


@pytest.fixture
def openai(server: Server) -> Iterator[Any]:
    library = pytest.importorskip("openai", reason="the client openai is not installed")
    with library.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(server: Server, **fields: Any) -> dict[str, Any]:
    status, value = server.request("/v1/chat/completions", {"model": "tiny", "messages": HELLO, **GREEDY, **fields})
    assert status == 200, value
    return value


# openai


@pytest.mark.parametrize("model", MODELS)
def test_a_stream_says_what_the_whole_answer_says(model: str, openai: Any) -> None:
    fields = {"model": model, "messages": HELLO, **GREEDY}
    whole = openai.chat.completions.create(**fields)
    chunks = list(openai.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    text = "".join([c.choices[0].delta.content or "" for c in chunks if c.choices])
    assert text == whole.choices[0].message.content and chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    last = chunks[-1].usage
    assert last.completion_tokens == whole.usage.completion_tokens > 0 and not chunks[-1].choices
    assert last.prompt_tokens == whole.usage.prompt_tokens


@pytest.mark.parametrize("model", MODELS)
def test_a_prompt_that_was_there_is_not_fed_again(model: str, server: Server) -> None:
    messages = [{"role": "user", "content": f"{model} llama " * 12}]
    first, again = (chat(server, model=model, messages=messages) for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > again["usage"]["prompt_tokens"] // 2
    assert again["choices"] == first["choices"]


def test_seeds_and_choices(openai: Any) -> None:
    fields = {"model": "tiny", "messages": HELLO, "temperature": 1.5, "top_p": 0.9, "max_tokens": 12, "n": 3}

    def texts(seed: int) -> list[str]:
        found = openai.chat.completions.create(**fields, seed=seed).choices
        assert [choice.index for choice in found] == [0, 1, 2]
        return [choice.message.content for choice in found]
    first = texts(1)
    assert first == texts(1) != texts(5) and len(set(first)) == 3


def test_log_probabilities(openai: Any) -> None:
    found = openai.chat.completions.create(model="tiny", messages=HELLO, **GREEDY, logprobs=True, top_logprobs=3)
    content = found.choices[0].logprobs.content
    assert len(content) == 12
    for each in content:
        assert each.logprob == each.top_logprobs[0].logprob <= 0 and len(each.top_logprobs) == 3  # greedy: the best
        assert each.top_logprobs[0].logprob >= each.top_logprobs[1].logprob
        assert bytes(each.bytes).decode(errors="replace") == each.token
    streamed = openai.chat.completions.create(model="tiny", messages=HELLO, **GREEDY, logprobs=True, stream=True)
    assert [t.token for c in streamed if c.choices[0].logprobs for t in c.choices[0].logprobs.content] == [
        t.token for t in content]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_tool_is_called(choice: Any, model: str, openai: Any) -> None:
    fields = {"model": model, "messages": HELLO, "temperature": 1, "max_tokens": 80, "tools": [TOOL],
              "tool_choice": choice}
    found = openai.chat.completions.create(**fields).choices[0]
    call = found.message.tool_calls[0]
    assert found.finish_reason == "tool_calls" and found.message.content is None and call.function.name == "weather"
    assert list(json.loads(call.function.arguments)) == ["city"]
    chunks = [c.choices[0] for c in openai.chat.completions.create(**fields, stream=True)]
    streamed = [c.delta.tool_calls[0] for c in chunks if c.delta.tool_calls]
    assert [call.function.name for call in streamed] == ["weather"] and chunks[-1].finish_reason == "tool_calls"
    told = [*HELLO, found.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    after = openai.chat.completions.create(model=model, messages=told, tools=[TOOL], **GREEDY)
    assert after.choices[0].finish_reason in ("length", "stop")


@pytest.mark.parametrize("model", MODELS)
def test_answers_meet_a_schema(model: str, openai: Any) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}
    for seed in range(3):
        found = openai.chat.completions.create(model=model, messages=HELLO, temperature=1, seed=seed, max_tokens=60,
                                               response_format=asked).choices[0]
        pet = json.loads(found.message.content)
        assert set(pet) == {"age", "kind"} and pet["kind"] in ("cat", "dog") and found.finish_reason == "stop"
    found = openai.chat.completions.create(model=model, messages=HELLO, temperature=1, max_tokens=60,
                                           response_format={"type": "json_object"}).choices[0]
    assert isinstance(json.loads(found.message.content), dict)


def test_reasoning_is_apart(server: Server) -> None:
    message = chat(server, chat_template_kwargs={"enable_thinking": True})["choices"][0]["message"]
    assert message["reasoning_content"] and message["content"] == ""  # it begins in the prompt, and never ends


def test_completions(openai: Any) -> None:
    found = openai.completions.create(model="tiny", prompt=["Hello", "the llama"], n=2, temperature=0, max_tokens=5,
                                      logprobs=2, echo=False)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3] and found.usage.completion_tokens == 20
    assert found.choices[0].text == found.choices[1].text != found.choices[2].text
    scores = found.choices[0].logprobs
    assert len(scores.tokens) == len(scores.token_logprobs) == len(scores.top_logprobs) == 5
    assert scores.text_offset == [sum(map(len, scores.tokens[:at])) for at in range(5)]
    echoed = openai.completions.create(model="tiny", prompt="Hello", temperature=0, max_tokens=5, echo=True)
    assert echoed.choices[0].text == "Hello" + found.choices[0].text
    streamed = openai.completions.create(model="tiny", prompt="Hello", temperature=0, max_tokens=5, stream=True)
    assert "".join([chunk.choices[0].text for chunk in streamed]) == found.choices[0].text


def test_a_stop_ends_an_answer(openai: Any) -> None:
    fields = {"model": "tiny", "prompt": "Hello", "temperature": 0, "max_tokens": 12}
    whole = openai.completions.create(**fields).choices[0].text
    stop = next(whole[at:at + 2] for at in range(1, len(whole)) if whole[at:at + 2].isascii())
    cut = openai.completions.create(**fields, stop=[stop, "never there"])
    assert cut.choices[0].text == whole[:whole.index(stop)] and cut.choices[0].finish_reason == "stop"
    assert cut.usage.completion_tokens < 12


@pytest.mark.parametrize("model", MODELS)
def test_embeddings(model: str, openai: Any, server: Server) -> None:
    found = openai.embeddings.create(model=model, input=["Hello", "the llama", "Hello"])
    rows = np.array([each.embedding for each in found.data])
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5) and np.allclose(rows[0], rows[2], atol=1e-5)
    assert not np.allclose(rows[0], rows[1], atol=1e-2) and found.usage.prompt_tokens > 3
    status, coded = server.request("/v1/embeddings", {"model": model, "input": "Hello", "encoding_format": "base64"})
    plain = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    assert status == 200 and np.allclose(plain, rows[0], atol=1e-5)


def test_models(openai: Any) -> None:
    assert {model.id for model in openai.models.list()} == set(MODELS)
    assert openai.models.retrieve("tiny").id == "tiny"


def test_errors_are_those_of_the_client(openai: Any) -> None:
    library = pytest.importorskip("openai")
    with pytest.raises(library.NotFoundError, match="there is no model 'huge'") as caught:
        openai.chat.completions.create(model="huge", messages=HELLO)
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    with pytest.raises(library.BadRequestError, match="temperature: input should be less than or equal to 2"):
        openai.chat.completions.create(model="tiny", messages=HELLO, temperature=9)


# ollama


def test_ollama(server: Server) -> None:
    library = pytest.importorskip("ollama", reason="the client ollama is not installed")
    client = library.Client(server.address)
    options = {"temperature": 0, "num_predict": 12}
    assert {model.model for model in client.list().models} == set(MODELS)
    assert "tools" in client.show("tiny").capabilities
    whole = client.chat(model="tiny:latest", messages=HELLO, options=options)
    assert whole.message.content == chat(server)["choices"][0]["message"]["content"]
    assert whole.done and whole.done_reason == "length" and whole.eval_count == 12 and whole.eval_duration > 0
    lines = list(client.chat(model="tiny", messages=HELLO, options=options, stream=True))
    assert "".join([line.message.content for line in lines]) == whole.message.content
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    found = client.generate(model="tiny", prompt="Hello", raw=True, options=options).response
    assert found == server.request("/v1/completions", {"model": "tiny", "prompt": "Hello", **GREEDY})[1][
        "choices"][0]["text"]
    pet = client.chat(model="tiny", messages=HELLO, format=SCHEMA, options={"num_predict": 60})
    assert set(json.loads(pet.message.content)) == {"age", "kind"}
    assert client.chat(model="tiny", messages=HELLO, think=True, options=options).message.thinking
    assert np.array(client.embed(model="tiny", input=["Hello", "the"]).embeddings).shape == (2, 32)
    with pytest.raises(library.ResponseError, match="there is no model 'huge'"):
        client.chat(model="huge", messages=HELLO)


# LangChain and curl


def test_langchain(server: Server) -> None:
    library = pytest.importorskip("langchain_openai", reason="LangChain's client is not installed")
    model = library.ChatOpenAI(model="tiny", base_url=f"{server.address}/v1", api_key="none", temperature=0,
                               max_tokens=12, max_retries=0)
    text = chat(server)["choices"][0]["message"]["content"]
    assert model.invoke("Hello").content == text
    assert "".join([chunk.content for chunk in model.stream("Hello")]) == text
    long = model.model_copy(update={"max_tokens": 80})
    answer = long.bind_tools([TOOL], tool_choice="required").invoke("Hello")
    assert [call["name"] for call in answer.tool_calls] == ["weather"]
    pet = long.with_structured_output({**SCHEMA, "title": "pet"}, method="json_schema").invoke("Hello")
    assert pet["kind"] in ("cat", "dog")
    embeddings = library.OpenAIEmbeddings(model="tiny", base_url=f"{server.address}/v1", api_key="none",
                                          check_embedding_ctx_length=False)
    assert np.array(embeddings.embed_documents(["Hello", "the"])).shape == (2, 32)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(server: Server) -> None:
    body = json.dumps({"model": "tiny", "messages": HELLO, **GREEDY})
    command = ["curl", "-sN", f"{server.address}/v1/chat/completions", "-d"]
    plain = subprocess.run([*command, body], capture_output=True, text=True, check=True).stdout
    assert json.loads(plain)["choices"][0]["message"]["content"] == chat(server)["choices"][0]["message"]["content"]
    events = subprocess.run([*command, body.replace("{", '{"stream": true, ', 1)], capture_output=True, text=True,
                            check=True).stdout
    data = [line.removeprefix("data: ") for line in events.splitlines() if line]
    assert data[-1] == "[DONE]" and all(json.loads(line)["id"] == json.loads(data[0])["id"] for line in data[:-1])


# The server itself


def test_health_metrics_and_description(server: Server) -> None:
    assert server.request("/health") == (200, {"status": "ok"})
    before = _metric(server, 'minigrad_tokens_total{kind="completion"}')
    chat(server)
    assert _metric(server, 'minigrad_tokens_total{kind="completion"}') == before + 12
    assert _metric(server, 'minigrad_requests_total{path="/v1/chat/completions",status="200"}') >= 1
    described = server.request("/openapi.json")[1]
    assert described["openapi"] == "3.1.0"
    assert {"/v1/chat/completions", "/api/chat", "/health", "/metrics"} <= set(described["paths"])


def _metric(server: Server, name: str) -> float:
    lines = server.request("/metrics")[1].splitlines()
    return sum([float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)])


def test_many_at_once_answer_as_alone(server: Server) -> None:
    questions = [[{"role": "user", "content": "Hello" * k}] for k in range(1, 9)]
    alone = [chat(server, messages=question)["choices"][0]["message"]["content"] for question in questions]
    found: list[Any] = [None] * len(questions)

    def ask(k: int) -> None:
        found[k] = chat(server, messages=questions[k])["choices"][0]["message"]["content"]
    threads = [threading.Thread(target=ask, args=(k,)) for k in range(len(questions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


@pytest.mark.parametrize("stream", [True, False])
def test_who_goes_away_is_not_answered_further(stream: bool, server: Server) -> None:
    before = _metric(server, 'minigrad_tokens_total{kind="completion"}')
    body = json.dumps({"model": "tiny", "messages": HELLO, "max_tokens": CONTEXT, "temperature": 1.9, "seed": 3,
                       "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (
            len(body), body))
        _until(lambda: _running(server) == 1)
    _until(lambda: _running(server) == 0)
    assert _metric(server, 'minigrad_tokens_total{kind="completion"}') - before < CONTEXT - 60


def _running(server: Server) -> float:
    return _metric(server, "minigrad_engine_running{")


def _until(true: Any) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not become true")


LONG = [{"role": "user", "content": "the llama " * 20}]


def test_a_signal_lets_answers_end_and_keeps_the_cache(tmp_path: Path) -> None:
    options = ["--model", f"tiny={write_model(tmp_path / 'tiny')}", "--keep-cache", str(tmp_path / "kept")]
    with serving(*options) as server:
        whole, long = (chat(server, max_tokens=200, temperature=0, messages=each) for each in (HELLO, LONG))
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(chat(server, max_tokens=200, temperature=0)))
        thread.start()
        _until(lambda: _running(server) == 1)
        assert server.end() == 0
        thread.join()
        assert answers[0]["choices"] == whole["choices"]
        assert server.errors.count("\n") == 2  # what the model takes, and where the server is
    assert (tmp_path / "kept").stat().st_mode & 0o77 == 0  # what people said is nobody else's
    with serving(*options) as server:
        again = chat(server, max_tokens=200, temperature=0, messages=LONG)
        assert again["choices"] == long["choices"] and again["usage"]["prompt_tokens_details"]["cached_tokens"] > 30
