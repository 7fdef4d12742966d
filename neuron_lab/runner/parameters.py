"""The parameters of a run, checked before anything runs.

papermill injects whatever it is given: a misspelt name, a name that no later cell reads, a string where the notebook
counts. Here each of these is an error that names what exists. A name goes to those notebooks that have it.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_lab.runner.errors import UsageError
from neuron_lab.runner.notebooks import Source, read, workbook

__all__ = ["Given", "Parameter", "assign", "declared", "gather"]

_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Given:
    """A value and where it came from: ``-p`` or a file."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Parameter:
    """A parameter as a notebook declares it.

    Attributes
    ----------
    name : str
        Its name.
    default : object
        Its default.
    literal : bool
        Whether the default is a literal, so that its type is known.
    is_read : bool
        Whether a later cell uses it.
    """

    name: str
    default: Any
    literal: bool
    is_read: bool


def gather(pairs: Sequence[tuple[str, str]], files: Sequence[str | Path]) -> dict[str, Given]:
    """Read the values of the command line. Later files beat earlier ones, and ``-p`` beats files.

    Raises
    ------
    UsageError
        A file cannot be read, or is not a mapping of names to values.

    Examples
    --------
    >>> gather([("steps", "3")], [])
    {'steps': Given(value=3, origin='-p')}
    """
    from papermill.cli import _resolve_type

    given: dict[str, Given] = {}
    for file in files:
        given |= {name: Given(value, str(file)) for name, value in _read_yaml(Path(file)).items()}
    given |= {name: Given(_resolve_type(text), "-p") for name, text in pairs}
    return given


def assign(sources: Sequence[Source], given: Mapping[str, Given]) -> dict[Path, dict[str, Any]]:
    """Decide which notebook gets which value.

    Parameters
    ----------
    sources : sequence of Source
        The notebooks of this run.
    given : mapping of str to Given
        What the command gave.

    Returns
    -------
    dict of Path to dict
        For each notebook, the values to inject.

    Raises
    ------
    UsageError
        No notebook reads a name, or a value has another type than the notebook's default. A name from a file may
        belong to a notebook of the workbook that is not part of this run: one file serves them all.
    """
    known = {source.path: declared(source) for source in sources}
    for name, value in given.items():
        owners = [parameters[name] for parameters in known.values() if name in parameters]
        if not owners and value.origin != "-p" and name in _names_elsewhere(sources):
            continue
        if not owners:
            raise UsageError(_unknown(name, value, known))
        if not any(owner.is_read for owner in owners):
            raise UsageError(
                f"no cell reads the parameter {name}: it is declared, and never used after. "
                "Remove it from the notebook, or use it"
            )
    return {
        path: {name: _checked(path, parameters[name], value) for name, value in given.items() if name in parameters}
        for path, parameters in known.items()
    }


def declared(source: Source) -> dict[str, Parameter]:
    """The parameters of one notebook, from its cell tagged ``parameters``."""
    from papermill.inspection import inspect_notebook

    # papermill fills in metadata as it reads, and takes a node as well as a path: give it a path.
    found = inspect_notebook(source.path)
    index = next((i for i, cell in enumerate(source.node.cells) if "parameters" in cell.metadata.get("tags", [])), None)
    if index is None:
        return {}
    used = set().union(*(_names_read(cell.source) for cell in source.node.cells[index + 1 :] if _is_code(cell)))
    parameters = {}
    for name, facts in found.items():
        try:
            default, literal = ast.literal_eval(facts["default"]), True
        except (ValueError, SyntaxError):
            default, literal = facts["default"], False
        parameters[name] = Parameter(name, default, literal, name in used)
    return parameters


def _is_code(cell: Any) -> bool:
    return cell.cell_type == "code"


def _names_read(source: str) -> set[str]:
    """Every name that a cell reads. Magics count by the words in them: their text may be filled in from names."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        tree = ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError:
        return set(_WORD.findall(source))
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("run_cell_magic", "run_line_magic", "system"):
            for text in (a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)):
                names.update(_WORD.findall(text))
    return names


def _names_elsewhere(sources: Sequence[Source]) -> set[str]:
    """Names that notebooks outside this run read: the workbook's, and those beside the run's own."""
    inside = {source.path.resolve() for source in sources}
    around = {path.resolve() for path in workbook()}
    around |= {path for folder in {p.parent for p in inside} for path in folder.glob("*.ipynb")}
    names: set[str] = set()
    for path in around - inside:
        try:
            names |= {p.name for p in declared(read(path)).values() if p.is_read}
        except UsageError:
            continue  # a broken notebook that is not part of this run
    return names


def _unknown(name: str, given: Given, known: Mapping[Path, Mapping[str, Parameter]]) -> str:
    all_names = sorted({n for parameters in known.values() for n in parameters})
    where = "" if given.origin == "-p" else f" (from {given.origin})"
    if not all_names:
        return f"no notebook of this run has a parameter {name}{where}: they have none at all"
    close = difflib.get_close_matches(name, all_names, n=1)
    guess = f" Did you mean {close[0]}?" if close else ""
    lines = "".join(
        f"\n  {path}: {', '.join(f'{p.name}={p.default!r}' for p in parameters.values())}"
        for path, parameters in known.items()
        if parameters
    )
    return f"no notebook of this run has a parameter {name}{where}.{guess} These exist:{lines}"


def _checked(path: Path, parameter: Parameter, given: Given) -> Any:
    value, default = given.value, parameter.default
    if not parameter.literal or default is None:
        return value
    if type(default) is float and type(value) is int:
        return float(value)
    if type(default) is tuple and type(value) is list:
        return value  # YAML has no tuples, and papermill injects lists
    if type(value) is type(default):
        return value
    hint = ""
    if given.origin == "-p" and isinstance(default, (str, list, tuple, dict)):
        example = f'"{value}"' if isinstance(default, str) else default if isinstance(default, dict) else list(default)
        hint = f". Write `{parameter.name}: {example}` into a YAML file, and give that with -f"
    raise UsageError(
        f"parameter {parameter.name} of {path} takes {_article(default)}, such as {default!r}; "
        f"{given.origin} gives {value!r}, {_article(value)}{hint}"
    )


def _article(value: Any) -> str:
    words = {
        bool: "True or False",
        int: "an integer",
        float: "a float",
        str: "a text",
        list: "a list",
        tuple: "a list",
        dict: "a mapping",
        type(None): "nothing",
    }
    return words.get(type(value), f"a {type(value).__name__}")


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml
    from papermill.iorw import NoDatesSafeLoader

    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=NoDatesSafeLoader)  # a safe loader
    except OSError as error:
        raise UsageError(f"cannot read the parameter file {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"the parameter file {path} is not YAML: {' '.join(str(error).split())}") from None
    content = {} if content is None else content
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise UsageError(f"the parameter file {path} must map names to values, as in `steps: 100`")
    return content
