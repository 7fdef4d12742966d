"""transformers' causal language models, made small, do on ``neuron`` what they do on the CPU.

Each type generates eagerly, generates with a static cache and a compiled step,
and takes one training step. A few types run always; `-m slow` runs them all and
prints a table.
"""

from __future__ import annotations

import dataclasses
import os

import pytest
import survey
import torch
from architectures import MODEL_TYPES, small_config, small_model
from transformers import CONFIG_MAPPING

#: One of each kind: tied weights, rotary attention, sliding windows, experts, latent attention, a state space,
#: linear attention with a short convolution, a decoder cut out of an encoder-decoder.
SLICE = ("gpt2", "qwen3", "gemma3_text", "mixtral", "deepseek_v3", "mamba", "qwen3_next", "bart")

#: No language models on their own, or in need of a package that is not installed.
NOT_ALONE = {"gemma3n", "gemma4_assistant", "gemma4_unified_assistant"}

#: Share of the types the CPU can do that have to be equal.
TARGETS = {"eager": 0.99, "static": 0.95, "training": 0.98}


def test_a_slice():
    results = survey.run(SLICE)
    print(survey.table(results))
    differing = {
        (model_type, check): found[check]["outcome"]
        for model_type, found in results.items()
        for check in survey.CHECKS
        if found[check]["outcome"] != survey.EQUAL
    }
    assert not differing


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_type(capsys):
    with capsys.disabled():
        results = survey.run(MODEL_TYPES, tell=print, jobs=min(2, os.cpu_count() or 1))
        print("\n" + survey.table(results))
    assert len(MODEL_TYPES) >= 60
    for check, (equal, possible) in survey.rates(results).items():
        assert possible >= 0.9 * len(MODEL_TYPES) - (0 if check != "static" else 10), (
            f"{check}: only {possible} types ran"
        )
        assert equal >= TARGETS[check] * possible, f"{check}: {equal} of {possible} equal"
    crashes = [
        t for t, found in results.items() for c in found.values() if c["outcome"].startswith(("crash", "no answer"))
    ]
    assert not crashes


class TestSmallModels:
    """A survey of models that are no longer of their kind would say nothing."""

    @pytest.mark.parametrize("model_type", sorted(set(MODEL_TYPES) - NOT_ALONE))
    def test_the_kind_stays(self, model_type):
        default, small = CONFIG_MAPPING[model_type](), small_config(model_type)
        default = default.decoder if model_type.startswith("musicgen") else default
        assert type(small) is type(default)
        for old, new in _pairs(default, small):
            for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
                if vars(old).get(name):
                    assert set(vars(old)[name]) <= set(vars(new)[name]), name
            for name in (
                "tie_word_embeddings",
                "hidden_act",
                "attention_bias",
                "qk_norm",
                "use_bias",
                "norm_topk_prob",
            ):
                assert vars(old).get(name) == vars(new).get(name), name
            for name in ("num_experts", "num_local_experts", "n_routed_experts", "num_attention_heads"):
                if isinstance(vars(old).get(name), int) and vars(old)[name] > 1:
                    assert vars(new)[name] > 1, name
            if isinstance(vars(old).get("num_key_value_heads"), int) and "num_attention_heads" in vars(old):
                shared = [vars(c)["num_key_value_heads"] < vars(c)["num_attention_heads"] for c in (old, new)]
                assert shared[0] == shared[1], "key and value heads"
            if isinstance(vars(new).get("sliding_window"), int):
                assert vars(new)["sliding_window"] < survey.PROMPT + survey.NEW_TOKENS, (
                    "a window longer than the text is none"
                )

    def test_the_same_seed_gives_the_same_model(self):
        one, two, other = small_model("qwen3"), small_model("qwen3"), small_model("qwen3", seed=1)
        for left, right in zip(one.parameters(), two.parameters(), strict=True):
            assert left.equal(right)
        assert not one.lm_head.weight.equal(other.lm_head.weight)

    def test_nothing_is_zero_or_one_throughout(self):
        for name, weight in small_model("gpt2").named_parameters():
            assert weight.std() > 0, name


def _pairs(old, new):
    """A configuration and those nested in it, before and after."""
    yield old, new
    for field in dataclasses.fields(old):
        value = vars(old).get(field.name)
        if hasattr(value, "to_dict"):
            yield from _pairs(value, getattr(new, field.name))


class TestTheSurveyItself:
    def test_a_difference_is_seen(self):
        tokens, logits = torch.tensor([[1, 2, 3]]), torch.randn(3, 1, 8)
        assert survey._compare_generation((tokens, logits), (tokens.clone(), logits.clone())) == survey.EQUAL
        moved = logits.clone()
        moved[1, 0, 4] += 0.05
        assert survey._compare_generation((tokens, logits), (tokens, moved)).startswith("logits off by 0.05")
        assert survey._compare_generation((tokens, logits), (tokens + 1, logits)).startswith("tokens differ")

    def test_a_gradient_that_is_missing_or_wrong_is_seen(self):
        expected = {"loss": torch.tensor(1.0), "grad of w": torch.ones(3), "w": torch.ones(3)}
        assert survey._compare_training(expected, dict(expected)) == survey.EQUAL
        assert "no counterpart" in survey._compare_training(expected, {"loss": torch.tensor(1.0), "w": torch.ones(3)})
        wrong = expected | {"grad of w": torch.tensor([1.0, 1.0, 1.1])}
        assert survey._compare_training(expected, wrong).startswith("grad of w off by 0.1")

    def test_what_the_cpu_cannot_do_does_not_count(self):
        results = survey.run(["no_such_type"], ["eager"])
        assert results["no_such_type"]["eager"]["outcome"].startswith("not on the CPU: KeyError")
        assert survey.rates(results)["eager"] == (0, 0)

    def test_a_type_that_takes_too_long_does_not_stop_the_others(self):
        results = survey.run(["gpt2", "qwen3"], ["eager"], limit=0.01)
        assert [found["eager"]["outcome"] for found in results.values()] == ["no answer in 0 s"] * 2
        assert survey.rates(results)["eager"] == (0, 2)

    def test_a_crash_does_not_stop_the_others(self, monkeypatch, tmp_path):
        program = tmp_path / "program.py"
        program.write_text(
            "import json, os, signal, sys\n"
            "for model_type in sys.argv[1].split(','):\n"
            "    for check in sys.argv[2].split(','):\n"
            "        report = {'type': model_type, 'check': check}\n"
            "        print(json.dumps(report | {'begin': True}), flush=True)\n"
            "        if model_type == 'bad' and check == 'static':\n"
            "            os.kill(os.getpid(), signal.SIGKILL)\n"
            "        print(json.dumps(report | {'outcome': 'equal', 'seconds': 0}), flush=True)\n"
        )
        monkeypatch.setattr(survey, "__file__", str(program))
        results = survey.run(["first", "bad", "last"], jobs=2)
        assert results["bad"]["static"]["outcome"] == "crash, status -9"
        del results["bad"]["static"]
        assert {found["outcome"] for checks in results.values() for found in checks.values()} == {"equal"}
        assert list(results) == ["first", "bad", "last"]
        assert sorted(results["bad"]) == ["eager", "training"] and len(results["last"]) == 3

    def test_a_program_that_says_nothing_ends(self, monkeypatch, tmp_path):
        (tmp_path / "silent.py").write_text("")
        monkeypatch.setattr(survey, "__file__", str(tmp_path / "silent.py"))
        assert survey.run(["one", "two"], ["eager"]).keys() == {"one", "two"}
