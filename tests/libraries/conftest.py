"""Runs the scripts of this folder as their users would: alone, or under torchrun, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
#: What a launcher, or a test before this one, may have left in the environment.
LEFTOVERS = (
    "LOCAL_RANK",
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NEURON_RT_NUM_CORES",
    "NEURON_RT_VISIBLE_CORES",
)


def reports(out: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in what was printed; those of two ranks may share a line, where both wrote at once."""
    decoder, position = json.JSONDecoder(), out.find('{"')
    while position >= 0:
        try:
            found, position = decoder.raw_decode(out, position)
            yield found
        except json.JSONDecodeError:  # something else, printed by a library
            position += 1
        position = out.find('{"', position)


def run_script(
    name: str, *arguments: object, ranks: int = 0, limit: float = 300, **environment: str
) -> list[dict[str, Any]]:
    """Run a script and give the JSON objects that it printed; fail with its output if it fails.

    Parameters
    ----------
    name
        File of this folder.
    arguments
        Its command line.
    ranks
        Number of processes for torchrun; 0 for none of it.
    limit
        Seconds until it is ended together with its ranks.
    environment
        Variables of its own.
    """
    clean = {key: value for key, value in os.environ.items() if key not in LEFTOVERS}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DEACTIVATE_ASYNC_LOAD": "1", "TOKENIZERS_PARALLELISM": "false", "CI": "1"}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)] if ranks else []
    process = subprocess.Popen(
        [sys.executable, *torchrun, str(FOLDER / name), *map(str, arguments)],
        env={**clean, **offline, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, errors = process.communicate()
        pytest.fail(f"{name} took more than {limit:.0f} s\n{out[-2000:]}\n{errors[-6000:]}")
    if process.returncode != 0:
        # The first traceback is the cause; what follows are the other ranks and the launcher.
        start = max(errors.find("Traceback"), 0)
        pytest.fail(f"{name} ended with status {process.returncode}\n{out[-2000:]}\n{errors[start : start + 6000]}")
    return list(reports(out))


@pytest.fixture(scope="session")
def script() -> Callable[..., list[dict[str, Any]]]:
    """The function :func:`run_script`."""
    return run_script
