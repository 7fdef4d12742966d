"""Mend what a machine can mend in saved notebooks: ``python tests/notebooks/clean.py [NOTEBOOK ...]``.

Drops outputs, execution counts, widget state and every metadata key that is not on the short list. Gives ids to cells
that lack one and keeps those that are there. Writes the file in nbformat's own form. Without arguments, all lessons.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat.corpus.words import generate_corpus_id

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def clean(text: str) -> str:
    """A notebook's text, mended.

    Parameters
    ----------
    text : str
        The file's content.

    Returns
    -------
    str
        What the file should be. Cleaning it again changes nothing.

    Examples
    --------
    >>> clean(clean(text)) == clean(text)  # doctest: +SKIP
    True
    """
    node = nbformat.reads(text, as_version=4)
    node.nbformat, node.nbformat_minor = 4, 5
    node.metadata = nbformat.from_dict(METADATA)
    for cell in node.cells:
        cell.metadata = nbformat.from_dict({"tags": cell.metadata.tags} if cell.metadata.get("tags") else {})
        cell.setdefault("id", generate_corpus_id())
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        else:
            cell.pop("attachments", None)
    return nbformat.writes(node) + "\n"


def main(arguments: Sequence[str]) -> int:
    folder = Path(__file__).parents[2] / "notebooks"
    for path in [Path(a) for a in arguments] or sorted(folder.glob("*.ipynb")):
        before = path.read_text(encoding="utf-8")
        after = clean(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"cleaned {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
