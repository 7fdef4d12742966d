"""The documented variables, one by one, and what becomes of values that make no sense."""

from __future__ import annotations

import pytest

from neuron_lab.emulator.environment import (
    HBM_BANK_BYTES,
    MAX_CORES,
    ConfigurationError,
    Instance,
    flag,
    parse_cores,
    read_instance,
)


class TestDefaults:
    def test_a_small_trainium_2(self):
        assert read_instance({}) == Instance(
            name="trn2.3xlarge",
            lnc=2,
            cores=4,
            hbm_bytes=24 * 1024**3,
            cores_per_bank=1,
            start_core=0,
            refuse_float64=True,
            refuse_fallback=False,
            problem="",
        )

    def test_empty_is_unset(self):
        names = [
            "NEURON_LAB_INSTANCE",
            "NEURON_LAB_CORES",
            "NEURON_LAB_HBM_GB",
            "NEURON_LAB_FLOAT64",
            "NEURON_FALLBACK_ENABLED",
            "LOCAL_RANK",
            "NEURON_RT_VISIBLE_CORES",
            "NEURON_RT_NUM_CORES",
            "NEURON_LOGICAL_NC_CONFIG",
            "NEURON_RT_VIRTUAL_CORE_SIZE",
        ]
        assert read_instance(dict.fromkeys(names, " ")) == read_instance({})

    def test_the_process_environment_is_what_is_read_by_default(self, monkeypatch):
        monkeypatch.setenv("NEURON_RT_NUM_CORES", "3")
        monkeypatch.delenv("NEURON_RT_VISIBLE_CORES", raising=False)
        assert read_instance().cores == 3


class TestCores:
    @pytest.mark.parametrize(
        ("env", "cores", "lnc", "per_bank"),
        [
            ({"NEURON_LOGICAL_NC_CONFIG": "1"}, 8, 1, 2),
            ({"NEURON_LOGICAL_NC_CONFIG": "2"}, 4, 2, 1),
            ({"NEURON_RT_VIRTUAL_CORE_SIZE": "1"}, 8, 1, 2),  # the older name
            ({"NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}, 4, 2, 1),
            ({"NEURON_LAB_INSTANCE": "trn2.48xlarge"}, 64, 2, 1),
            (
                {"NEURON_LAB_INSTANCE": "trn2.48xlarge", "NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_NUM_CORES": "100"},
                100,
                1,
                2,
            ),
            ({"NEURON_LAB_CORES": "16"}, 16, 2, 1),
            ({"NEURON_LAB_CORES": str(MAX_CORES)}, MAX_CORES, 2, 1),
        ],
    )
    def test_how_many_there_are(self, env, cores, lnc, per_bank):
        instance = read_instance(env)
        assert (instance.cores, instance.lnc, instance.cores_per_bank) == (cores, lnc, per_bank)

    @pytest.mark.parametrize(
        ("env", "cores"),
        [
            ({"NEURON_RT_NUM_CORES": "1"}, 1),
            ({"NEURON_RT_NUM_CORES": "4"}, 4),
            ({"NEURON_RT_NUM_CORES": "0"}, 4),  # documented: 0 means all
            ({"NEURON_RT_VISIBLE_CORES": "2"}, 1),
            ({"NEURON_RT_VISIBLE_CORES": "0-3"}, 4),
            ({"NEURON_RT_VISIBLE_CORES": "1,3"}, 2),
            ({"NEURON_RT_VISIBLE_CORES": "2", "NEURON_RT_NUM_CORES": "4"}, 1),  # documented to win
            ({"NEURON_RT_VISIBLE_CORES": "5-7", "NEURON_LOGICAL_NC_CONFIG": "1"}, 3),
            ({"NEURON_RT_NUM_CORES": "8", "NEURON_LAB_CORES": "8"}, 8),
        ],
    )
    def test_which_of_them_this_process_sees(self, env, cores):
        assert read_instance(env).cores == cores

    @pytest.mark.parametrize(
        ("text", "cores"),
        [("0", [0]), ("0-3", [0, 1, 2, 3]), ("2,3", [2, 3]), ("0,2-3", [0, 2, 3]), (" 3 , 1 ", [3, 1]), ("2-2", [2])],
    )
    def test_lists_and_ranges(self, text, cores):
        assert parse_cores(text, available=4) == cores

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("4", "names core 4; this instance has cores 0 to 3"),
            ("2-5", "names core 4"),
            ("3-1", "names core none"),  # a range upside down is empty
            ("1,1", "twice"),
            ("0-2,1", "twice"),
            ("", "not a list"),
            ("a", "not a list"),
            ("-1", "not a list"),
            ("1-", "not a list"),
            ("1-2-3", "not a list"),
            ("0.5", "not a list"),
            ("0,", "not a list"),
            ("0x1", "not a list"),
            ("\u00b2", "not a list"),  # a superscript two: str.isdigit() is true of it
        ],
    )
    def test_what_is_no_list_of_cores(self, text, words):
        with pytest.raises(ConfigurationError, match=words) as caught:
            parse_cores(text, available=4, name="THE_VARIABLE")
        assert "THE_VARIABLE" in str(caught.value)

    def test_a_huge_range_is_refused_without_being_expanded(self):
        with pytest.raises(ConfigurationError, match="this instance has cores 0 to 3"):
            parse_cores("0-99999999999999", available=4)


