"""The rules for notebooks, each a test that prints how to mend what breaks it."""

from __future__ import annotations

import ast
import itertools
import json
import re
import statistics
import subprocess
import sys

import clean
import lessons
import nbformat
import pytest
import yaml

MEND = "Mend it: python tests/notebooks/clean.py"
TAGS = {"parameters", "setup", "copy", "exercise", "check"}
MEDIAN_LINES, MOST_LINES, PROMISE_WORDS = 10, 30, 120

MACHINE_PATH = re.compile(r"(?<![\w.])(?:/(?:home|Users|root|work|workspace|tmp|mnt|opt|content)/|~/|[A-Z]:\\)")
SHELL = re.compile(r"^\s*(?:!|%{1,2}(?:bash|sh|script|system|sx|cmd|pip|conda)\b|.*get_ipython\(\)\.(?:system|run_))")
PROGRESS_BAR = re.compile(r"\b(?:tqdm|trange|rich\.progress|FloatProgress|IntProgress)\b")
PYPLOT = re.compile(r"\bpyplot\b|\bplt\.")


@pytest.fixture(params=lessons.NAMES)
def lesson(request):
    return lessons.lesson(request.param)


def named(cell) -> str:
    """A cell in words, to find it by."""
    lines = "".join(cell["source"]).splitlines() or [""]  # in the raw file, a list of lines
    return f"cell {cell.get('id', 'without id')} ({lines[0][:50]!r})"


def none_of(problems, mend):
    """Fail with the list of what is wrong, and with how to mend it."""
    problems = list(problems)
    assert not problems, "\n  ".join(["", *problems, mend])


def prose_without_code(lesson):
    """Markdown cells without their fenced blocks and code spans."""
    for cell in lesson.prose:
        text = re.sub(r"^```.*?^```$", "", cell.source, flags=re.MULTILINE | re.DOTALL)
        yield cell, re.sub(r"`[^`]*`", "", text)


def test_there_are_lessons_and_their_numbers_are_the_reading_order():
    assert lessons.NAMES, "notebooks/ is empty"
    numbers = [int(name[:2]) for name in lessons.NAMES if re.fullmatch(r"\d\d_[a-z0-9_]+", name)]
    assert numbers == list(range(len(lessons.NAMES))), "name them NN_lower_case.ipynb, numbered from 00 without a hole"


class TestTheFile:
    def test_format_4_5_and_valid(self, lesson):
        found = (lesson.raw["nbformat"], lesson.raw["nbformat_minor"])
        assert found == (4, 5), f"format {found[0]}.{found[1]}. {MEND}"
        nbformat.validate(lesson.raw)

    def test_no_outputs_no_counts_no_widget_state(self, lesson):
        code = [cell for cell in lesson.raw["cells"] if cell["cell_type"] == "code"]
        none_of((f"{named(c)} has outputs" for c in code if c["outputs"]), MEND)
        none_of((f"{named(c)} has an execution count" for c in code if c["execution_count"] is not None), MEND)
        assert "widgets" not in lesson.raw["metadata"], MEND

    def test_every_cell_has_an_id_of_its_own(self, lesson):
        ids = [cell.get("id", "") for cell in lesson.raw["cells"]]
        none_of((f"{named(c)}" for c in lesson.raw["cells"] if not c.get("id")), f"Ids are missing. {MEND}")
        twice = {i for i in ids if ids.count(i) > 1}
        none_of((f"id {i} occurs {ids.count(i)} times" for i in twice), "Delete all but one of each, then clean.py")

    def test_the_file_is_in_the_form_in_which_jupyter_saves_it_and_its_ids_are_kept(self, lesson):
        assert clean.clean(lesson.text) == lesson.text, f"{lesson.path.name} is not clean. {MEND}"

    def test_the_kernel_is_python3_and_there_is_no_other_metadata(self, lesson):
        assert lesson.raw["metadata"] == clean.METADATA, MEND

    def test_cells_have_no_metadata_but_known_tags(self, lesson):
        other = ((named(c), set(c["metadata"]) - {"tags"}) for c in lesson.raw["cells"])
        none_of((f"{name}: {sorted(keys)}" for name, keys in other if keys), f"Only tags may stay. {MEND}")
        unknown = ((named(c), set(c["metadata"].get("tags", [])) - TAGS) for c in lesson.raw["cells"])
        none_of(
            (f"{name}: {sorted(found)}" for name, found in unknown if found),
            f"Known tags: {', '.join(sorted(TAGS))}. raises-exception and skip-execution are not among them: "
            "the runners disagree on them. Catch an expected error in Python and print it.",
        )


