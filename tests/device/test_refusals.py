"""What the device does not do: refused in words that say what to do instead, and nothing is left broken."""

from __future__ import annotations

import pytest
import torch

from .helpers import DEVICE, is_emulated, output_of

pytestmark = pytest.mark.filterwarnings("ignore")


def dense() -> torch.Tensor:
    return torch.tensor([[0.0, 2.0], [3.0, 0.0]], device=DEVICE)


def agrees_or_refuses(attempt, expected: torch.Tensor) -> None:
    """Either right, or an error that names the device or the kind of tensor and a way out."""
    try:
        result = attempt()
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        text = str(error)
        assert "INTERNAL ASSERT" not in text and "report a bug" not in text, text
        assert any(word in text.lower() for word in ("neuron", "sparse", "quantized", "nested", "strided", "jagged")), (
            text
        )
        if is_emulated():
            assert "dense" in text or "strided" in text or "cpu" in text.lower(), text
    else:
        assert torch.equal(result.cpu(), expected)
    assert torch.ones(1, device=DEVICE).add(1).item() == 2


class TestSparse:
    EXPECTED = torch.tensor([[0.0, 2.0], [3.0, 0.0]])

    @pytest.mark.parametrize(
        "attempt",
        [
            lambda: dense().to_sparse().to_dense(),
            lambda: dense().to_sparse_csr().to_dense(),
            lambda: dense().to_sparse_csc().to_dense(),
            lambda: dense().to_sparse_bsr((1, 1)).to_dense(),
            lambda: dense().cpu().to_sparse().to(DEVICE).to_dense(),
            lambda: dense().cpu().to_sparse_csr().to(DEVICE).to_dense(),
            lambda: torch.sparse_coo_tensor(
                torch.tensor([[0, 1], [1, 0]], device=DEVICE), torch.tensor([2.0, 3.0], device=DEVICE), (2, 2)
            ).to_dense(),
            lambda: torch.sparse_coo_tensor([[0, 1], [1, 0]], [2.0, 3.0], (2, 2), device=DEVICE).to_dense(),
            lambda: torch.sparse_csr_tensor([0, 1, 2], [1, 0], [2.0, 3.0], (2, 2), device=DEVICE).to_dense(),
            lambda: torch.zeros(2, 2, layout=torch.sparse_coo, device=DEVICE).to_dense() + dense(),
            lambda: torch.sparse.mm(dense().cpu().to_sparse(), torch.eye(2, device=DEVICE)),
            lambda: torch.sparse.mm(dense().cpu().to_sparse_csr(), torch.eye(2, device=DEVICE)),
            lambda: dense().cpu().to_sparse() @ torch.eye(2, device=DEVICE),
            lambda: dense() * dense().cpu().to_sparse() / dense().nan_to_num(1),
            lambda: torch.empty_like(dense(), layout=torch.sparse_coo).to_dense() + dense(),
        ],
    )
    def test_every_way_in(self, attempt):
        agrees_or_refuses(attempt, self.EXPECTED)

    def test_sparse_gradients_of_an_embedding(self):
        embedding = torch.nn.Embedding(4, 2, sparse=True).to(DEVICE)

        def gradient() -> torch.Tensor:
            embedding(torch.tensor([1, 1, 3], device=DEVICE)).sum().backward()
            return embedding.weight.grad.to_dense()

        agrees_or_refuses(gradient, torch.tensor([[0.0, 0], [2, 2], [0, 0], [1, 1]]))

    def test_the_cpu_still_has_them(self):
        assert dense().cpu().to_sparse()._nnz() == 2


class TestQuantized:
    EXPECTED = torch.tensor([0.0, 1.0, 2.0])

    @pytest.mark.parametrize(
        "attempt",
        [
            lambda: torch.quantize_per_tensor(torch.arange(3.0, device=DEVICE), 0.5, 0, torch.quint8).dequantize(),
            lambda: torch.quantize_per_channel(
                torch.arange(3.0, device=DEVICE),
                torch.ones(3, device=DEVICE),
                torch.zeros(3, device=DEVICE),
                0,
                torch.qint8,
            ).dequantize(),
            lambda: torch.quantize_per_tensor(torch.arange(3.0), 0.5, 0, torch.quint8).to(DEVICE).dequantize(),
            lambda: (
                torch._empty_affine_quantized(
                    (3,), scale=1.0, zero_point=0, dtype=torch.qint8, device=DEVICE
                ).dequantize()
                * 0
                + torch.arange(3.0, device=DEVICE)
            ),
            lambda: (
                torch.quantize_per_tensor_dynamic(torch.arange(3.0, device=DEVICE), torch.qint8, False)
                .dequantize()
                .round()
            ),
        ],
    )
    def test_every_way_in(self, attempt):
        agrees_or_refuses(attempt, self.EXPECTED)

    def test_fake_quantisation_works(self):
        x = torch.tensor([0.1, 0.26, 9.0])
        quantised = torch.fake_quantize_per_tensor_affine(x.to(DEVICE), 0.1, 0, 0, 15)
        assert torch.equal(quantised.cpu(), torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 15))


class TestNested:
    @pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
    @pytest.mark.parametrize("where", ["made there", "moved there"])
    def test_nested(self, layout, where):
        parts = [torch.ones(2, 3), torch.ones(1, 3)]

        def attempt() -> torch.Tensor:
            if where == "made there":
                nested = torch.nested.nested_tensor([p.to(DEVICE) for p in parts], layout=layout, device=DEVICE)
            else:
                nested = torch.nested.nested_tensor(parts, layout=layout).to(DEVICE)
            return torch.nested.to_padded_tensor(nested * 2, 0.0)

        agrees_or_refuses(attempt, torch.tensor([[[2.0] * 3, [2.0] * 3], [[2.0] * 3, [0.0] * 3]]))


