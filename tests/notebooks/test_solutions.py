"""The exercises: solutions pass, wrong answers raise, and an open gap says that it is still to do.

An exercise is run with those cells above it that it needs, found by the names that they define.
"""

from __future__ import annotations

import functools
import runpy

import lessons
import pytest

from neuron_lab.checks import CheckFailed

SOLUTIONS = {name: lessons.FOLDER.parent / "tests" / "notebooks" / "solutions" / f"{name}.py" for name in lessons.NAMES}
EXERCISES = [
    pytest.param(name, exercise, id=f"{name}-{exercise}")
    for name in lessons.NAMES
    for exercise in lessons.lesson(name).exercises()
]


@functools.cache
def solutions(name):
    return runpy.run_path(str(SOLUTIONS[name]))


@functools.cache
def prepared(name, exercise):
    """The namespace of a kernel in which the exercise's cell has just been run."""
    lesson = lessons.lesson(name)
    found = lesson.exercises()[exercise]
    sources = [cell.source for cell in (found.cell, *found.checks)]
    namespace = {"__name__": "__main__", "display": lambda figure: figure._repr_mimebundle_()}
    for cell in (*lesson.needed_by(sources, before=found.cell), found.cell):
        exec(compile(cell.source, f"{name}/{cell.id}", "exec"), namespace)
    return namespace, found


def run_checks(name, exercise, answer=None):
    namespace, found = prepared(name, exercise)
    namespace = dict(namespace)
    if answer is not None:
        namespace[exercise] = answer
    for cell in found.checks:
        exec(compile(cell.source, f"{name}/{cell.id}", "exec"), namespace)


def wrong_answers():
    for name in lessons.NAMES:
        for exercise, answers in solutions(name)["WRONG"].items():
            for answer in answers:
                yield pytest.param(name, exercise, answer, id=f"{name}-{exercise}-{answer.__name__}")


@pytest.mark.parametrize("name", lessons.NAMES)
def test_every_exercise_has_a_solution_and_wrong_answers(name):
    exercises = set(lessons.lesson(name).exercises())
    assert exercises <= set(solutions(name)), f"write the missing solutions into {SOLUTIONS[name].name}"
    assert exercises == set(solutions(name)["WRONG"]), "for each exercise, at least one wrong answer that it must catch"
    assert all(solutions(name)["WRONG"].values())


@pytest.mark.parametrize(("name", "exercise"), EXERCISES)
def test_the_solution_holds_on_every_rung(name, exercise, capsys):
    run_checks(name, exercise, solutions(name)[exercise])
    printed = capsys.readouterr().out
    assert "rungs hold" in printed
    assert "still to do" not in printed


@pytest.mark.parametrize(("name", "exercise"), EXERCISES)
def test_an_open_gap_says_so_and_stops_nothing(name, exercise, capsys):
    run_checks(name, exercise)
    printed = capsys.readouterr().out
    assert f"{exercise}: still to do" in printed
    assert "hold" not in printed


@pytest.mark.parametrize(("name", "exercise", "answer"), list(wrong_answers()))
def test_a_wrong_answer_raises(name, exercise, answer):
    with pytest.raises(CheckFailed):
        run_checks(name, exercise, answer)
