"""The report page in Chromium: time to its first views, and of filters and searches.

    .venv-browser/bin/python -m tests.bench.page FOLDER [--traces 100000] [--rounds 5]

Two pages of five benchmarks and ten methods are made, one with a tenth of the traces, and opened as
files in turns. Each number is the least of the rounds, in ms; the ratio says how it grows with the
traces. Needs Chromium and its driver (`make test-browser` makes the environment).
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.integration.browser.conftest import FLAGS, Page
from tests.integration.browser.made_study import MadeStudy, Size

METHODS, BENCHMARKS = 10, 5
MARK = "return performance.getEntriesByName(arguments[0])[0].startTime"
CHOICES = (("outcome", "a_right"), ("difficulty", "hard"), ("show", "cut"), ("text", "7"))
CHANGE = """
    const done = arguments[arguments.length - 1];
    const [name, value] = arguments;
    const node = document.getElementById(name);
    const began = performance.now();
    node.value = value;
    node.dispatchEvent(new Event(name === "text" ? "input" : "change"));
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
"""
# the text stands in every trace of one method: in sight soon, read to the end later
INSIDE = """
    const done = arguments[arguments.length - 1];
    const text = document.getElementById("text");
    document.getElementById("inside").click();
    const began = performance.now();
    let first = null;
    const looking = setInterval(() => {
      const told = document.querySelector(".count").textContent;
      if (first === null && /^[1-9]/.test(told)) first = performance.now() - began;
      if (!/ of .* traces/.test(told)) return;
      clearInterval(looking);
      done([first, performance.now() - began]);
    }, 5);
    text.value = "method3. I look";
    text.dispatchEvent(new Event("input"));
    document.querySelector(".count").textContent = "";
"""


def chromium() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS, f"--user-data-dir={tempfile.mkdtemp()}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(300)
    return driver


def measured(page: Page) -> Iterator[tuple[str, float]]:
    for name in ("tables", "compare", "lineage"):
        page.open(f"#/{name}", ready=name)
        yield f"first view: {name}", page.run(MARK, "first view")
    page.open("#/traces", ready="traces")
    yield "first trace", page.run(MARK, "first trace")
    page.open("#/traces?a=any&set=all", ready="traces")
    for name, value in CHOICES:
        what = f"search {value!r}" if name == "text" else f"filter {name}"
        yield what, page.driver.execute_async_script(CHANGE, name, value)
        page.driver.execute_async_script(CHANGE, "text", "")
        page.run("document.getElementById('reset').click()")
    first, whole = page.driver.execute_async_script(INSIDE)
    yield "search inside replies: first hit", first
    yield "search inside replies: all", whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--traces", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    told = parser.parse_args()
    methods = [f"method{k}" for k in range(METHODS)]
    benchmarks = [f"hop{k}" for k in range(BENCHMARKS)]
    pages = {}
    for traces in (told.traces // 10, told.traces):
        folder = told.folder / str(traces)
        index = folder / "made/tables/files/report/index.html"
        if not index.is_file():
            size = Size(traces // METHODS // BENCHMARKS, methods, benchmarks=benchmarks)
            index = MadeStudy(folder, size).page(traces="all")
        pages[traces] = index
    driver = chromium()
    found: dict[str, dict[int, list[float]]] = {}
    for _ in range(told.rounds):
        for traces, index in pages.items():
            for name, milliseconds in measured(Page(driver, index)):
                found.setdefault(name, {}).setdefault(traces, []).append(milliseconds)
    driver.quit()
    heads = [f"{traces:,} traces" for traces in pages]
    sys.stdout.write(
        f"| least of {told.rounds}, ms | {' | '.join(heads)} | ratio |\n|---|--:|--:|--:|\n"
    )
    for name, times in found.items():
        few, many = (min(times[traces]) for traces in pages)
        sys.stdout.write(f"| {name} | {few:.0f} | {many:.0f} | {many / few:.1f} |\n")


if __name__ == "__main__":
    main()
