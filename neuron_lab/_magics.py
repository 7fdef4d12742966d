"""The IPython extension: ``%load_ext neuron_lab`` brings the cell magics.

IPython is imported here and nowhere else, and this module only when the extension is loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Iterator
from typing import NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.display import display

from neuron_lab.recompiles import count_recompiles

__all__ = ["NeuronLabMagics", "load"]


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as IPython does, instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%recompiles: {message}. {self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise UsageError((message or self.format_usage()).strip())


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="%%recompiles", add_help=False, allow_abbrev=False)
    parser.add_argument("--label", default="", metavar="L", help="name of the report, and phase in counters around it")
    parser.add_argument("--expect", type=int, metavar="N", help="fail unless exactly N graphs were compiled")
    return parser


@contextlib.contextmanager
def _errors_unseen(shell: InteractiveShell) -> Iterator[None]:
    """A nested cell's traceback is shown once, by the cell around it."""
    names = ("showtraceback", "showsyntaxerror", "showindentationerror")
    for name in names:
        setattr(shell, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name in names:
            delattr(shell, name)


@magics_class
class NeuronLabMagics(Magics):
    """Cell magics of neuron-lab."""

    @cell_magic
    def recompiles(self, line: str, cell: str) -> None:
        """Run a cell and show what ``torch.compile`` compiled in it.

        An error of the cell is raised again, after the report.
        """
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"%%recompiles: {error} in {line!r}. Close the quotation mark.") from None
        options = _parser().parse_args(words)
        if options.expect is not None and options.expect < 0:
            raise UsageError(f"%%recompiles: --expect takes a count, 0 or more, got {options.expect}.")
        with count_recompiles(label=options.label) as seen, _errors_unseen(self.shell):
            result = self.shell.run_cell(cell if cell.lstrip().startswith("%%") else f"#\n{cell}")  # keeps line numbers
        display(seen)
        result.raise_error()  # without this, Run All and papermill would go on
        if options.expect is not None:
            seen.expect(compiles=options.expect)


NeuronLabMagics.recompiles.__doc__ += "\n" + _parser().format_help()


def load(shell: InteractiveShell) -> None:
    """Register the magics with a running IPython."""
    shell.register_magics(NeuronLabMagics)