class TestLocalRank:
    @pytest.mark.parametrize(
        ("env", "core"),
        [
            ({"LOCAL_RANK": "0"}, 0),
            ({"LOCAL_RANK": "3"}, 3),
            # The launcher gave each rank its own core, which that rank calls neuron:0.
            ({"LOCAL_RANK": "3", "NEURON_RT_VISIBLE_CORES": "3"}, 0),
            ({"LOCAL_RANK": "7", "NEURON_LOGICAL_NC_CONFIG": "1"}, 7),
        ],
    )
    def test_is_the_core_to_begin_on(self, env, core):
        assert read_instance(env).start_core == core

    @pytest.mark.parametrize("env", [{}, {"NEURON_RT_NUM_CORES": "2"}, {"NEURON_RT_VISIBLE_CORES": "0-1"}])
    def test_more_ranks_than_cores(self, env):
        problem = read_instance({"LOCAL_RANK": "4", **env}).problem
        assert "LOCAL_RANK=4 needs core 4" in problem
        assert "--nproc_per_node" in problem and "NEURON_LAB_CORES" in problem

    def test_one_core_and_two_ranks_is_a_problem_too(self):
        # NEURON_RT_NUM_CORES=1 gives every rank the same core, which a second process cannot have.
        assert "LOCAL_RANK=1" in read_instance({"LOCAL_RANK": "1", "NEURON_RT_NUM_CORES": "1"}).problem


class TestMemory:
    @pytest.mark.parametrize(
        ("text", "size"),
        [("24", HBM_BANK_BYTES), ("0.5", 1 << 29), ("1e-3", int(1e-3 * (1 << 30))), (" 2 ", 2 << 30)],
    )
    def test_gib_per_core(self, text, size):
        assert read_instance({"NEURON_LAB_HBM_GB": text}).hbm_bytes == size

    @pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e400", "24GB", "1,5", "1e-30", "1e30"])
    def test_no_size(self, text):
        instance = read_instance({"NEURON_LAB_HBM_GB": text})
        assert "NEURON_LAB_HBM_GB" in instance.problem and "GiB" in instance.problem
        assert instance.cores == 0


