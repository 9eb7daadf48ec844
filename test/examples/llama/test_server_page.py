"""The server's page in a real browser: typing, streams, stop, edit and retry, reload, two tabs, phones, keyboards."""
from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.served import Server, serving, write_model

pytest.importorskip("uvicorn", reason="the server needs uvicorn")
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip("there is no Chromium with its driver", allow_module_level=True)

Keys = webdriver.Keys
SECONDS = 30
SETTINGS = {"temperature": "0", "max_tokens": "20"}
CHAT = "minigrad.chat."
CONTEXT = 8192
"""So that there is time to stop an answer."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_model(tmp_path_factory.mktemp("served") / "tiny", context=CONTEXT)
    with serving("--model", f"tiny={model}", "--context", str(CONTEXT)) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                     "--window-size=1200,850"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield found
    found.quit()


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Page]:
    """The page with nothing kept but short answers; at its end the browser has complained of nothing."""
    found = Page(browser, server.address)
    found.open()
    browser.execute_script("localStorage.clear(); localStorage.setItem('minigrad.settings', arguments[0])",
                           json.dumps(SETTINGS))
    found.open()
    yield found
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


class Page:
    def __init__(self, browser: Any, address: str):
        self.browser, self.address = browser, address

    def open(self, path: str = "/") -> None:
        self.browser.get("about:blank")  # or a change of the part after # would not load it
        self.browser.get(self.address + path)
        self.until(lambda: self.all("#model option"))

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return [each.text for each in self.all(selector)]

    def until(self, true: Callable[[], Any]) -> Any:
        end = time.monotonic() + SECONDS
        while not (found := true()):
            assert time.monotonic() < end, "it did not become true"
            time.sleep(0.02)
        return found

    def ask(self, text: str) -> None:
        self.one("#question").send_keys(text, Keys.ENTER)

    def ended(self) -> None:
        self.until(lambda: self.one("#send").is_displayed() and self.all(".message.assistant .tools button"))

    def told(self) -> list[str]:
        return self.texts(".message .body")

    def kept(self) -> list[dict[str, Any]]:
        """The conversations in the browser's storage."""
        found = self.browser.execute_script("return Object.entries(localStorage)")
        return [json.loads(value) for key, value in found if key.startswith(CHAT)]


def test_an_answer_streams_and_is_kept(page: Page) -> None:
    page.ask("Hello")
    page.until(lambda: len(page.told()) == 2 and page.told()[1])
    page.ended()
    told = page.told()
    assert told[0] == "Hello" and page.one("#title").text == "Hello" and page.one("#question").text == ""
    assert page.texts(".message.assistant .by") == ["tiny"]
    assert "20 tokens, " in page.one(".speed").text and "cut at the most tokens" in page.one(".speed").text
    assert page.one("#spoken").get_attribute("textContent").strip()  # said to screen readers as a whole
    page.browser.refresh()
    page.until(lambda: page.told() == told)
    assert page.texts("#list .current .name") == ["Hello"]
    page.ask("the llama")
    page.until(lambda: len(page.told()) == 4)
    page.ended()
    assert [message["role"] for message in page.kept()[0]["messages"]] == ["user", "assistant"] * 2


def test_stop(page: Page, server: Server) -> None:
    page.browser.execute_script("localStorage.setItem('minigrad.settings', '{\"temperature\": \"0\"}')")
    page.ask("Hello")
    page.until(lambda: len(page.told()) == 2 and page.told()[1])
    page.one("#stop").click()
    page.ended()
    assert "stopped" in page.one(".speed").text and len(page.kept()[0]["messages"][1]["content"]) > 0
    page.ask("more")
    page.until(lambda: len(page.told()) == 4 and page.told()[3])
    page.one("#question").send_keys(Keys.ESCAPE)
    page.until(lambda: len(page.texts(".speed")) == 2)
    assert "stopped" in page.texts(".speed")[1]
    page.until(lambda: 'minigrad_engine_running{model="tiny"} 0.0' in server.request("/metrics")[1])


