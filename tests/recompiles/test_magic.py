"""``%%recompiles`` in plain IPython, without a notebook."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("IPython")

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output


@pytest.fixture(scope="module")
def shell():
    made = InteractiveShell.instance()
    made.run_line_magic("colors", "nocolor")
    made.run_line_magic("load_ext", "neuron_lab")
    made.run_cell("import torch\nstep = torch.compile(lambda x: x + 1, backend='eager', dynamic=False)")
    yield made
    InteractiveShell.clear_instance()


def run(shell, cell):
    with capture_output() as shown:
        result = shell.run_cell(cell)
    return result, shown


def text(shown) -> str:
    return shown.stdout + "".join(output.data.get("text/plain", "") for output in shown.outputs)


def test_shows_what_the_cell_compiled(shell):
    result, shown = run(shell, "%%recompiles --label 'two lengths'\nfor n in (2, 3): step(torch.ones(n))")
    assert result.success and "two lengths: 2 compiles, 1 recompile" in text(shown)
    assert "x.size(0): 2 -> 3" in text(shown)


def test_names_the_cell_and_line_of_a_function(shell):
    cell = (
        "%%recompiles\n\ndef double(x):\n    return x * 2\n\n_ = torch.compile(double, backend='eager')(torch.ones(2))"
    )
    result, shown = run(shell, cell)
    assert result.success and f"cell {shell.execution_count}, line 3" in text(shown)


def test_assigns_in_the_notebooks_namespace_and_shows_the_last_value(shell):
    result, shown = run(shell, "%%recompiles\nanswer = 42\nanswer")
    assert result.success and shell.user_ns["answer"] == 42 and "42" in text(shown)


def test_raises_what_the_cell_raised_after_the_report(shell):
    result, shown = run(shell, "%%recompiles\nstep(torch.ones(9))\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert "1 compile" in text(shown) and text(shown).count("ZeroDivisionError: ") == 1
    assert "showtraceback" not in vars(shell)


def test_a_syntax_error_is_one(shell):
    result, _ = run(shell, "%%recompiles\nx = = 1")
    assert isinstance(result.error_in_exec, SyntaxError)


def test_expect(shell):
    torch._dynamo.reset()
    result, _ = run(shell, "%%recompiles --expect 1\n_ = step(torch.ones(5))")
    assert result.success
    result, shown = run(shell, "%%recompiles --expect 0\n_ = step(torch.ones(6))")
    assert isinstance(result.error_in_exec, AssertionError) and "compiles 1, expected 0" in text(shown)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--expcet 1", "unrecognized arguments: --expcet 1"),
        ("--expect many", "invalid int value: 'many'"),
        ("--expect -1", "0 or more, got -1"),
        ("--label 'open", "Close the quotation mark"),
    ],
)
def test_bad_options_run_nothing(shell, line, told):
    shell.user_ns.pop("ran", None)
    result, shown = run(shell, f"%%recompiles {line}\nran = True")
    assert not result.success and told in text(shown) + str(result.error_in_exec)
    assert "ran" not in shell.user_ns