class TestSwitches:
    @pytest.mark.parametrize("text", ["1", "true", "TRUE", "yes", "on", " 1 "])
    def test_on(self, text):
        assert flag({"X": text}, "X", False) is True

    @pytest.mark.parametrize("text", ["0", "false", "False", "no", "off"])
    def test_off(self, text):
        assert flag({"X": text}, "X", True) is False

    @pytest.mark.parametrize("text", ["2", "maybe", "-1", "None", "0.0"])
    def test_neither(self, text):
        with pytest.raises(ConfigurationError, match=r"X=.*not a boolean"):
            flag({"X": text}, "X", True)

    def test_strictness(self):
        assert read_instance({"NEURON_LAB_FLOAT64": "allow"}).refuse_float64 is False
        assert read_instance({"NEURON_LAB_FLOAT64": "Refuse"}).refuse_float64 is True
        assert read_instance({"NEURON_FALLBACK_ENABLED": "0"}).refuse_fallback is True
        assert read_instance({"NEURON_FALLBACK_ENABLED": "true"}).refuse_fallback is False


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NEURON_LAB_INSTANCE": "trn1.32xlarge"}, "trn2.3xlarge, trn2.48xlarge"),
        ({"NEURON_LOGICAL_NC_CONFIG": "3"}, "1 or 2"),
        ({"NEURON_LOGICAL_NC_CONFIG": "two"}, "not a whole number"),
        ({"NEURON_RT_VIRTUAL_CORE_SIZE": "0"}, "1 or 2"),
        ({"NEURON_RT_NUM_CORES": "5"}, "0 to 4"),
        ({"NEURON_RT_NUM_CORES": "-1"}, "0 to 4"),
        ({"NEURON_RT_NUM_CORES": "1.5"}, "not a whole number"),
        ({"NEURON_RT_VISIBLE_CORES": "9"}, "cores 0 to 3"),
        ({"NEURON_LAB_CORES": "0"}, f"1 to {MAX_CORES}"),
        ({"NEURON_LAB_CORES": "257"}, f"1 to {MAX_CORES}"),
        ({"LOCAL_RANK": "first"}, "not a whole number"),
        ({"LOCAL_RANK": "-1"}, "out of range"),
        ({"NEURON_LAB_FLOAT64": "yes"}, "refuse or allow"),
        ({"NEURON_FALLBACK_ENABLED": "sometimes"}, "not a boolean"),
    ],
)
def test_a_wrong_value_names_the_variable_and_what_would_be_right(env, words):
    instance = read_instance(env)
    (name,) = env
    assert name in instance.problem and words in instance.problem
    assert instance.problem.startswith("The emulated neuron device cannot start:")
    assert instance.cores == 0  # so that the device is not available


def test_more_cores_than_pytorch_counts():
    problem = read_instance({"NEURON_LAB_INSTANCE": "trn2.48xlarge", "NEURON_LOGICAL_NC_CONFIG": "1"}).problem
    assert "128 logical cores" in problem and "at most 127 devices" in problem and "NEURON_RT_NUM_CORES" in problem


def test_a_wrong_value_is_told_at_import_and_again_at_first_use(python):
    """It must not break ``import torch``, nor leave a device that half works."""
    done = python(
        """
        import torch
        assert not torch.neuron.is_available() and torch.neuron.device_count() == 0
        assert torch.ones(2).sum() == 2
        for use in (lambda: torch.ones(1, device="neuron"), lambda: torch.ones(1).to("neuron:0"),
                    torch.neuron.synchronize,
                    lambda: torch.Generator("neuron"), torch.neuron.current_device):
            try:
                use()
            except RuntimeError as error:
                assert "NEURON_RT_NUM_CORES=9" in str(error) and "0 to 4" in str(error), error
            else:
                raise AssertionError(use)
        torch.manual_seed(0)  # seeds every device there is, and there is none
        from neuron_lab.emulator import status
        assert not status().active and "NEURON_RT_NUM_CORES=9" in status().reason
        """,
        {"NEURON_RT_NUM_CORES": "9"},
    )
    assert done.stderr.count("NEURON_RT_NUM_CORES=9") == 1, done.stderr