def test_edit_and_retry_lose_nothing(page: Page) -> None:
    for question in ("Hello", "the llama"):
        page.ask(question)
        page.until(lambda question=question: question in page.told())  # type: ignore[misc]
        page.ended()
    first = page.told()
    next(each for each in page.all(".message.user button") if each.text == "Edit").click()
    field = page.one(".edit")
    field.clear()
    field.send_keys("ll ama", Keys.ENTER)
    page.until(lambda: page.told()[0] == "ll ama" and len(page.told()) == 2)
    page.ended()
    assert sorted([len(chat["messages"]) for chat in page.kept()]) == [2, 4]  # the one before the edit is there, too
    copy = next(each for each in page.all("#list .name") if "before the edit" in each.text)
    copy.click()
    page.until(lambda: page.told() == first)
    next(each for each in page.all("#list .name") if "before" not in each.text).click()
    before = page.told()
    next(each for each in page.all(".message.assistant button") if each.text == "Retry").click()
    page.ended()
    page.until(lambda: page.told() == before)  # greedy: the same again


def test_two_tabs(page: Page) -> None:
    page.ask("Hello")
    page.ended()
    first = page.browser.current_window_handle
    page.browser.switch_to.new_window("tab")
    try:
        page.open()
        page.until(lambda: page.texts("#list .name") == ["Hello"])
        page.ask("the llama")
        page.ended()
        page.one("#list li:not(.current) .name").click()
        page.ask("ama")
        page.until(lambda: len(page.told()) == 4)
        page.ended()
        told = page.told()
        page.browser.switch_to.window(first)
        page.until(lambda: page.told() == told)  # what the other tab said is here, too
        assert sorted(page.texts("#list .name")) == ["Hello", "the llama"]
    finally:
        for handle in page.browser.window_handles:
            if handle != first:
                page.browser.switch_to.window(handle)
                page.browser.close()
        page.browser.switch_to.window(first)


def test_tabs_that_write_at_once_lose_nothing(page: Page) -> None:
    page.ask("Hello")
    page.ended()
    # As another tab may do between our reading and our writing.
    page.browser.execute_script("""
        const key = Object.keys(localStorage).find((each) => each.startsWith('minigrad.chat.'));
        const chat = JSON.parse(localStorage.getItem(key));
        chat.revision += 1;
        chat.messages.push({role: 'user', content: 'from elsewhere'});
        localStorage.setItem(key, JSON.stringify(chat));""")
    page.ask("the llama")
    page.ended()
    kept = [[message["content"] for message in chat["messages"]] for chat in page.kept()]
    assert len(kept) == 2
    assert any("from elsewhere" in texts for texts in kept) and any("the llama" in texts for texts in kept)


MARKDOWN = """# A title

Some **bold**, *slanted* and `code`, a [link](https://example.org/a), [none](javascript:alert(1)).
<img src=x onerror=document.title='broken'> <script>document.title='broken'</script>

1. one
2. two
   - inner

| a | b |
|---|---|
| 1 | `2` |

> said

```python
def f(x):
    return "<b>" + x
```"""


def shown(page: Page, *contents: str) -> list[Any]:
    """Answers with these texts, as the page shows them."""
    chat = {"id": "0a", "title": "shown", "changed": 1, "revision": 1, "messages": [
        {"role": "user", "content": "<i>x</i>"},
        *[{"role": "assistant", "model": "tiny", "content": content} for content in contents]]}
    page.browser.execute_script("localStorage.setItem('minigrad.chat.0a', arguments[0])", json.dumps(chat))
    page.open("/#0a")
    return page.all(".message.assistant .body")


def test_markdown(page: Page) -> None:
    body, = shown(page, MARKDOWN)

    def inside(selector: str) -> list[str]:
        return [each.text for each in body.find_elements("css selector", selector)]
    assert (inside("h2"), inside("strong"), inside("em")) == (["A title"], ["bold"], ["slanted"])
    assert inside("ol > li > ul > li") == ["inner"] and inside("blockquote p") == ["said"]
    assert inside("td") == ["1", "2"] and inside("pre code") == ['def f(x):\n    return "<b>" + x']
    links = body.find_elements("css selector", "a")
    assert [link.get_attribute("href") for link in links] == ["https://example.org/a"]
    assert "noopener" in links[0].get_attribute("rel")
    assert inside("img") == inside("script") == [] and "<img src=x" in body.text and page.browser.title[:6] == "shown "
    assert page.one(".message.user .body").text == "<i>x</i>"
    body.find_element("css selector", ".code button").click()
    page.until(lambda: inside(".code button") == ["Copied"])


