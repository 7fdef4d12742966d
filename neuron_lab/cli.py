"""The command ``neuron-lab``: reads the command line and hands over. The work is in the module of each subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from neuron_lab._version import __version__

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; those of the process if not given.

    Returns
    -------
    int
        The exit status: 0 good, 1 something failed, 2 wrong usage, 130 interrupted.

    Examples
    --------
    >>> from neuron_lab.cli import main
    >>> main(["doctor"])  # doctest: +SKIP
    0
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        return arguments.function(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`| head`). Nothing to say, and nowhere to say it.
        sys.stderr.close()
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neuron-lab", description="A workbook for PyTorch on AWS Trainium, on any machine."
    )
    parser.add_argument("--version", action="version", version=f"neuron-lab {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_doctor(commands)
    _add_run(commands)
    return parser


def _add_doctor(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check this machine, one line per requirement",
        description="One OK or FAIL line per requirement, with the mend. Exit status 1 if something failed.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(function=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from neuron_lab import doctor

    return doctor.main(as_json=arguments.json)


def _add_run(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "run",
        help="execute notebooks headlessly",
        description="Execute notebooks on the device at hand; every notebook of the workbook if none is named. "
        "Executed copies and HTML go to the output folder. Exit status 1 if a notebook failed.",
        epilog="Example: neuron-lab run notebooks/01_eager_tensors.ipynb -p seed 3",
    )
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="notebooks to execute, in this order")
    parser.add_argument(
        "-p",
        "--parameter",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="set a parameter in the notebooks that have it; may be repeated, and beats -f",
    )
    parser.add_argument(
        "-f", "--parameters-file", action="append", default=[], metavar="FILE", help="YAML file with parameters"
    )
    parser.add_argument("--out", default="build", metavar="DIR", help="output folder (default: build)")
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> int:
    from neuron_lab import runner

    return runner.main(
        arguments.notebooks,
        parameters=[tuple(pair) for pair in arguments.parameter],
        parameter_files=arguments.parameters_file,
        out=arguments.out,
    )


if __name__ == "__main__":
    sys.exit(main())
