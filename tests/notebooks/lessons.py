"""Reading the lessons: the notebooks, their cells by tag, and the cells that a cell needs. Runs nothing by itself."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.stem for path in PATHS]


@dataclass(frozen=True)
class Lesson:
    """One notebook.

    Attributes
    ----------
    path : pathlib.Path
        Where it lies.
    """

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def raw(self) -> dict[str, Any]:
        """The notebook as JSON, before nbformat has had a chance to mend it."""
        return json.loads(self.text)

    @cached_property
    def cells(self) -> list[Any]:
        return nbformat.reads(self.text, as_version=4).cells

    @property
    def code(self) -> list[Any]:
        return [cell for cell in self.cells if cell.cell_type == "code"]

    @property
    def prose(self) -> list[Any]:
        return [cell for cell in self.cells if cell.cell_type == "markdown"]

    def tagged(self, tag: str) -> list[Any]:
        return [cell for cell in self.cells if tag in tags(cell)]

    def exercises(self) -> dict[str, Exercise]:
        """The exercises by the name of the function to write."""
        found: dict[str, Exercise] = {}
        for cell in self.code:
            if "exercise" in tags(cell):
                (gap,) = gaps(cell.source)
                found[gap] = Exercise(gap, cell, [])
            elif "check" in tags(cell):
                list(found.values())[-1].checks.append(cell)
        return found

    def needed_by(self, sources: list[str], before: Any) -> list[Any]:
        """The cells above ``before`` that define, directly or by way of others, the names that the sources read."""
        above = [cell for cell in self.code[: self.code.index(before)] if "check" not in tags(cell)]
        needed: list[Any] = []
        missing = names_read("\n".join(sources))
        for cell in reversed(above):
            made = names_made(cell.source)
            if made & missing:
                needed.insert(0, cell)
                missing = (missing - made) | names_read(cell.source)
        return needed


@dataclass(frozen=True)
class Exercise:
    """A cell with a gap, and the cells that check and draw."""

    name: str
    cell: Any
    checks: list[Any]


def lesson(name: str) -> Lesson:
    return Lesson(FOLDER / f"{name}.ipynb")


def tags(cell: Any) -> list[str]:
    return cell.metadata.get("tags", [])


def names_read(source: str) -> set[str]:
    """Names that a cell takes from outside itself."""
    tree = ast.parse(source)
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    bound_inside = {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    return read - bound_inside - (names_made(source) - _read_before_made(tree))


def names_made(source: str) -> set[str]:
    """Names that a cell leaves behind: assignments, functions, classes and imports at its top level."""
    made: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            made |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            made.add(node.id)
    return made


def gaps(source: str) -> list[str]:
    """Functions of a cell that raise NotImplementedError."""
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(n, ast.Raise) and "NotImplementedError" in ast.unparse(n) for n in ast.walk(node))
    ]


def _read_before_made(tree: ast.Module) -> set[str]:
    """Names that a top-level statement reads before an earlier one of the same cell has made them."""
    made: set[str] = set()
    early: set[str] = set()
    for statement in tree.body:
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            loads = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
            early |= {n.id for n in loads if isinstance(n.ctx, ast.Load)} - made
        made |= names_made(ast.unparse(statement))
    return early
