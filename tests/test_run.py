"""neuron-lab run: what becomes of good notebooks, bad ones, wrong commands and interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from neuron_lab import runner
from neuron_lab.runner import notebooks, parameters, places
from neuron_lab.runner.errors import UsageError

PARAMETERS = "steps = 2  # how many\nname = 'x'\nrate = 0.5\nsizes = [1, 2]\nmagic = 1\nunread = 3"


def write(path: Path, *cells: str, kernel: str = "python3", declare: str = "") -> Path:
    """Write a notebook of code cells; ``declare`` is its cell of parameters."""
    node = nbformat.v4.new_notebook()
    node.metadata = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    node.cells = [nbformat.v4.new_markdown_cell(f"# {path.stem}")]
    if declare:
        node.cells.append(nbformat.v4.new_code_cell(declare, metadata={"tags": ["parameters"]}))
    node.cells += [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(node, path)
    return path


def outputs(path: Path) -> str:
    """Everything that the cells of a notebook printed."""
    node = nbformat.read(path, as_version=4)
    cells = [cell for cell in node.cells if cell.cell_type == "code"]
    return "".join(output.get("text", "") for cell in cells for output in cell.outputs)


@pytest.fixture
def lesson(tmp_path):
    reads = "print(steps, name, rate, sizes)"
    return write(tmp_path / "lesson.ipynb", reads, "%env TOLD={magic}", declare=PARAMETERS)


def run(*arguments, out, **options):
    return runner.main([str(a) for a in arguments], out=out, **options)


class TestGood:
    def test_it_leaves_an_executed_copy_a_page_and_a_table(self, lesson, tmp_path, capsys):
        before = lesson.read_text()
        assert run(lesson, out=tmp_path / "build") == 0
        assert "2 x 0.5 [1, 2]" in outputs(tmp_path / "build" / "lesson.ipynb")
        page = (tmp_path / "build" / "lesson.html").read_text()
        assert "<title>lesson</title>" in page and "2 x 0.5 [1, 2]" in page
        assert lesson.read_text() == before
        printed = capsys.readouterr().out
        assert "lesson    passed          3 of 3" in printed
        assert "1 passed, 0 failed" in printed
        assert not [p for p in (tmp_path / "build").iterdir() if p.name.startswith(".")]

    def test_parameters_reach_the_notebooks_that_have_them(self, lesson, tmp_path):
        other = write(tmp_path / "other.ipynb", "print('steps' in globals(), seed)", declare="seed = 1")
        values = tmp_path / "values.yaml"
        values.write_text("steps: 5\nseed: 8\nsizes: [7]\n")
        status = run(
            lesson, other, out=tmp_path / "b", parameters=[("steps", "9"), ("rate", "1")], parameter_files=[values]
        )
        assert status == 0
        assert "9 x 1.0 [7]" in outputs(tmp_path / "b" / "lesson.ipynb")
        assert "False 8" in outputs(tmp_path / "b" / "other.ipynb")

    def test_the_kernel_is_this_python_whatever_the_machine_calls_python3(self, tmp_path, monkeypatch):
        spec = tmp_path / "jupyter" / "kernels" / "python3"
        spec.mkdir(parents=True)
        content = {"argv": ["/nonexistent/python", "{connection_file}"], "display_name": "x", "language": "python"}
        (spec / "kernel.json").write_text(json.dumps(content))
        monkeypatch.setenv(
            "JUPYTER_PATH", os.pathsep.join([str(spec.parent.parent), os.environ.get("JUPYTER_PATH", "")])
        )
        path = write(tmp_path / "which.ipynb", "import sys; print(sys.executable)")
        assert run(path, out=tmp_path / "b") == 0
        assert outputs(tmp_path / "b" / "which.ipynb").strip() == sys.executable

    def test_a_home_that_cannot_be_written(self, tmp_path):
        path = write(tmp_path / "home.ipynb", "import os; print(os.environ['IPYTHONDIR'], os.environ['HF_HOME'])")
        command = [sys.executable, "-m", "neuron_lab.cli", "run", str(path), "--out", str(tmp_path / "b")]
        dropped = ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR", "HF_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
        environment = {k: v for k, v in os.environ.items() if k not in dropped}
        environment["HOME"] = "/dev/null"  # not even root can write below it
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert "/dev/null" not in outputs(tmp_path / "b" / "home.ipynb")

    def test_a_home_in_order_is_left_alone(self, tmp_path, monkeypatch):
        for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR", "HF_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        with places.scratch_for_unwritable_home():
            assert "IPYTHONDIR" not in os.environ and "HF_HOME" not in os.environ

    def test_two_notebooks_of_one_name_do_not_share_a_file(self, tmp_path):
        for folder in ("one", "two"):
            (tmp_path / folder).mkdir()
            write(tmp_path / folder / "same.ipynb", f"print('{folder}')")
        assert run(tmp_path / "one", tmp_path / "two", out=tmp_path / "b") == 0
        assert outputs(tmp_path / "b" / "one_same.ipynb") == "one\n"
        assert outputs(tmp_path / "b" / "two_same.ipynb") == "two\n"


class TestBad:
    def test_the_failing_cell_and_its_error_are_shown_and_the_rest_runs(self, tmp_path, capsys):
        bad = write(tmp_path / "a_bad.ipynb", "ok = 1", "def half(x):\n    return 1 / x\n\n\nhalf(0)", "print('never')")
        good = write(tmp_path / "b_good.ipynb", "1")
        assert run(bad, good, out=tmp_path / "b") == 1
        printed = capsys.readouterr().out
        assert "cell 2 of 3: ZeroDivisionError: division by zero" in printed
        assert "    half(0)" in printed and "\x1b" not in printed
        assert "1 passed, 1 failed" in printed
        assert "ZeroDivisionError" in (tmp_path / "b" / "a_bad.html").read_text()
        assert "never" not in outputs(tmp_path / "b" / "a_bad.ipynb")

    def test_a_dead_kernel_is_said_in_words_and_in_the_copy(self, tmp_path, capsys):
        path = write(tmp_path / "dead.ipynb", "1", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "2")
        assert run(path, out=tmp_path / "b") == 1
        assert (
            "cell 2 of 3: the kernel died, killed by SIGKILL: most often the machine ran out" in capsys.readouterr().out
        )
        node = nbformat.read(tmp_path / "b" / "dead.ipynb", as_version=4)
        assert node.cells[2].outputs[-1].ename == "DeadKernelError"

    def test_a_crash_in_native_code(self, tmp_path, capsys):
        path = write(tmp_path / "crash.ipynb", "import faulthandler; faulthandler._sigsegv()")
        assert run(path, out=tmp_path / "b") == 1
        assert "killed by SIGSEGV: a crash in native code" in capsys.readouterr().out

    def test_a_kernel_that_does_not_start_has_its_last_words_shown(self, tmp_path, monkeypatch, capsys):
        (tmp_path / "ipykernel_launcher.py").write_text("raise SystemExit('no kernel today')")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        assert run(write(tmp_path / "stillborn.ipynb", "1"), out=tmp_path / "b") == 1
        printed = capsys.readouterr().out
        assert "the kernel did not start" in printed and "no kernel today" in printed

    def test_what_processes_print_goes_to_the_notebook_and_not_to_the_terminal(self, tmp_path, capfd, monkeypatch):
        monkeypatch.delenv("PYTEST_CURRENT_TEST")  # under it, ipykernel does not watch the file descriptors
        path = write(tmp_path / "child.ipynb", "import os; assert os.system('echo heard') == 0")
        assert run(path, out=tmp_path / "b") == 0
        assert "heard" not in "".join(capfd.readouterr())
        assert "heard" in outputs(tmp_path / "b" / "child.ipynb")

    def test_a_notebook_that_exits_early_has_not_passed(self, tmp_path, capsys):
        path = write(tmp_path / "early.ipynb", "1", "raise SystemExit(0)", "print('never')")
        assert run(path, out=tmp_path / "b") == 1
        assert "stopped early: 1 of 3 cells did not run" in capsys.readouterr().out

    def test_another_kernel_is_named(self, tmp_path, capsys):
        assert run(write(tmp_path / "julia.ipynb", "1", kernel="julia-1.9"), out=tmp_path / "b") == 1
        assert "there is no kernel 'julia-1.9'" in capsys.readouterr().out

    def test_a_page_that_cannot_be_made_is_a_failure_and_no_old_page_stays(self, tmp_path, monkeypatch, capsys):
        from neuron_lab.runner import execute

        def broken(*_):
            raise RuntimeError("no template")

        monkeypatch.setattr(execute, "_html", broken)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "page.html").write_text("old")
        assert run(write(tmp_path / "page.ipynb", "1"), out=tmp_path / "b") == 1
        assert "no template" in capsys.readouterr().out
        assert not (tmp_path / "b" / "page.html").exists()


class TestUsage:
    """Wrong commands: status 2, the mend in the message, nothing run and nothing left behind."""

    @pytest.fixture
    def refused(self, tmp_path, capsys):
        def check(*arguments, out=None, **options):
            out = out or tmp_path / "build"
            assert run(*arguments, out=out, **options) == 2
            assert not out.exists() or not out.is_dir()
            printed = capsys.readouterr()
            assert printed.out == ""
            return printed.err

        return check

    def test_a_path_that_does_not_exist(self, refused, lesson):
        message = refused(lesson.parent / "lessn.ipynb")
        assert f"Did you mean {lesson}?" in message and "These exist" in message

    def test_no_notebook_at_all(self, refused, tmp_path, monkeypatch):
        monkeypatch.setattr(notebooks, "workbook", list)
        assert "no notebook is named" in refused()

    def test_a_file_that_is_no_notebook(self, refused, tmp_path):
        (tmp_path / "script.py").write_text("print(1)")
        assert "is not a Jupyter notebook" in refused(tmp_path / "script.py")

    def test_an_empty_folder(self, refused, tmp_path):
        (tmp_path / "empty").mkdir()
        assert "no notebook in the folder" in refused(tmp_path / "empty")

    def test_named_twice(self, refused, lesson):
        assert "named twice" in refused(lesson, lesson)

    def test_an_unknown_parameter(self, refused, lesson):
        message = refused(lesson, parameters=[("stps", "3")])
        assert "no notebook of this run has a parameter stps" in message
        assert "Did you mean steps?" in message and "rate=0.5" in message

    def test_a_parameter_that_nothing_reads(self, refused, lesson):
        assert "no cell reads the parameter unread" in refused(lesson, parameters=[("unread", "4")])

    @pytest.mark.parametrize(
        ("name", "text", "words"),
        [
            ("steps", "2.5", "takes an integer, such as 2; -p gives 2.5, a float"),
            ("steps", "many", "takes an integer, such as 2; -p gives 'many', a text"),
            ("steps", "True", "-p gives True, True or False"),
            ("rate", "fast", "takes a float"),
            ("name", "7", 'Write `name: "7"` into a YAML file'),
            ("sizes", "7", "Write `sizes: [1, 2]` into a YAML file"),
        ],
    )
    def test_a_wrong_type(self, refused, lesson, name, text, words):
        assert words in refused(lesson, parameters=[(name, text)])

    @pytest.mark.parametrize(("content", "words"), [("- 1\n", "must map names to values"), ("a: b: c", "is not YAML")])
    def test_a_bad_parameter_file(self, refused, lesson, tmp_path, content, words):
        (tmp_path / "v.yaml").write_text(content)
        assert words in refused(lesson, parameter_files=[tmp_path / "v.yaml"])

    def test_a_parameter_file_that_does_not_exist(self, refused, lesson, tmp_path):
        assert "No such file" in refused(lesson, parameter_files=[tmp_path / "nope.yaml"])

    def test_an_output_folder_that_cannot_be_written(self, refused, lesson):
        assert "Choose another with --out" in refused(lesson, out=Path("/dev/null/build"))

    def test_an_output_folder_that_would_overwrite_the_source(self, lesson, capsys):
        before = lesson.read_text()
        assert run(lesson, out=lesson.parent) == 2
        assert "would overwrite" in capsys.readouterr().err
        assert lesson.read_text() == before


class TestParameters:
    def test_a_file_may_serve_notebooks_that_are_not_part_of_the_run(self, tmp_path):
        one = write(tmp_path / "one.ipynb", "print(a)", declare="a = 1")
        write(tmp_path / "two.ipynb", "print(b)", declare="b = 1")
        sources = [notebooks.read(one)]
        given = {"a": parameters.Given(2, "f.yaml"), "b": parameters.Given(3, "f.yaml")}
        assert parameters.assign(sources, given) == {one: {"a": 2}}
        with pytest.raises(UsageError, match="no notebook of this run has a parameter c"):
            parameters.assign(sources, given | {"c": parameters.Given(1, "f.yaml")})
        with pytest.raises(UsageError, match="no notebook of this run has a parameter b"):
            parameters.assign(sources, {"b": parameters.Given(3, "-p")})

    @pytest.mark.parametrize(
        ("cell", "read"),
        [
            ("print(x)", True),
            ("f'{x}'", True),
            ("y = [x for _ in range(3)]", True),
            ("!echo {x}", True),
            ("%%torchrun -n {x}\nprint(1)", True),
            ("x = 3", False),
            ("object.x", False),
            ("'x'", False),
            ("# x", False),
            ("print(xx)", False),
        ],
    )
    def test_what_counts_as_read(self, cell, read):
        assert ("x" in parameters._names_read(cell)) is read


class TestAtomic:
    def test_the_old_file_survives_a_failure(self, tmp_path):
        path = tmp_path / "file"
        path.write_text("old")
        with pytest.raises(UnicodeEncodeError):
            places.write_atomically(path, "\ud800")
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_what_is_done(tmp_path, signum, status):
    marker = tmp_path / "pids"
    slow = write(
        tmp_path / "a_slow.ipynb",
        "print('kept')",
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        f"open({str(marker)!r} + '.part', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(marker)!r} + '.part', {str(marker)!r})\n"
        "time.sleep(300)",
        "print('never')",
    )
    after = write(tmp_path / "b_after.ipynb", "1")
    command = [sys.executable, "-m", "neuron_lab.cli", "run", str(slow), str(after), "--out", str(tmp_path / "b")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 90
        while not marker.exists():
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.1)
        process.send_signal(signum)
        printed, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == status
    assert "1 interrupted, 1 not run" in printed and "Traceback" not in errors
    assert "kept" in outputs(tmp_path / "b" / "a_slow.ipynb")
    assert "KeyboardInterrupt" in (tmp_path / "b" / "a_slow.html").read_text()
    assert not (tmp_path / "b" / "b_after.ipynb").exists()
    for pid in map(int, marker.read_text().split()):
        assert not _alive(pid), "the kernel, or a process that it started, is still there"


def _alive(pid: int) -> bool:
    """Whether a process runs, within a few seconds. A zombie, whose parent is gone, does not."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            return False
        if state == "Z":
            return False
        time.sleep(0.1)
    return True


class TestProgress:
    class Terminal:
        def __init__(self):
            self.text = ""

        def isatty(self):
            return True

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    def test_a_terminal_has_one_line_per_notebook(self):
        from neuron_lab.runner.progress import Progress

        terminal = self.Terminal()
        with Progress(terminal, total=2) as progress:
            for name in ("one", "two"):
                progress.start(name, cells=2)
                progress.cell(1)
                progress.cell(2)
                progress.end("passed")
        assert terminal.text.count("\n") == 2
        seen = [line.rpartition("\x1b[K")[2] for line in terminal.text.split("\n")]
        assert seen[0].startswith("[1/2] one: passed, cell 2 of 2")

    def test_a_log_has_a_line_at_start_and_end(self, tmp_path, capsys):
        run(write(tmp_path / "n.ipynb", "1", "2"), out=tmp_path / "b")
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "[1/1] n: 2 cells"
        assert lines[1].startswith("[1/1] n: passed, cell 2 of 2, ")
