"""The doctor finds each fault that it is for, names the mend, and exits with 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest

from neuron_lab import doctor
from neuron_lab.doctor import Finding


def by_name(findings):
    return {finding.name: finding for finding in findings}


class TestPython:
    def test_too_old(self):
        assert doctor._python((3, 10, 9)).status == "FAIL"
        assert doctor._python((3, 11, 0)).status == "OK"

    def test_a_core_requirement_out_of_range(self, monkeypatch):
        real = doctor._version
        monkeypatch.setattr(doctor, "_version", lambda name: "2.5.0" if name == "torch" else real(name))
        found = by_name(doctor._requirements())["torch"]
        assert found.status == "FAIL"
        assert "2.5.0, needs" in found.found and found.mend.startswith("pip install 'torch")

    def test_a_local_build_of_the_right_version_is_right(self, monkeypatch):
        monkeypatch.setattr(doctor, "_version", lambda name: "2.13.0+cpu" if name == "torch" else None)
        assert by_name(doctor._requirements())["torch"].status == "OK"

    def test_the_core_alone_is_a_note(self, monkeypatch):
        core = ("torch", "numpy", "ml_dtypes", "ninja", "packaging")
        real = doctor._version
        monkeypatch.setattr(doctor, "_version", lambda name: real(name) if name in core else None)
        assert by_name(doctor._requirements())["workbook libraries"].status == "NOTE"

    def test_half_a_workbook_is_a_failure_that_names_the_other_half(self, monkeypatch):
        real = doctor._version
        monkeypatch.setattr(doctor, "_version", lambda name: None if name == "papermill" else real(name))
        found = by_name(doctor._requirements())["workbook libraries"]
        assert found.status == "FAIL" and "papermill not installed" in found.found


class TestNeuronPackages:
    @pytest.mark.parametrize(
        ("name", "version", "status", "words"),
        [
            ("torch-neuronx", "1.0", "FAIL", "placeholder"),
            ("neuronx-cc", "1.0.post1", "FAIL", "placeholder"),
            ("nki", "0.0.1", "FAIL", "placeholder"),
            ("torch-neuronx", "2.9.0.2.15.32035", "FAIL", "retired XLA package"),
            ("torch-neuronx", "2.13.3.0.123", "OK", "the real one"),
            ("nki", "0.7.0", "OK", "the real one"),
        ],
    )
    def test_each_is_recognised(self, monkeypatch, name, version, status, words):
        monkeypatch.setattr(doctor, "_version", lambda asked: version if asked == name else None)
        (finding,) = doctor._neuron_packages()
        assert (finding.name, finding.status) == (name, status)
        assert words in finding.found
        if words == "placeholder":
            assert doctor.AWS_INDEX in finding.mend

    def test_their_absence_is_nothing_to_talk_about(self, monkeypatch):
        monkeypatch.setattr(doctor, "_version", lambda _: None)
        assert list(doctor._neuron_packages()) == []


class TestTools:
    def test_the_compiler_here(self):
        assert doctor._compiler().status == "OK"

    @pytest.mark.parametrize("command", ["no-such-compiler", "false"])
    def test_a_compiler_that_is_missing_or_broken(self, monkeypatch, command):
        monkeypatch.setenv("CXX", command)
        finding = doctor._compiler()
        assert finding.status == "FAIL" and finding.mend
        assert command in finding.found

    def test_headers(self, monkeypatch, tmp_path):
        monkeypatch.setattr(doctor.sysconfig, "get_path", lambda _: str(tmp_path))
        assert doctor._python_headers().status == "FAIL"
        (tmp_path / "Python.h").touch()
        assert doctor._python_headers().status == "OK"

    def test_ninja_beside_python_counts(self, monkeypatch, tmp_path):
        monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
        monkeypatch.setattr(doctor.sysconfig, "get_path", lambda _: str(tmp_path))
        assert doctor._ninja().status == "FAIL"
        (tmp_path / "ninja").touch(mode=0o755)
        assert doctor._ninja().status == "OK"


class TestKernel:
    def spec(self, folder: Path, command: str):
        (folder / "kernels" / "python3").mkdir(parents=True)
        content = {"argv": [command, "-m", "ipykernel_launcher"], "display_name": "Python 3", "language": "python"}
        (folder / "kernels" / "python3" / "kernel.json").write_text(json.dumps(content))

    @pytest.mark.parametrize("command", ["python", sys.executable])
    def test_this_python(self, monkeypatch, tmp_path, command):
        self.spec(tmp_path, command)
        monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
        assert doctor._kernel().status == "OK"

    def test_another_python(self, monkeypatch, tmp_path):
        self.spec(tmp_path, "/usr/lib/elsewhere/bin/python")
        monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
        finding = doctor._kernel()
        assert finding.status == "FAIL"
        assert "/usr/lib/elsewhere/bin/python" in finding.found and "ipykernel install" in finding.mend


class TestDevice:
    GOOD = MappingProxyType({"cuda": False, "cache_dir": "", "device": "EMULATED, trn2", "device_error": ""})

    def test_good(self, tmp_path):
        found = by_name(doctor._device_checks(self.GOOD | {"cache_dir": str(tmp_path / "new")}))
        assert {name: f.status for name, f in found.items()} == {"cache folder": "OK", "disk": "OK", "device": "OK"}

    def test_cuda_is_a_note(self, tmp_path):
        found = by_name(doctor._device_checks(self.GOOD | {"cache_dir": str(tmp_path), "cuda": True}))
        assert found["CUDA"].status == "NOTE" and "CUDA_VISIBLE_DEVICES" in found["CUDA"].mend

    def test_no_device_keeps_reason_and_step_apart(self, tmp_path):
        error = "there is no `neuron` device. The build failed. Next step: install g++."
        found = by_name(doctor._device_checks(self.GOOD | {"cache_dir": str(tmp_path), "device_error": error}))
        assert found["device"] == Finding(
            "device", "FAIL", "there is no `neuron` device. The build failed.", "install g++."
        )

    def test_the_mend_is_never_the_doctor_itself(self, tmp_path):
        error = "there is no `neuron` device. No compiler. Next step: run `neuron-lab doctor`, which names it."
        found = by_name(doctor._device_checks({**self.GOOD, "cache_dir": str(tmp_path), "device_error": error}))
        assert "doctor" not in found["device"].mend and found["device"].mend

    def test_a_cache_that_cannot_be_written(self):
        found = by_name(doctor._device_checks(self.GOOD | {"cache_dir": "/dev/null/cache"}))
        assert found["cache folder"].status == "FAIL" and "XDG_CACHE_HOME" in found["cache folder"].mend

    def test_a_full_disk(self, tmp_path):
        finding = doctor._disk(tmp_path, usage=lambda _: SimpleNamespace(free=10 << 20))
        assert finding.status == "FAIL" and "0.0 GiB free" in finding.found

    def test_a_crash_is_a_line_of_the_report(self):
        def crash(*_, **__):
            return subprocess.CompletedProcess([], returncode=-11, stdout="", stderr="Fatal Python error: Segmentation")

        (finding,) = doctor._device_checks(doctor._probe(crash))
        assert finding.status == "FAIL"
        assert "-11" in finding.found and "Segmentation" in finding.found

    def test_a_hang_is_a_line_of_the_report(self):
        def hang(command, **options):
            raise subprocess.TimeoutExpired(command, options["timeout"])

        (finding,) = doctor._device_checks(doctor._probe(hang))
        assert finding.status == "FAIL" and "did not end" in finding.found

    def test_what_the_device_says_of_its_build_is_passed_on(self, capfd):
        code = "import sys; print('answer'); sys.stderr.write('neuron-lab: building\\nnoise\\n'); sys.exit(3)"
        done = doctor._run_aloud([sys.executable, "-c", code], timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (3, "answer\n", "neuron-lab: building\nnoise\n")
        assert capfd.readouterr().err == "neuron-lab: building\n"

    def test_a_child_that_hangs_is_ended(self, tmp_path):
        code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
        with pytest.raises(subprocess.TimeoutExpired):
            doctor._run_aloud([sys.executable, "-c", code], timeout=5)
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)

    def test_a_greeting_before_the_answer_does_no_harm(self):
        def chatty(*_, **__):
            return subprocess.CompletedProcess([], 0, stdout=f"hello\n{json.dumps(dict(self.GOOD))}\n", stderr="")

        assert doctor._probe(chatty) == self.GOOD


class TestReport:
    GOOD = Finding("ninja", "OK", "/usr/bin/ninja")
    NOTE = Finding("CUDA", "NOTE", "also here", "hide it")
    BAD = Finding("C++ compiler", "FAIL", "not on PATH", "apt-get install g++")

    @pytest.mark.parametrize(("findings", "status"), [([GOOD], 0), ([GOOD, NOTE], 0), ([GOOD, BAD], 1)])
    def test_exit_status(self, monkeypatch, capsys, findings, status):
        monkeypatch.setattr(doctor, "examine", lambda: findings)
        assert doctor.main() == status
        assert doctor.main(as_json=True) == status

    def test_lines(self, monkeypatch, capsys):
        monkeypatch.setattr(doctor, "examine", lambda: [self.GOOD, self.BAD])
        doctor.main()
        lines = capsys.readouterr().out.splitlines()
        assert lines[:3] == [
            "OK    ninja: /usr/bin/ninja",
            "FAIL  C++ compiler: not on PATH",
            "      mend: apt-get install g++",
        ]
        assert lines[-1] == "1 to mend"

    def test_json(self, monkeypatch, capsys):
        monkeypatch.setattr(doctor, "examine", lambda: [self.BAD])
        doctor.main(as_json=True)
        answer = json.loads(capsys.readouterr().out)
        assert answer["ok"] is False
        assert answer["findings"][0]["mend"] == "apt-get install g++"


def test_on_this_machine():
    command = [sys.executable, "-m", "neuron_lab.cli", "doctor", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=600)
    report = json.loads(answer.stdout)
    found = {finding["name"]: finding for finding in report["findings"]}
    assert found["device"]["status"] == "OK", found["device"]
    assert {"Python", "torch", "C++ compiler", "ninja command", "cache folder", "workbook libraries"} <= set(found)
    assert answer.returncode == (0 if report["ok"] else 1)
