"""Thirty short programs that compile more than once, for one reason or another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

ones = torch.ones


def _compiled(function, **options):
    return torch.compile(function, **{"backend": "eager", "dynamic": False, **options})


def _calls(function: Callable, *arguments: tuple, **options) -> Callable[[], None]:
    def run() -> None:
        compiled = _compiled(function, **options)
        for given in arguments:
            compiled(*given)

    return run


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(2, 2), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * self.calls


class Config:
    def __init__(self, scale):
        self.scale = scale


SCALE = 1


def _module_mode() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    compiled = _compiled(model)
    compiled(ones(2))
    model.eval()
    compiled(ones(2))


def _module_counter() -> None:
    compiled = _compiled(Counting())
    for _ in range(3):
        compiled(ones(2))


def _grad_mode() -> None:
    compiled = _compiled(lambda x: x + 1)
    compiled(ones(2))
    with torch.no_grad():
        compiled(ones(2))


def _autocast() -> None:
    compiled = _compiled(lambda x: x @ x)
    compiled(ones(2, 2))
    with torch.autocast("cpu"):
        compiled(ones(2, 2))


def _global() -> None:
    global SCALE
    compiled = _compiled(lambda x: x * SCALE)
    for value in (1, 2, 3):
        SCALE = value
        compiled(ones(2))


def _closure() -> None:
    factor = 1.0
    compiled = _compiled(lambda x: x * factor)
    for value in (1.0, 2.0):
        factor = value
        compiled(ones(2))


def _learning_rate() -> None:
    parameter = nn.Parameter(ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    step = _compiled(optimizer.step)
    for rate in (0.1, 0.2, 0.3):
        parameter.grad = ones(2)
        optimizer.param_groups[0]["lr"] = rate
        step()


def _backends() -> None:
    def function(x):
        return x + 1

    for backend in ("eager", "aot_eager"):
        _compiled(function, backend=backend)(ones(2))


def _options() -> None:
    def function(x):
        return x + 1

    for name in ("one", "other"):
        _compiled(function, backend="neuron", options={"model_name": name})(ones(2, device="neuron"))


def _print_inside() -> None:
    def function(x):
        y = x + 1
        print(end="")
        return y * 2

    compiled = _compiled(function)
    for n in (2, 3):
        compiled(ones(n))


def _branch_on_value() -> None:
    def function(x):
        if x.sum() > 0:
            return x * 2
        return x - 1

    compiled = _compiled(function)
    for n in (2, 3):
        compiled(ones(n))
        compiled(-ones(n))


def _training() -> None:
    model = nn.Linear(4, 4)
    compiled = _compiled(model, backend="aot_eager")
    for rows in (8, 8, 3):
        compiled(ones(rows, 4)).sum().backward()


def _on_the_device() -> None:
    compiled = _compiled(nn.Linear(4, 4).to("neuron"), backend="neuron")
    for rows in (8, 3):
        compiled(ones(rows, 4, device="neuron")).sum().backward()


def _moved() -> None:
    model = nn.Linear(2, 2)
    compiled = _compiled(model)
    compiled(ones(2))
    model.to("neuron")
    compiled(ones(2, device="neuron"))


#: Name -> (program, kind of cause of its first recompile).
PROGRAMS: dict[str, tuple[Callable[[], None], str]] = {
    "lengths": (_calls(lambda x: x + 1, *[(ones(n),) for n in (2, 3, 4)]), "size"),
    "second dimension": (_calls(lambda x: x + 1, (ones(2, 3),), (ones(2, 4),)), "size"),
    "automatic dynamic": (_calls(lambda x: x + 1, *[(ones(n),) for n in (2, 3, 4, 5)], dynamic=None), "size"),
    "dynamic": (_calls(lambda x: x + 1, (ones(2),), (ones(3),), (ones(2, 2),), dynamic=True), "rank"),
    "rank": (_calls(lambda x: x + 1, (ones(2),), (ones(2, 2),)), "rank"),
    "dtype": (_calls(lambda x: x + 1, (ones(2),), (ones(2).bfloat16(),)), "dtype"),
    "stride": (_calls(lambda x: x + 1, (ones(2, 3),), (ones(3, 2).t(),)), "stride"),
    "gradient": (_calls(lambda x: x + 1, (ones(2),), (ones(2, requires_grad=True),)), "requires_grad"),
    "device": (_calls(lambda x: x + 1, (ones(2),), (ones(2, device="neuron"),)), "device"),
    "integer": (_calls(lambda x, n: x * n, *[(ones(2), n) for n in (2, 3, 4)]), "value"),
    "float": (_calls(lambda x, n: x * n, (ones(2), 1.5), (ones(2), 2.5)), "value"),
    "text": (_calls(lambda x, n: x * 2 if n == "a" else x + 1, (ones(2), "a"), (ones(2), "b")), "value"),
    "flag": (_calls(lambda x, n: x * 2 if n else x + 1, (ones(2), True), (ones(2), False)), "value"),
    "none": (_calls(lambda x, y: x if y is None else x + y, (ones(2) + 1, ones(2)), (ones(2), None)), "missing"),
    "none first": (_calls(lambda x, y: x * 2 if y is None else x + y, (ones(2), None), (ones(2), ones(2))), "missing"),
    "list": (_calls(lambda xs: sum(xs), ([ones(2)],), ([ones(2)] * 2,)), "length"),
    "dictionary": (
        _calls(lambda d: sum(d.values()), ({"a": ones(2)},), ({"a": ones(2), "b": ones(2)},)),
        "length",
    ),
    "attribute": (_calls(lambda x, c: x * c.scale, (ones(2), Config(1)), (ones(2), Config(2))), "value"),
    "function": (_calls(lambda x, f: f(x), (ones(2), torch.sin), (ones(2), torch.cos)), "object"),
    "limit": (_calls(lambda x, n: x * n, *[(ones(2), n) for n in range(2, 14)]), "value"),
    "module mode": (_module_mode, "training"),
    "module counter": (_module_counter, "value"),
    "grad mode": (_grad_mode, "global state"),
    "autocast": (_autocast, "global state"),
    "global": (_global, "value"),
    "closure": (_closure, "value"),
    "learning rate": (_learning_rate, "value"),
    "backends": (_backends, "backend"),
    "options": (_options, "backend"),
    "print": (_print_inside, "size"),
    "branch on a value": (_branch_on_value, "size"),
    "training": (_training, "size"),
    "on the device": (_on_the_device, "size"),
    "moved": (_moved, "device"),
}