class TestParameters:
    def test_there_is_one_cell_of_them_right_after_the_title(self, lesson):
        places = [i for i, cell in enumerate(lesson.cells) if "parameters" in lessons.tags(cell)]
        assert places == [1], f"cells tagged `parameters`: {places}; tag the second cell of the notebook, and no other"

    def test_they_are_plain_literals_each_with_a_comment(self, lesson):
        (cell,) = lesson.tagged("parameters")
        for line in cell.source.splitlines():
            (node,) = ast.parse(line).body
            simple = isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
            assert simple, f"{line!r}: write `name = literal  # what it is`; derive anything else in the next cell"
            ast.literal_eval(node.value)
            assert re.search(r"  # \S", line), f"{line!r}: say what it is, in a comment on the line"

    def test_papermill_sees_exactly_these(self, lesson):
        from papermill.inspection import inspect_notebook

        (cell,) = lesson.tagged("parameters")
        written = [node.targets[0].id for node in ast.parse(cell.source).body]
        mend = "papermill cannot read this cell: write plain assignments, and no equals sign in a comment"
        assert list(inspect_notebook(lesson.path)) == written, mend

    def test_each_is_read_in_a_later_cell(self, lesson):
        (cell,) = lesson.tagged("parameters")
        read = set().union(*(lessons.names_read(c.source) for c in lesson.code[1:]))
        none_of(sorted(lessons.names_made(cell.source) - read), "Read below, or remove, these parameters")

    def test_those_for_hardware_belong_to_a_lesson_and_have_its_types(self):
        values = yaml.safe_load((lessons.FOLDER / "trn2.yaml").read_text())
        for name, value in values.items():
            defaults = [
                ast.literal_eval(node.value)
                for each in map(lessons.lesson, lessons.NAMES)
                for node in ast.parse(each.tagged("parameters")[0].source).body
                if node.targets[0].id == name
            ]
            assert defaults, f"trn2.yaml: no lesson has a parameter {name}"
            assert {type(default) for default in defaults} == {type(value)}, f"trn2.yaml: {name}: {value!r}"


class TestTheShape:
    def test_the_first_code_cell_after_the_parameters_is_the_set_up(self, lesson):
        first = lesson.code[1]
        assert "lab.setup()" in first.source, "the reader has to see the device before anything else: call lab.setup()"
        assert lesson.tagged("setup") == [first], "tag this cell, and no other, `setup`"

    def test_the_title_promises_in_few_words(self, lesson):
        words = len(lesson.cells[0].source.split())
        assert lesson.cells[0].cell_type == "markdown", "begin with a title"
        assert words < PROMISE_WORDS, f"title and promise have {words} words; {PROMISE_WORDS - 1} are the most"

    def test_one_h1_and_no_skipped_level(self, lesson):
        levels = []
        for cell, text in prose_without_code(lesson):
            for heading in re.finditer(r"^(#{1,6}) ", text, flags=re.MULTILINE):
                levels.append((len(heading[1]), named(cell)))
        assert levels[0][0] == 1 and [level for level, _ in levels].count(1) == 1, "exactly one H1, the title"
        steps = itertools.pairwise(levels)
        none_of((f"{cell}: H{a} then H{b}" for (a, _), (b, cell) in steps if b > a + 1), "Skip no heading level")

    def test_cells_are_short(self, lesson):
        sizes = {named(cell): len(cell.source.splitlines()) for cell in lesson.code}
        none_of(
            (f"{n}: {size} lines" for n, size in sizes.items() if size > MOST_LINES), f"Most: {MOST_LINES}. Split it"
        )
        assert statistics.median(sizes.values()) <= MEDIAN_LINES, f"the median cell has more than {MEDIAN_LINES} lines"

    def test_it_has_the_parts_of_a_lesson(self, lesson):
        text = "\n".join(cell.source for cell in lesson.prose)
        for part in ("**Predict:**", "> **On a Trainium**", "## Exercises", "## What you saw"):
            assert part in text, f"a lesson has a part {part!r}"
        assert lesson.tagged("copy"), "a lesson has a cell to take home, tagged `copy`"
        assert any("assert " in cell.source for cell in lesson.code), "a lesson asserts what it claims"

    def test_exercises_have_a_task_a_reference_a_gap_and_a_check(self, lesson):
        exercises = lesson.exercises()
        assert 2 <= len(exercises) <= 4, "two to four exercises"
        for name, exercise in exercises.items():
            assert f"def {name}_reference(" in exercise.cell.source, f"{name}: give a plain reference, {name}_reference"
            checks = "\n".join(cell.source for cell in exercise.checks)
            assert f"lab.checks.check({name}," in checks, f"{name}: check it with lab.checks.check"
            above = lesson.cells[lesson.cells.index(exercise.cell) - 1]
            assert "**Task:**" in above.source, f"{name}: say the task in the cell above"
            solved = "lab.plots." in checks or "lab.checks.Score" in checks or "print(" in checks
            assert solved, f"{name}: show a picture or a score"


