"""How fast the live page shows 1,000 runs: part `page` of the speed of records.

Makes a database of 1,000 runs, each with twenty rounds of fifty clients' accuracies, and starts
`serve` over it in its own process. The time of the list of runs is the time of a whole answer over
a new connection. If Playwright and Chromium are installed, first paint is Chromium's own measure
from the start of the navigation, in a context without a cache.

    python benchmarks/records_page.py [--runs 1000] [--repeats 20]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _sizes import SMALLEST, sized

from platform.config import load_config
from storage import UnitOfWork, open_database

ROUNDS, CLIENTS = 20, 50
AIM = 1.0
"""Seconds."""


def round_document(number: int) -> dict[str, object]:
    scores = [0.5 + ((7 * client + number) % 50) / 100 for client in range(CLIENTS)]
    mean = statistics.mean(scores)
    accuracy = {"mean": mean, "weighted": mean, "std": 0.1, "worst": 0.5, "per_client": scores}
    return {
        "round": number,
        "phase": "rounds",
        "cohort": CLIENTS,
        "dropped": 2,
        "survivors": [f"client-{client:02}" for client in range(CLIENTS)],
        "accuracy": accuracy,
        "epsilon": {"server": number / 3, "peers": number / 3, "observer": number / 3},
        "bytes_up": 12_000,
        "bytes_down": 9_000,
        "seconds": 1.5,
        "clipping_norm": 0.3,
        "clipped_fraction": 0.4,
        "signal_to_noise": {"low": 0.0, "high": 1.5},
    }


def add_run(uow: UnitOfWork, number: int, config: str) -> None:
    run_id = f"quickstart-20260101-{number:06}-abcd"
    uow.runs.create(
        run_id, name="quickstart", config_json=config, config_digest="0" * 64, versions_json="{}"
    )
    for round_number in range(1, ROUNDS + 1):
        uow.rounds.add(run_id, round_number, 1, round_document(round_number))
        uow.audit.append(
            run_id, actor="coordinator", action="round.committed", round=round_number, channel="sum"
        )
    uow.runs.set_status(run_id, "finished")


def fill(url: str, runs: int) -> None:
    text = json.dumps(load_config(Path("quickstart")).model_dump(mode="json"), sort_keys=True)
    with open_database(url) as database:
        for first in range(0, runs, 50):
            with database.unit_of_work() as uow:
                for number in range(first, min(first + 50, runs)):
                    add_run(uow, number, text)
                uow.commit()


@contextmanager
def served(url: str) -> Iterator[int]:
    command = [sys.executable, "-m", "platform.coordinator", "serve", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*command, "--storage", url], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().split("/")[2].split(":")[1])
    finally:
        process.terminate()
        process.wait()


def answer_seconds(port: int, path: str) -> float:
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 200, answer.status
    return time.perf_counter() - started


def paint_seconds(port: int, repeats: int) -> list[float]:
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return []
    if chromium is None:
        return []
    script = "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
    found = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(repeats):
            context = browser.new_context()
            page = context.new_page()
            page.goto(f"http://127.0.0.1:{port}/")
            # The page's policy forbids evaluating text, which waiting for an expression would need.
            while page.evaluate("performance.getEntriesByType('paint').length") < 2:
                page.wait_for_timeout(20)
            found.append(float(page.evaluate(script)))
            context.close()
        browser.close()
    return found


def row(what: str, seconds: list[float]) -> str:
    if not seconds:
        return f"| {what} | not measured: no Chromium, or no Playwright | | |"
    median, worst = statistics.median(seconds), max(seconds)
    return f"| {what} | {seconds[0]:.3f} s | {median:.3f} s | {worst:.3f} s |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=sized(1000, 60))
    parser.add_argument("--repeats", type=int, default=sized(20, 2))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/sotto.db"
        fill(url, asked.runs)
        size = Path(folder, "sotto.db").stat().st_size / 1e6
        # The very first answer also opens the database and checks its structure.
        with served(url) as port:
            listed = [answer_seconds(port, "/") for _ in range(asked.repeats)]
            last = [answer_seconds(port, f"/?page={asked.runs // 50}") for _ in range(5)]
            searched = [answer_seconds(port, "/?q=000999") for _ in range(5)]
            metrics = [answer_seconds(port, "/metrics") for _ in range(5)]
        with served(url) as port:
            painted = paint_seconds(port, asked.repeats)
    sys.stdout.write(f"{asked.runs} runs, {ROUNDS} rounds each, {size:.0f} MB\n\n")
    sys.stdout.write("| what | first | median | worst |\n|---|---|---|---|\n")
    for what, seconds in (
        ("list of runs, whole answer", listed),
        ("its last page", last),
        ("a search in it", searched),
        ("Prometheus", metrics),
        ("first contentful paint in Chromium", painted),
    ):
        sys.stdout.write(f"{row(what, seconds)}\n")
    slowest = max(painted or listed)
    return 0 if slowest < AIM or SMALLEST else 1


if __name__ == "__main__":
    sys.exit(main())
