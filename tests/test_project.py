"""The project's own files agree with each other, and the package is light to import."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

import neuron_lab

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def requirements(lines):
    return {r.name: r for r in map(Requirement, lines)}


def python(code, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=os.environ | environment
    )


class TestVersions:
    def test_the_version_is_written_in_one_place(self):
        assert importlib.metadata.version("neuron-lab") == neuron_lab.__version__
        assert "version" in PROJECT["dynamic"]

    def test_every_requirement_has_both_bounds(self):
        for line in [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]:
            requirement = Requirement(line)
            operators = {specifier.operator for specifier in requirement.specifier}
            if requirement.name not in ("neuron-lab", "packaging"):
                assert operators == {">=", "<"}, f"{line}: give a lower and an upper bound"

    def test_what_is_installed_here_is_in_range(self):
        for name, requirement in requirements(PROJECT["dependencies"] + EXTRAS["workbook"]).items():
            assert requirement.specifier.contains(importlib.metadata.version(name), prereleases=True), name

    def test_the_real_backend_cannot_resolve_to_the_placeholders(self):
        placeholders = {"torch-neuronx": "1.0", "neuronx-cc": "1.0.post1", "nki": "0.0.1"}
        found = requirements(EXTRAS["trn"])
        assert set(found) == set(placeholders)
        for name, version in placeholders.items():
            assert not found[name].specifier.contains(version)

    def test_torch_and_its_backend_are_of_the_same_minor_version(self):
        torch = requirements(PROJECT["dependencies"])["torch"].specifier
        neuronx = requirements(EXTRAS["trn"])["torch-neuronx"].specifier
        minor = {v for v in ("2.12.9", "2.13.9", "2.14.9", "2.15.9") if torch.contains(v)}
        assert minor == {v for v in ("2.12.9", "2.13.9", "2.14.9", "2.15.9") if neuronx.contains(v)} == {"2.13.9"}


class TestEnvironment:
    FILE = yaml.safe_load((ROOT / "environment.yml").read_text())

    def test_channels(self):
        assert self.FILE["channels"] == ["conda-forge", "nodefaults"]

    def test_python_is_one_that_the_project_takes(self):
        (line,) = [d for d in self.FILE["dependencies"] if isinstance(d, str) and d.startswith("python=")]
        minor = line.removeprefix("python=")
        assert re.fullmatch(r"3\.\d+", minor), "Python to the minor version, no further"
        assert SpecifierSet(PROJECT["requires-python"]).contains(minor)

    def test_there_is_a_compiler(self):
        assert "cxx-compiler" in self.FILE["dependencies"]

    def test_pip_comes_last_and_installs_what_pyproject_says(self):
        assert "pip" in self.FILE["dependencies"]
        block = self.FILE["dependencies"][-1]
        assert block["pip"][-1] == "-e .[test]"

    def test_a_version_given_here_is_that_of_pyproject(self):
        declared = requirements(PROJECT["dependencies"] + EXTRAS["workbook"] + EXTRAS["test"])
        lines = [d for d in self.FILE["dependencies"] if isinstance(d, str)] + self.FILE["dependencies"][-1]["pip"]
        compared = set()
        for line in lines:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue  # an option of pip, or conda's own syntax
            # pytorch-cpu is conda-forge's name of the build without CUDA.
            name = {"pytorch-cpu": "torch"}.get(requirement.name, requirement.name)
            if name in declared:
                assert requirement.specifier == declared[name].specifier, line
                compared.add(name)
        assert "torch" in compared

    def test_the_real_backend_never_comes_from_here(self):
        text = (ROOT / "environment.yml").read_text()
        assert not re.search(r"^\s*-.*(torch-neuronx|neuronx-cc|\[trn\]|nki)", text, re.MULTILINE)


class TestReadme:
    TEXT = (ROOT / "README.md").read_text()

    def test_the_two_commands(self):
        assert "pip install -e '.[workbook]' && neuron-lab run\n" in self.TEXT
        assert "pip install -e '.[test]' && pytest\n" in self.TEXT

    def test_ci_runs_the_test_command(self):
        script = (ROOT / ".ci" / "run").read_text()
        assert "pip install --quiet -e '.[test]'" in script
        assert script.rstrip().endswith("\npytest")

    def test_the_line_for_the_dlami_names_what_is_needed(self):
        (line,) = re.findall(r"^pip install -c theirs.txt (.*)$", self.TEXT, re.MULTILINE)
        needed = set(requirements(PROJECT["dependencies"] + EXTRAS["workbook"])) - {"torch", "numpy", "packaging"}
        assert set(line.split()) == needed

    def test_its_lessons_are_the_notebooks_that_exist(self):
        linked = re.findall(r"\]\((notebooks/\S+\.ipynb)\)", self.TEXT)
        assert linked == [str(p.relative_to(ROOT)) for p in sorted((ROOT / "notebooks").glob("*.ipynb"))]


class TestEntryPoints:
    @pytest.mark.parametrize("group", ["torch.backends", "torch_dynamo_backends", "console_scripts"])
    def test_ours_load(self, group):
        ours = [e for e in importlib.metadata.entry_points(group=group) if e.value.startswith("neuron_lab.")]
        assert len(ours) == 1
        assert callable(ours[0].load())


class TestImport:
    def test_importing_the_package_imports_nothing_heavy(self):
        heavy = (
            "torch",
            "numpy",
            "matplotlib",
            "IPython",
            "transformers",
            "trl",
            "diffusers",
            "papermill",
            "packaging",
        )
        code = (
            "import sys; before = set(sys.modules); import neuron_lab, neuron_lab.cli;"
            f"print([m for m in {heavy!r} if m in set(sys.modules) - before])"
        )
        answer = python(code)
        assert answer.stdout.strip() == "[]", answer.stderr

    def test_public_names_are_listed_and_load(self):
        for name in neuron_lab.__all__:
            assert name in dir(neuron_lab)
            assert getattr(neuron_lab, name) is not None
        assert neuron_lab.checks.__name__ == "neuron_lab.checks"

    def test_as_a_module_it_is_the_command(self):
        done = subprocess.run(
            [sys.executable, "-m", "neuron_lab", "--help"], capture_output=True, text=True, timeout=120, check=True
        )
        assert "doctor" in done.stdout and "run" in done.stdout

    def test_an_unknown_name_is_an_ordinary_error(self):
        with pytest.raises(AttributeError, match="module 'neuron_lab' has no attribute 'chekcs'"):
            _ = neuron_lab.chekcs
        assert not hasattr(neuron_lab, "mesh_of_nothing")

    def test_the_core_works_without_the_workbook(self):
        workbook = {name.replace("-", "_") for name in requirements(EXTRAS["workbook"])} | {"IPython", "yaml"}
        blocked = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {workbook!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""
        code = f"""{blocked}
import torch
import neuron_lab as lab
info = lab.setup(quiet=True)
lab.checks.check(lambda x: x + 1, {{"one": (torch.ones(2, device=info.device),)}}, lambda x: 1 + x, name="add")
"""
        answer = python(code)
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.startswith("add: all 1 rungs hold")
        answer = python(f"{blocked}\nfrom neuron_lab.cli import main\nsys.exit(main(['run', 'x.ipynb']))")
        assert answer.returncode == 2
        assert "pip install 'neuron-lab[workbook]'" in answer.stderr


class TestStyle:
    @pytest.mark.parametrize("command", [["check", "--quiet"], ["format", "--check", "--quiet"]])
    def test_ruff(self, command):
        answer = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert answer.returncode == 0, f"ruff {' '.join(command)} .\n{answer.stdout}{answer.stderr}"


@pytest.mark.slow
def test_the_wheel_is_the_package_and_nothing_else(tmp_path):
    import zipfile

    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"neuron_lab"}
    sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / "neuron_lab").rglob("csrc/*") if p.is_file()}
    assert sources and sources <= set(names)