class TestTheContent:
    def test_images_have_an_alternative_text(self, lesson):
        for cell, text in prose_without_code(lesson):
            none_of(
                (named(cell) for _ in re.finditer(r"!\[\s*\]\(", text)), "Describe the image: ![what one sees](...)"
            )
            none_of((named(cell) for tag in re.findall(r"<img[^>]*>", text) if "alt=" not in tag), "Give it an alt=")
        none_of(
            (named(cell) for cell in lesson.code if PYPLOT.search(cell.source)),
            "Draw with lab.plots: a bare matplotlib figure has no alternative text and no label of its source",
        )

    def test_there_are_no_paths_of_a_machine(self, lesson):
        for cell in lesson.cells:
            found = [match[0] for match in MACHINE_PATH.finditer(cell.source)]
            assert not found, f"{named(cell)}: {found}. Find files through the package, and name none of your machine's"

    def test_nothing_leaves_the_notebook_early(self, lesson):
        for cell in lesson.code:
            found = re.findall(r"\bSystemExit\b|\b(?:sys\.|os\._)?exit\(|\bquit\(", cell.source)
            assert not found, f"{named(cell)}: {found}. papermill calls that success: print the reason and go on"

    def test_there_are_no_shell_magics(self, lesson):
        for cell in lesson.code:
            found = [line for line in cell.source.splitlines() if SHELL.match(line)]
            assert not found, f"{named(cell)}: {found}. A shell line that fails leaves the notebook green"

    def test_there_are_no_progress_bars(self, lesson):
        none_of(
            (named(cell) for cell in lesson.code if PROGRESS_BAR.search(cell.source)),
            "A bar leaves one output per update in a headless run: show the result instead",
        )

    def test_links_lead_somewhere(self, lesson):
        for cell, text in prose_without_code(lesson):
            for target in re.findall(r"\]\((?!https?://|#)([^)]+)\)", text):
                exists = (lesson.path.parent / target.partition("#")[0]).exists()
                assert exists, f"{named(cell)}: the link to {target} leads nowhere"

    def test_the_voice(self, lesson):
        loud = re.compile(r"!(?!\[)|\b(?:simply|powerful|easily|awesome|blazing)\b", flags=re.IGNORECASE)
        for cell, text in prose_without_code(lesson):
            found = loud.findall(text)
            assert not found, f"{named(cell)}: {found}. Say the thing, then show it"


def test_ruff():
    for command in (["check"], ["format", "--check"]):
        answer = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--quiet", "notebooks"],
            cwd=lessons.ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        said = answer.stdout + answer.stderr
        assert answer.returncode == 0, f"{said}\nMend it: ruff check --fix notebooks && ruff format notebooks"


