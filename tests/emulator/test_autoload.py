"""What ``import torch`` brings, and when it stands aside. Every case is a process of its own."""

from __future__ import annotations

import json

import pytest

from neuron_lab.emulator import autoload

FACTS = """
import json, sys, warnings
warnings.simplefilter("always")
import torch
slot = torch._C._get_privateuse1_backend_name()
from neuron_lab.emulator import status
print(json.dumps(dict(
    slot=slot, module=hasattr(torch, "neuron"), standin="torch_neuronx" in sys.modules, active=status().active,
    reason=status().reason, dynamo="torch._dynamo" in sys.modules, ops=torch.ones(2).sum().item())))
"""


def facts(done) -> dict:
    return json.loads(done.stdout.splitlines()[-1])


class TestOn:
    def test_import_torch_is_enough(self, python):
        done = python(
            """
            import sys
            import torch
            assert torch.ones(2, device="neuron").sum().item() == 2
            assert str(torch.accelerator.current_accelerator()) == "neuron"
            assert torch.neuron.is_available() and torch.neuron.device_count() == 4
            assert torch.ones(1).neuron().is_neuron and torch.nn.Linear(1, 1).neuron().weight.device.type == "neuron"
            # Cheap: what torch.compile needs is not imported before it is used, nor what is not needed of ours.
            heavy = {"torch._dynamo", "torch._inductor", "torch.utils.cpp_extension", "transformers", "IPython"}
            assert not heavy & set(sys.modules), heavy & set(sys.modules)
            ours = {name for name in sys.modules if name.startswith("neuron_lab") and "emulator" not in name}
            assert ours <= {"neuron_lab", "neuron_lab._version"}, ours
            import torch.neuron
            from torch.neuron import synchronize
            """
        )
        assert done.stderr == ""

    def test_the_stand_in_is_a_module_like_others(self, python):
        done = python(
            """
            import importlib.util, sys
            import torch
            import torch_neuronx
            from torch_neuronx import neuron_dynamo_backend, nki_op
            from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics
            assert torch_neuronx.__version__ == torch.__version__.split("+")[0] + "+neuron_lab"
            assert "EMULATED" in torch_neuronx.__doc__
            assert importlib.util.find_spec("torch_neuronx").name == "torch_neuronx"
            assert importlib.util.find_spec("torch_neuronx.neuron_dynamo_backend") is not None
            assert importlib.util.find_spec("torch_neuronx.no_such_thing") is None
            for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "memory_stats",
                         "memory_summary",
                         "reset_peak_memory_stats", "empty_cache", "synchronize", "Stream", "Event", "stream", "nki_op",
                         "get_fallback_ops", "get_executed_ops", "clear_op_tracking", "get_dynamo_metrics"):
                assert callable(getattr(torch_neuronx, name)), name
                assert name in torch_neuronx.__all__
            # Nothing is installed under the name: whoever asks the installation is told the truth.
            import importlib.metadata
            try:
                importlib.metadata.version("torch-neuronx")
            except importlib.metadata.PackageNotFoundError:
                print("not installed")
            """
        )
        assert done.stdout.strip() == "not installed" and done.stderr == ""

    def test_calling_the_entry_point_again_changes_nothing(self, python):
        done = python(
            """
            import sys
            import torch
            from neuron_lab.emulator import autoload, status
            before, tensor, standin = status(), torch.ones(2, device="neuron"), sys.modules["torch_neuronx"]
            autoload.load()
            assert status() == before and status().active
            assert sys.modules["torch_neuronx"] is standin
            assert (tensor + torch.ones(2, device="neuron")).sum().item() == 4
            """
        )
        assert done.stderr == ""

    def test_import_in_threads(self, python):
        """A notebook server imports torch in a thread, and the compiler's modules in another at the same time."""
        python(
            """
            import threading
            errors = []
            def work():
                try:
                    import torch
                    assert torch.ones(2, device="neuron").sum().item() == 2
                    from torch._dynamo.backends.registry import get_default_backend
                    assert callable(get_default_backend()), get_default_backend()
                except BaseException as error:
                    errors.append(error)
            threads = [threading.Thread(target=work) for _ in range(4)]
            [thread.start() for thread in threads]
            [thread.join(120) for thread in threads]
            assert not any(thread.is_alive() for thread in threads) and not errors, errors
            """
        )


