"""The page of `minigrad.explain` in a real Chromium: no error of a script, rows open, by mouse and by keyboard."""
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import minigrad
from minigrad import Tensor

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium drives the browser")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None or shutil.which("chromedriver") is None,
                                reason="expected chromium and chromedriver")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    x, w = Tensor.randn(64, 128).realize(), Tensor.randn(128, 96).realize()
    minigrad.explain(lambda: (x @ w).softmax(-1) + x.sum(), path=path)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_row_opens_and_closes_and_the_page_is_as_wide_as_the_window(browser: Any, page: Path, width: int) -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600})
    browser.get(page.as_uri())
    button = browser.find_element("css selector", "#k0 button")
    detail = browser.find_element("css selector", "#d0")
    assert not detail.is_displayed() and not detail.find_elements("css selector", "pre")
    button.click()
    forms = [part.text for part in detail.find_elements("css selector", "pre")]
    assert detail.is_displayed() and len(forms) == 5 and forms[0].startswith("kernel ") and "func " in forms[2]
    assert button.get_attribute("aria-expanded") == "true"
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    button.send_keys(" ")
    assert not detail.is_displayed()
    assert browser.get_log("browser") == []


def test_boxes_and_columns_are_reached_by_keyboard_and_the_theme_changes(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())
    box = browser.find_element("css selector", "svg .box")
    row = box.get_attribute("data-row")
    browser.execute_script("arguments[0].focus()", box)
    box.send_keys("\n")
    assert browser.find_element("css selector", f"#d{row}").is_displayed()
    browser.find_element("css selector", "th:nth-child(5) button").send_keys("\n")
    assert browser.find_element("css selector", "th:nth-child(5)").get_attribute("aria-sort") == "descending"
    before = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    browser.find_element("css selector", "#theme").click()
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != before
    assert browser.get_log("browser") == []
