"""Runs the operator sweep in child processes, so that a crash is a result and not the end."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

DTYPES = ("float32", "bfloat16", "int64", "bool", "complex64")
WORKER = Path(__file__).with_name("opinfo_worker.py")

Task = tuple[str, str]
Failure = tuple[str, int, str]


@dataclass
class Sweep:
    """What a sweep found.

    Attributes
    ----------
    compared
        Number of comparisons per (operator, dtype); 0 where the CPU cannot do any sample.
    failures
        (variant, sample, message) per (operator, dtype) that disagreed, crashes included.
    seconds
        Wall time.
    """

    compared: dict[Task, int] = field(default_factory=dict)
    failures: dict[Task, list[Failure]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def working(self) -> list[Task]:
        """The pairs that work on the CPU."""
        return [task for task, compared in self.compared.items() if compared or task in self.failures]


def all_tasks() -> list[Task]:
    """Every (operator, dtype) of the database that the CPU claims to support."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    return [(op.full_name, name) for op in op_db for name in DTYPES if getattr(torch, name) in op.dtypes]


def in_slice(name: str, part: int, parts: int) -> bool:
    """A fixed share of the operators: the same on every machine and in every run."""
    return zlib.crc32(name.encode()) % parts == part


def sweep(tasks: list[Task], *, chunk: int = 300, stall: float = 180.0) -> Sweep:
    """Run the tasks in child processes of at most ``chunk`` tasks.

    A task that kills its process, or keeps it silent for ``stall`` seconds, is
    recorded as a crash, and the rest of its chunk starts over without it.
    """
    found = Sweep()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results.jsonl")
        left = list(tasks)
        while left:
            path.write_text("")
            died = _run(left[:chunk], path, stall)
            started = _read(path, found)
            if died and started is None:
                raise RuntimeError(f"The worker of the sweep cannot start:\n{died}")
            if died:
                found.compared[started] = 0
                found.failures[started] = [("crash", -1, died)]
            left = [task for task in left if task not in found.compared]
    found.seconds = time.monotonic() - begin
    return found


def _run(tasks: list[Task], path: Path, stall: float) -> str:
    """One child; returns how it died, or an empty string."""
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryFile("w+") as todo:
        todo.writelines(f"{name}\t{dtype}\n" for name, dtype in tasks)
        todo.seek(0)
        child = subprocess.Popen([sys.executable, str(WORKER), str(path)], stdin=todo, stdout=log, stderr=log)
        try:
            size, since = -1, time.monotonic()
            while child.poll() is None:
                time.sleep(0.2)
                if path.stat().st_size != size:
                    size, since = path.stat().st_size, time.monotonic()
                elif time.monotonic() - since > stall:
                    return f"no answer for {stall:.0f} s"
        finally:  # a child that stalls, and an interrupted parent
            if child.poll() is None:
                child.kill()
                child.wait()
        if child.returncode == 0:
            return ""
        log.seek(0)
        return f"exit status {child.returncode}: {log.read()[-1500:].strip()}"


def _read(path: Path, found: Sweep) -> Task | None:
    """Collect finished tasks; returns the one that was started and not finished."""
    started = None
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "start" in record:
            started = tuple(record["start"])
            continue
        task = tuple(record["done"])
        started = None
        found.compared[task] = record["compared"]
        if record["failures"]:
            found.failures[task] = [tuple(failure) for failure in record["failures"]]
    return started