class TestOff:
    def test_by_our_own_switch(self, python):
        done = python(FACTS, {"NEURON_LAB_EMULATOR": "false"})
        found = facts(done)
        assert found["slot"] == "privateuseone" and not found["module"] and not found["standin"] and not found["active"]
        assert "NEURON_LAB_EMULATOR=0" in found["reason"] and done.stderr == ""

    def test_by_a_switch_that_is_neither(self, python):
        done = python(FACTS, {"NEURON_LAB_EMULATOR": "perhaps"})
        assert facts(done)["slot"] == "privateuseone" and facts(done)["ops"] == 2
        assert "NEURON_LAB_EMULATOR='perhaps' is not a boolean" in facts(done)["reason"]
        assert "NEURON_LAB_EMULATOR='perhaps'" in done.stderr

    def test_by_pytorchs_switch_and_on_again_by_hand(self, python):
        done = python(
            FACTS + "from neuron_lab.emulator import autoload; autoload.load()\n"
            "assert torch.ones(2, device='neuron').sum().item() == 2 and status().active\n"
            "f = torch.compile(lambda x: x + 1, backend='neuron')\n"
            "assert f(torch.ones(2, device='neuron')).sum().item() == 4\n",
            {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        )
        found = facts(done)
        assert found["slot"] == "privateuseone" and not found["module"] and not found["active"]
        assert "TORCH_DEVICE_BACKEND_AUTOLOAD" in found["reason"]


class TestOrder:
    def test_this_package_may_be_imported_before_torch(self, python):
        done = python(
            """
            import neuron_lab.emulator.build
            import torch
            assert torch.ones(2, device="neuron").sum().item() == 2
            from neuron_lab.emulator import status
            assert status().active, status()
            """
        )
        assert done.stderr == ""


REAL = """
import torch
calls = []
def load():
    pass  # the real one registers its device here; without a Trainium there is nothing to register
def compile_neuron(gm, example_inputs, **options):
    calls.append(options)
    return gm.forward
"""


class TestTheRealPackage:
    def test_has_the_name_to_itself(self, python, distribution):
        site = distribution(
            "torch-neuronx",
            "2.13.3.0",
            entry_points="""
            [torch.backends]
            torch_neuronx = torch_neuronx:load
            [torch_dynamo_backends]
            neuron = torch_neuronx:compile_neuron
            """,
            modules={"torch_neuronx/__init__.py": REAL},
        )
        done = python(
            FACTS + "import torch_neuronx\n"
            "assert torch_neuronx.__file__.endswith('site/torch_neuronx/__init__.py'), torch_neuronx\n"
            "from torch._dynamo.backends.registry import get_default_backend\n"
            "assert get_default_backend() == 'inductor'\n"
            "f = torch.compile(lambda x: x + 1, backend='neuron')\n"
            "assert f(torch.ones(2)).sum().item() == 4\n"
            "assert torch_neuronx.calls, 'the graph did not reach their compiler'\n",
            {"PYTHONPATH": site},
        )
        found = facts(done)
        assert found["slot"] == "privateuseone" and not found["module"] and not found["active"]
        assert "stands aside" in found["reason"] and "2.13.3.0" in found["reason"]
        assert "neuron-lab" not in done.stderr

    def test_also_without_metadata(self, python, tmp_path):
        """Put on the path by hand: a folder of that name is somebody's torch_neuronx."""
        package = tmp_path / "site" / "torch_neuronx"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("import torch\n")
        found = facts(python(FACTS, {"PYTHONPATH": str(package.parent)}))
        assert found["slot"] == "privateuseone" and "stands aside" in found["reason"]

    @pytest.mark.parametrize("version", ["2.9.0.2.15.32035", "2.14.3+cpu", "3", "2!1.0", "unknown", "", "1.0.post1"])
    def test_in_any_version(self, distribution, monkeypatch, version):
        """Whatever stands in the metadata; only what is surely a placeholder does not count."""
        monkeypatch.syspath_prepend(distribution("torch_neuronx", version))
        real, found = autoload.real_package()
        assert real is (version != "1.0.post1")
        assert (version or "version unknown") in found


class TestPlaceholders:
    def test_torch_neuronx_1_0(self, python, distribution):
        done = python(FACTS, {"PYTHONPATH": distribution("torch-neuronx", "1.0")})
        assert facts(done)["slot"] == "neuron" and facts(done)["active"]
        for words in ("torch-neuronx 1.0 is installed", "placeholder", "https://pip.repos.neuron.amazonaws.com"):
            assert words in facts(done)["reason"] and words in done.stderr

    def test_nki_0_0_1(self, python, distribution):
        done = python(FACTS, {"PYTHONPATH": distribution("nki", "0.0.1")})
        assert facts(done)["slot"] == "neuron" and facts(done)["active"]
        for words in ("nki 0.0.1", "placeholder", "https://pip.repos.neuron.amazonaws.com"):
            assert words in facts(done)["reason"] and words in done.stderr


def test_another_backend_already_has_the_slot(python, distribution):
    site = distribution(
        "aaa-other",
        "1.0",
        entry_points="[torch.backends]\naaa_other = aaa_other:load\n",
        modules={"aaa_other.py": "import torch\ndef load(): torch.utils.rename_privateuse1_backend('other')\n"},
    )
    done = python(FACTS, {"PYTHONPATH": site})
    found = facts(done)
    if found["slot"] == "neuron":  # PyTorch takes the entry points in no documented order; then theirs came second
        pytest.skip("PyTorch loaded this project's backend first")
    assert found["slot"] == "other" and not found["module"] and not found["standin"] and not found["active"]
    assert "'other' already has it" in found["reason"]


def test_warnings_as_errors_do_not_break_the_import(python):
    done = python(
        "import torch; print(torch.ones(2).sum().item())", {"NEURON_RT_NUM_CORES": "99"}, options=("-W", "error")
    )
    assert done.stdout.strip() == "2.0" and "NEURON_RT_NUM_CORES=99" in done.stderr


class TestDefaultBackend:
    def test_is_chosen_by_device(self, python):
        done = python(
            """
            import sys
            import torch
            import torch_neuronx
            metrics = torch_neuronx.neuron_dynamo_backend.get_dynamo_metrics
            f = torch.compile(lambda x: x @ x, dynamic=False)
            assert f(torch.ones(2, 2, device="neuron")).sum().item() == 8
            assert metrics()["compiled"] + metrics()["loaded"] == 1
            from torch._dynamo.utils import counters
            assert counters["inductor"]["fxgraph_cache_miss"] + counters["inductor"]["fxgraph_cache_hit"] == 0
            assert f(torch.ones(2, 2)).sum().item() == 8
            assert metrics()["compiled"] + metrics()["loaded"] == 1, "a CPU graph belongs to Inductor"
            assert counters["inductor"]["fxgraph_cache_miss"] + counters["inductor"]["fxgraph_cache_hit"] == 1
            """
        )
        assert "neuron-lab" not in done.stderr

    def test_a_default_that_the_user_set_stays(self, python):
        python(
            """
            import torch
            torch.compiler.set_default_backend("eager")
            assert torch.compiler.get_default_backend() == "eager"
            import torch_neuronx
            torch.compile(lambda x: x + 1)(torch.ones(2, device="neuron"))
            assert torch_neuronx.get_dynamo_metrics()["graphs"] == []
            """
        )