def breach(text, *, cell=None, prose=None, **changes):
    """A notebook's text with something wrong: a cell appended, or keys of the set-up cell changed."""
    raw = json.loads(text)
    if cell is not None:
        raw["cells"].append(
            {"cell_type": "code", "execution_count": None, "id": "0", "metadata": {}, "outputs": [], "source": cell}
        )
    if prose is not None:
        raw["cells"].append({"cell_type": "markdown", "id": "0", "metadata": {}, "source": prose})
    raw["cells"][2] |= changes
    return json.dumps(raw, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


BREACHES = {
    "an output": (TestTheFile.test_no_outputs_no_counts_no_widget_state, {"outputs": [{"output_type": "stream"}]}),
    "a count": (TestTheFile.test_no_outputs_no_counts_no_widget_state, {"execution_count": 3}),
    "no id": (TestTheFile.test_every_cell_has_an_id_of_its_own, {"id": ""}),
    "an id twice": (TestTheFile.test_every_cell_has_an_id_of_its_own, {"cell": "1", "prose": "x"}),
    "metadata": (TestTheFile.test_cells_have_no_metadata_but_known_tags, {"metadata": {"scrolled": True}}),
    "a forbidden tag": (
        TestTheFile.test_cells_have_no_metadata_but_known_tags,
        {"metadata": {"tags": ["raises-exception"]}},
    ),
    "no set-up": (TestTheShape.test_the_first_code_cell_after_the_parameters_is_the_set_up, {"source": "import torch"}),
    "a second H1": (TestTheShape.test_one_h1_and_no_skipped_level, {"prose": "# Again"}),
    "a skipped level": (TestTheShape.test_one_h1_and_no_skipped_level, {"prose": "#### Deep"}),
    "a long cell": (TestTheShape.test_cells_are_short, {"cell": "x = 1\n" * 31}),
    "no description": (TestTheContent.test_images_have_an_alternative_text, {"prose": "![](x.png)"}),
    "no alt": (TestTheContent.test_images_have_an_alternative_text, {"prose": '<img src="x.png">'}),
    "pyplot": (TestTheContent.test_images_have_an_alternative_text, {"cell": "import matplotlib.pyplot as plt"}),
    "a path": (TestTheContent.test_there_are_no_paths_of_a_machine, {"cell": "open('/home/me/data.csv')"}),
    "an exit": (TestTheContent.test_nothing_leaves_the_notebook_early, {"cell": "import sys\nsys.exit(0)"}),
    "a shell line": (TestTheContent.test_there_are_no_shell_magics, {"cell": "!pip install torch"}),
    "a shell cell": (TestTheContent.test_there_are_no_shell_magics, {"cell": "%%bash\nls"}),
    "a bar": (TestTheContent.test_there_are_no_progress_bars, {"cell": "from tqdm.auto import tqdm"}),
    "a dead link": (TestTheContent.test_links_lead_somewhere, {"prose": "[next](99_nowhere.ipynb)"}),
    "a loud voice": (TestTheContent.test_the_voice, {"prose": "It just works!"}),
}


@pytest.mark.parametrize("what", BREACHES)
def test_each_rule_catches_its_breach(what, tmp_path):
    rule, wrong = BREACHES[what]
    original = lessons.lesson(lessons.NAMES[0])
    for name in lessons.NAMES:
        (tmp_path / f"{name}.ipynb").write_text(original.text)  # what its links lead to
    good, bad = tmp_path / original.path.name, tmp_path / "bad.ipynb"
    bad.write_text(breach(original.text, **wrong))
    rule(None, lessons.Lesson(good))
    with pytest.raises(AssertionError):
        rule(None, lessons.Lesson(bad))


class TestClean:
    """The mend mends."""

    def test_a_notebook_after_a_run_comes_back(self):
        original = lessons.lesson(lessons.NAMES[0])
        node = nbformat.reads(original.text, as_version=4)
        node.metadata["widgets"] = {"state": {}}
        node.metadata["language_info"]["version"] = "3.11"
        node.metadata["papermill"] = {"duration": 1}
        for count, cell in enumerate(node.cells):
            cell.metadata["papermill"] = {"duration": 1}
            cell.metadata["jp-MarkdownHeadingCollapsed"] = True
            if cell.cell_type == "code":
                cell.execution_count = count
                cell.outputs = [nbformat.v4.new_output("stream", text="x")]
        assert clean.clean(nbformat.writes(node)) == original.text

    def test_missing_ids_are_given_and_others_kept(self):
        original = lessons.lesson(lessons.NAMES[0])
        node = nbformat.reads(original.text, as_version=4)
        kept = [cell.id for cell in node.cells[1:]]
        del node.cells[0]["id"]
        with pytest.warns(nbformat.validator.MissingIDFieldWarning):
            mended = nbformat.reads(clean.clean(nbformat.writes(node)), as_version=4)
        assert [cell.id for cell in mended.cells[1:]] == kept
        assert mended.cells[0].id
