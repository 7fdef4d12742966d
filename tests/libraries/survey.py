"""Runs small language models on the CPU and on ``neuron`` and says where they differ.

Started as a program it examines the model types named on its command line, one
after the other, and prints one JSON object a line. :func:`run` starts such
programs, gives every type its time, and starts anew after a crash. It imports
no helper of this project: what is examined is plain transformers on the device.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CHECKS = ("eager", "static", "training")
PROMPT, NEW_TOKENS = 6, 8
EQUAL = "equal"
NOT_HERE = "not on the CPU"

#: By model type and check: ``outcome`` and ``seconds``.
Results = dict[str, dict[str, dict[str, Any]]]


def _prompt() -> Any:
    import torch

    return torch.randint(3, 120, (2, PROMPT), generator=torch.Generator().manual_seed(1))


def _on(model: Any, device: str) -> Any:
    """The model moved as users move it; it has to arrive."""
    model = model.to(device)
    assert {weight.device.type for weight in model.parameters()} == {device}
    return model


def _generate(model_type: str, device: str, **settings: Any) -> tuple[Any, Any]:
    """Tokens of a greedy continuation, and the logits that they were chosen by."""
    import torch
    from architectures import small_model

    model = _on(small_model(model_type), device)
    torch.manual_seed(0)
    out = model.generate(
        _prompt().to(device), max_new_tokens=NEW_TOKENS, do_sample=False, output_logits=True,
        return_dict_in_generate=True, **settings,
    )  # fmt: skip
    return out.sequences.cpu(), torch.stack(out.logits).float().cpu()


def _train(model_type: str, device: str) -> dict[str, Any]:
    """Loss, gradients and updated parameters of one step, by name, tied names included."""
    import torch
    from architectures import small_model

    model = _on(small_model(model_type).train(), device)
    torch.manual_seed(0)
    ids = _prompt().to(device)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    named = dict(model.named_parameters(remove_duplicate=False))
    values = {f"grad of {name}": weight.grad for name, weight in named.items() if weight.grad is not None}
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return {name: value.detach().cpu() for name, value in {"loss": loss, **values, **named}.items()}


def _differs(expected: Any, found: Any, tolerance: float) -> str | None:
    """How two tensors differ, in words, or None."""
    if expected.shape != found.shape:
        return f"shape {tuple(found.shape)} for {tuple(expected.shape)}"
    if expected.equal(found):
        return None
    scale = float(expected.abs().nan_to_num(posinf=0, neginf=0).max()) or 1.0
    if expected.isclose(found, rtol=tolerance, atol=tolerance * scale, equal_nan=True).all():
        return None
    return f"off by {float((expected - found).abs().max()):.2g} of {scale:.2g}"


def _compare_generation(expected: tuple[Any, Any], found: tuple[Any, Any]) -> str:
    different = _differs(expected[1], found[1], 1e-3)
    if not expected[0].equal(found[0]):
        return f"tokens differ; logits {different}"
    return f"logits {different}" if different else EQUAL


def _compare_training(expected: dict[str, Any], found: dict[str, Any]) -> str:
    if expected.keys() != found.keys():
        return f"no counterpart: {sorted(expected.keys() ^ found.keys())[:3]}"
    for name, value in expected.items():
        different = _differs(value, found[name], 1e-3)
        if different:
            return f"{name} {different}"
    return EQUAL


def _static_compiled(model_type: str) -> tuple[Any, Any]:
    import torch
    from transformers import CompileConfig

    torch._dynamo.reset()
    compiled = CompileConfig(backend="neuron", mode="default", fullgraph=False, dynamic=False)
    return _generate(model_type, "neuron", cache_implementation="static", compile_config=compiled)


_REFERENCES = {
    "eager": lambda model_type: _generate(model_type, "cpu"),
    "static": lambda model_type: _generate(model_type, "cpu", cache_implementation="static"),
    "training": lambda model_type: _train(model_type, "cpu"),
}
_SUBJECTS = {
    "eager": lambda model_type: _generate(model_type, "neuron"),
    "static": _static_compiled,
    "training": lambda model_type: _train(model_type, "neuron"),
}


def _words(error: BaseException) -> str:
    """An error in one line; torch.compile puts the cause on a line of its own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]


def examine(model_type: str, check: str) -> str:
    """Say how a check ended: ``equal``, the difference, the error, or why the CPU cannot do it.

    Parameters
    ----------
    model_type
        A key of transformers' mapping of causal language models.
    check
        One of :data:`CHECKS`.
    """
    compare = _compare_training if check == "training" else _compare_generation
    try:
        expected = _REFERENCES[check](model_type)
    except Exception as error:
        return f"{NOT_HERE}: {_words(error)}"
    try:
        return compare(expected, _SUBJECTS[check](model_type))
    except Exception as error:
        return _words(error)


