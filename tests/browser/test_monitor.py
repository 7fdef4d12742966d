"""The live widget in a real JupyterLab."""

from __future__ import annotations

CELLS = [
    "import torch, neuron_lab as lab\nmonitor = lab.RecompileMonitor()\nmonitor",
    "def step(x):\n    return x * 2\n\nserve = torch.compile(step, backend='neuron', dynamic=False)\n"
    "for n in (2, 3, 4):\n    serve(torch.ones(n, device='neuron'))",
    "def decode(x, n):\n    return x * n\n\ngo = torch.compile(decode, backend='neuron', dynamic=False)\n"
    "for n in range(10):\n    go(torch.ones(2, device='neuron'), n)",
]


def rows(page) -> list[list[str]]:
    return page.evaluate(
        "() => [...document.querySelectorAll('.neuron-lab-monitor tbody tr')]"
        ".map(row => [...row.children].map(cell => cell.innerText))"
    )


def test_counts_filters_and_resets(open_notebook, picture):
    page = open_notebook("monitor.ipynb", CELLS)
    page.wait_for_function("() => document.querySelectorAll('.neuron-lab-monitor tbody tr').length === 2")
    step, decode = rows(page)
    assert step[:6] == ["step", "cell 2, line 1", "3", "2", "0", "compiled"]
    assert step[6] == "x.size(0): 3 -> 4" and "bucket" in step[7]
    assert decode[:6] == ["decode", "cell 3, line 1", "8", "7", "0", "EAGER"]
    cells = page.evaluate(
        "() => [...document.querySelectorAll('.neuron-lab-cells tbody tr')].map(row => row.innerText.split(/\\s+/))"
    )
    assert [[word for word in cell if word] for cell in cells] == [["cell", "2", "3"], ["cell", "3", "8"]]
    assert picture(page, "recompile_monitor").stat().st_size > 20_000

    page.get_by_placeholder("function, file or cause").fill("decode")
    page.wait_for_function("() => document.querySelectorAll('.neuron-lab-monitor tbody tr').length === 1")
    assert rows(page)[0][0] == "decode"

    page.get_by_role("button", name="Reset").click()
    page.get_by_text("Nothing has been compiled yet").first.wait_for()
    page.close()