@pytest.mark.emulated
@pytest.mark.parametrize(
    "make",
    [
        lambda parts: torch.nested.nested_tensor(parts, device=DEVICE) * 2,  # PyTorch makes it on the CPU
        lambda parts: torch.nested.to_padded_tensor(torch.nested.nested_tensor(parts, device=DEVICE), 0.0),
        lambda parts: torch.nested.as_nested_tensor([part.to(DEVICE) for part in parts]),
        lambda parts: torch.nested.nested_tensor(parts).to(DEVICE),
    ],
)
def test_a_strided_nested_tensor_is_refused_where_it_is_made_or_used(make):
    with pytest.raises(NotImplementedError, match="dense, strided tensors only, no sparse, quantized or nested ones"):
        make([torch.ones(2, 3), torch.ones(1, 3)])


@pytest.mark.emulated
def test_a_jagged_nested_tensor_passes():
    parts = [torch.ones(2, 3), torch.ones(1, 3)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, device=DEVICE) * 2
    assert nested.device.type == DEVICE
    assert [part.cpu().tolist() for part in nested.unbind()] == [(part * 2).tolist() for part in parts]


class TestFloat64:
    """A NeuronCore's tensor engine has no 64-bit floating point; what the real backend does then is not documented."""

    def test_moving_and_reading_are_fine(self):
        x = torch.tensor([1.0, 1 + 2.0**-40], dtype=torch.float64)
        assert torch.equal(x.to(DEVICE).cpu(), x)
        assert torch.equal(x.to(DEVICE).float().cpu(), x.float())

    @pytest.mark.emulated
    @pytest.mark.parametrize(
        "run",
        [
            lambda: torch.nn.Linear(2, 2).double().to(DEVICE)(torch.ones(1, 2, dtype=torch.float64, device=DEVICE)),
            lambda: torch.nn.Linear(2, 2).double().to(DEVICE)(torch.ones(2, dtype=torch.float64, device=DEVICE)),
            lambda: (
                torch.nn.Conv2d(1, 1, 1).double().to(DEVICE)(torch.ones(1, 1, 2, 2, dtype=torch.float64, device=DEVICE))
            ),
            lambda: (
                torch.ones(2, 2, dtype=torch.float64, device=DEVICE)
                @ torch.ones(2, 2, dtype=torch.float64, device=DEVICE)
            ),
            lambda: (
                torch.ones(2, 2, 2, dtype=torch.float64, device=DEVICE)
                @ torch.ones(2, 2, dtype=torch.float64, device=DEVICE)
            ),
            lambda: torch.einsum("ij,jk->ik", *[torch.ones(2, 2, dtype=torch.complex128, device=DEVICE)] * 2),
            lambda: torch.nn.functional.scaled_dot_product_attention(
                *[torch.ones(1, 1, 4, 8, dtype=torch.float64, device=DEVICE)] * 3
            ),
            lambda: torch.mv(*[torch.ones(n, dtype=torch.float64, device=DEVICE) for n in ((2, 2), 2)]),
            lambda: torch.ones(2, 2, dtype=torch.float64, device=DEVICE).addmm_(
                *[torch.ones(2, 2, dtype=torch.float64, device=DEVICE)] * 2
            ),
            lambda: torch.cdist(*[torch.ones(2, 2, dtype=torch.float64, device=DEVICE)] * 2),
            lambda: (
                torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, dtype=torch.float64)
                .to(DEVICE)
                .eval()
                .requires_grad_(False)(torch.ones(1, 2, 4, dtype=torch.float64, device=DEVICE))
            ),
            lambda: torch.nn.LSTM(2, 2).double().to(DEVICE)(torch.ones(1, 1, 2, dtype=torch.float64, device=DEVICE)),
        ],
    )
    def test_a_float64_module_is_refused_with_the_mend(self, run):
        with pytest.raises((TypeError, NotImplementedError), match="64-bit floating point") as caught:
            run()
        assert ".float()" in str(caught.value) and "module.float()" in str(caught.value)

    @pytest.mark.emulated
    def test_it_can_be_allowed(self):
        code = """
import torch
x = torch.full((2, 2), 1 + 2.0**-40, dtype=torch.float64)
there = x.to("neuron")
print(torch.equal((there @ there).cpu(), x @ x), torch.nn.Linear(2, 2).double().to("neuron")(there).dtype)
"""
        assert output_of(code, NEURON_LAB_FLOAT64="allow") == "True torch.float64"

    def test_the_mend_works(self):
        model = torch.nn.Linear(2, 2).double().to(DEVICE).float()
        assert model(torch.ones(1, 2, device=DEVICE)).dtype == torch.float32


class TestInterchange:
    def test_dlpack_round_trips_or_refuses(self):
        x = torch.arange(3.0, device=DEVICE)
        try:
            assert torch.from_dlpack(x).tolist() == [0, 1, 2]
        except (RuntimeError, ValueError, BufferError) as error:
            assert DEVICE in str(error)

    def test_numpy_of_a_tensor_that_needs_gradients(self):
        with pytest.raises((RuntimeError, TypeError)):
            torch.ones(2, device=DEVICE, requires_grad=True).numpy()

    def test_sharing_memory_between_processes(self):
        x = torch.ones(2, device=DEVICE)
        try:
            shared = x.share_memory_()
        except (RuntimeError, NotImplementedError) as error:
            assert "neuron" in str(error).lower() or "share" in str(error).lower()
        else:
            assert shared.tolist() == [1, 1]

    def test_jit_and_export_run(self):
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()).to(DEVICE)
        x = torch.randn(2, 3, device=DEVICE)
        exported = torch.export.export(model, (x,)).module()
        assert torch.equal(exported(x), model(x))