ODD = ["", "*", "**", "```", "`" * 50, "[](", "|", "|\n|-", "> " * 500, "- " * 500, "#" * 10, "1. a\n\n\n- b\n```",
       "\x00\ud7ff\U0001f999", "[a](" * 200, "*_" * 500, "    x\n\ty", "<!-- -->", "&lt;", "a\n```\nb\n````\nc\n~~~",
       "- a\n  ```\n  b\n  ```\nc", "| a | b\n|--|--\nc", "**a *b** c*", "1. a\n   - b\n\n   c\n2. d"]


def test_no_text_loses_words(page: Page) -> None:
    for content, body in zip(ODD, shown(page, *ODD), strict=True):
        words = [word for word in re.findall(r"[a-z]+", body.text) if word not in ("code", "opy")]
        assert words == re.findall(r"[a-z]+", content.replace("&lt;", "lt")), content


def test_html_cannot_be_made_of_text(page: Page) -> None:
    """The page's policy, whatever its own code does."""
    made = page.browser.execute_script("""try { document.body.insertAdjacentHTML('beforeend', '<p>x'); return 'made'; }
                                          catch (error) { return error.name; }""")
    assert made == "TypeError"
    page.browser.get_log("browser")  # which has the refusal


def test_settings_and_colours(page: Page) -> None:
    def back() -> str:
        return page.browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    light = back()
    page.one("#open-settings").click()
    page.one("[name=system]").send_keys("Be brief.")
    page.browser.execute_script("document.querySelector('[name=theme]').value = 'dark'")
    page.one("dialog [type=submit]").click()
    page.until(lambda: back() != light)
    page.browser.refresh()
    page.until(lambda: back() != light)
    page.browser.execute_script("""
        window.asked = [];
        const real = window.fetch;
        window.fetch = (path, options) => { window.asked.push(options.body); return real(path, options); };""")
    page.ask("Hello")
    page.ended()
    asked = json.loads(page.browser.execute_script("return window.asked[0]"))
    assert asked["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert (asked["temperature"], asked["max_tokens"], asked["model"]) == (0, 20, "tiny")


def test_an_error_is_shown_and_can_be_tried_again(page: Page) -> None:
    page.browser.execute_script("document.querySelector('#question').value = arguments[0]", "ab" * CONTEXT)
    page.ask("!")
    page.until(lambda: page.all(".wrong"))
    assert "the context holds 8192" in page.one(".wrong").text
    assert page.texts(".message.assistant .tools button") == ["Retry"]
    assert any("400" in entry["message"] for entry in page.browser.get_log("browser"))  # Chromium notes the status


def test_keyboard_and_names(page: Page) -> None:
    page.one("#question").send_keys("one", Keys.SHIFT, Keys.ENTER, Keys.NULL, "two", Keys.ENTER)
    page.ended()
    assert page.told()[0] == "one\ntwo"
    page.one("#question").send_keys(Keys.ARROW_UP)
    assert page.one(".edit").get_attribute("value") == "one\ntwo"
    page.browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert page.all(".edit") == []
    page.one("#question").send_keys(Keys.ALT, "n")
    page.until(lambda: page.told() == [])
    nameless = page.browser.execute_script("""
        return [...document.querySelectorAll('button, input, select, textarea')].filter((each) =>
            !(each.textContent.trim() || each.getAttribute('aria-label') || each.labels?.length))
            .map((each) => each.outerHTML)""")
    assert nameless == [] and page.one("[role=status]").get_attribute("aria-live") == "polite"


def test_a_phone(page: Page) -> None:
    shown(page, MARKDOWN + "\n\n" + "x" * 300)
    size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        widths = page.browser.execute_script("return [document.documentElement.scrollWidth, "
                                             "document.querySelector('#scroll').scrollWidth, innerWidth]")
        assert max(widths) <= 360 and not page.one("#side").is_displayed()
        page.one("#menu").click()
        page.until(lambda: page.one("#side").is_displayed())
        page.one("#list .name").click()
        page.until(lambda: not page.one("#side").is_displayed())
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
