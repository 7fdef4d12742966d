"""A JupyterLab of its own and a headless Chromium, for what only a page can show."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PICTURES = Path(__file__).parents[2] / "build" / "screenshots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
START_SECONDS = 90


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """Address, token and folder of a JupyterLab."""
    folder = tmp_path_factory.mktemp("lab")
    port, token = _free_port(), secrets.token_hex(16)
    log = (folder / "server.log").open("w")
    settings = folder / "settings"
    environment = {
        **os.environ, "JUPYTER_CONFIG_DIR": str(settings), "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    work = folder / "work"
    work.mkdir()
    server = subprocess.Popen(
        [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
            f"--ServerApp.root_dir={work}", "--LabApp.news_url=",
        ],
        env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={token}", timeout=5):
                    break
            except OSError:
                if server.poll() is not None or time.monotonic() > end:
                    pytest.fail(f"JupyterLab did not start\n{(folder / 'server.log').read_text()[-3000:]}")
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}", token, work
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
        log.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium of the system."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is in the extra `test`")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed (.ci/run installs chromium)")
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def open_notebook(lab_server: tuple[str, str, Path], browser: Any) -> Iterator[Callable[[str, list[str]], Any]]:
    """Write a notebook of code cells, open it in JupyterLab, run it, and give the page."""
    pages = []

    def run(name: str, cells: list[str]) -> Any:
        address, token, work = lab_server
        notebook = {
            "nbformat": 4, "nbformat_minor": 5,
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            "cells": [
                {"id": f"cell-{i}", "cell_type": "code", "metadata": {}, "source": text, "outputs": [],
                 "execution_count": None}
                for i, text in enumerate(cells)
            ],
        }  # fmt: skip
        (work / name).write_text(json.dumps(notebook))
        page = browser.new_page(viewport={"width": 1400, "height": 1100})
        pages.append(page)
        page.set_default_timeout(90_000)
        page.goto(f"{address}/lab/tree/{name}?token={token}&reset")
        page.wait_for_selector(".jp-Notebook .jp-InputPrompt")
        page.get_by_text("| Idle").wait_for()  # else JupyterLab asks for a kernel first
        page.get_by_text("Run", exact=True).first.click()
        page.get_by_text("Run All Cells", exact=True).first.click()
        page.wait_for_function(
            """count => {
                const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(e => e.textContent);
                return prompts.length >= count && prompts.every(text => /\\[\\d+\\]/.test(text));
            }""",
            arg=len(cells),
        )
        return page

    yield run
    for page in pages:
        page.close()


@pytest.fixture
def picture() -> Callable[[Any, str], Path]:
    """Keep a picture of a page in ``build/screenshots``."""

    def keep(page: Any, name: str) -> Path:
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURES / f"{name}.png")
        return PICTURES / f"{name}.png"

    return keep