def main(model_types: list[str], checks: list[str]) -> None:
    """Examine the types in this process and print what is found."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    with contextlib.redirect_stdout(sys.stderr):  # models print, too
        for model_type in model_types:
            for check in checks:
                report = {"type": model_type, "check": check}
                print(json.dumps({**report, "begin": True}), file=sys.__stdout__, flush=True)
                start = time.perf_counter()
                report |= {"outcome": examine(model_type, check), "seconds": round(time.perf_counter() - start, 2)}
                print(json.dumps(report), file=sys.__stdout__, flush=True)


class _Child:
    """One process of :func:`main`, read line by line with a time limit."""

    def __init__(self, model_types: list[str], checks: list[str]) -> None:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), ",".join(model_types), ",".join(checks)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, start_new_session=True,
        )  # fmt: skip
        self.pending = b""

    def report(self, limit: float) -> dict[str, Any] | None:
        """The next report; None at the end. Raises TimeoutError when none comes in time."""
        pipe = self.process.stdout.fileno()  # read without a buffer, or select() would not know of what is in it
        end = time.monotonic() + limit
        while b"\n" not in self.pending:
            if not select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                return None
            self.pending += chunk
        line, _, self.pending = self.pending.partition(b"\n")
        return json.loads(line)

    def end(self) -> int:
        """Wait for the process, or end it with its children, and give its status."""
        try:
            status = self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self.process.wait()
        self.process.stdout.close()
        return status

    def kill(self) -> None:
        """End the process and its children now."""
        os.killpg(self.process.pid, signal.SIGKILL)


def run(
    model_types: Iterable[str],
    checks: Iterable[str] = CHECKS,
    limit: float = 180.0,
    tell: Callable[[str], None] = lambda text: None,
    jobs: int = 1,
) -> Results:
    """Examine many types in as few processes as crashes allow.

    Parameters
    ----------
    model_types, checks
        What to examine.
    limit
        Seconds that one check of one type may take; the start of a process included.
    tell
        Called with a line of text after each check.
    jobs
        Number of processes at a time; each computes in one thread.

    Returns
    -------
    dict
        By type and check: ``outcome`` and ``seconds``. A crash and a time limit are outcomes, too.
    """
    model_types, checks = list(model_types), list(checks)
    parts = [model_types[start::jobs] for start in range(jobs)]
    with ThreadPoolExecutor(jobs) as pool:
        found: Results = {}
        for results in pool.map(lambda part: _run_in_turn(part, checks, limit, tell), parts):
            found |= results
    return {model_type: found[model_type] for model_type in model_types}


def _run_in_turn(model_types: list[str], checks: list[str], limit: float, tell: Callable[[str], None]) -> Results:
    wanted = [(model_type, check) for model_type in model_types for check in checks]
    results: Results = {model_type: {} for model_type, _ in wanted}

    def settle(model_type: str, check: str, outcome: str, seconds: float) -> None:
        results[model_type][check] = {"outcome": outcome, "seconds": seconds}
        wanted.remove((model_type, check))
        tell(f"{model_type}, {check}: {outcome} ({seconds:.1f} s)")

    while wanted:
        first = wanted[0][0]
        # A type that was broken off in the middle goes on with the checks that are left.
        left = [check for model_type, check in wanted if model_type == first]
        types = list(dict.fromkeys(model_type for model_type, _ in wanted)) if left == checks else [first]
        child = _Child(types, left)
        current, trouble, before = None, "", len(wanted)
        try:
            while (report := child.report(limit)) is not None:
                current = (report["type"], report["check"])
                if "outcome" in report:
                    settle(*current, report["outcome"], report["seconds"])
                    current = None
        except TimeoutError:
            trouble = f"no answer in {limit:.0f} s"
            child.kill()
        status = child.end()
        if current is None and wanted and (status != 0 or len(wanted) == before):
            current = wanted[0]
        if current is not None:
            settle(*current, trouble or f"crash, status {status}", limit)
    return results


def rates(results: Results) -> dict[str, tuple[int, int]]:
    """By check: how many types are equal, and how many the CPU can do."""
    counted = {}
    for check in CHECKS:
        outcomes = [found[check]["outcome"] for found in results.values() if check in found]
        possible = [outcome for outcome in outcomes if not outcome.startswith(NOT_HERE)]
        counted[check] = (sum(outcome == EQUAL for outcome in possible), len(possible))
    return counted


def table(results: Results) -> str:
    """The results as lines of text: one per type, the differences in words below, the sums last."""
    marks = {EQUAL: "equal"}
    lines = [f"{'model type':<28}{'eager':<10}{'static':<10}{'training':<10}"]
    notes = []
    for model_type, found in results.items():
        cells = []
        for check in CHECKS:
            outcome = found.get(check, {}).get("outcome", "")
            short = marks.get(outcome, "-" if outcome.startswith(NOT_HERE) or not outcome else "DIFFERS")
            cells.append(f"{short:<10}")
            if outcome and outcome != EQUAL:
                notes.append(f"  {model_type}, {check}: {outcome}")
        lines.append(f"{model_type:<28}{''.join(cells)}".rstrip())
    sums = [f"{check}: {equal} of {possible} equal" for check, (equal, possible) in rates(results).items()]
    return "\n".join([*lines, "", *notes, "", *sums])


if __name__ == "__main__":
    main(sys.argv[1].split(","), sys.argv[2].split(","))
