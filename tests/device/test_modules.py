"""Modules and optimizers: moved as a whole, trained as on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from .helpers import DEVICE, assert_agrees, assert_same


class Tied(nn.Module):
    """Input and output embedding are one Parameter, as in most language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(x)).relu())


class TestMoving:
    @pytest.mark.parametrize(
        "move", [lambda m: m.to(DEVICE), lambda m: m.neuron(), lambda m: m.to(DEVICE, torch.bfloat16)]
    )
    def test_tied_weights_stay_tied(self, move):
        model = move(Tied())
        assert model.head.weight is model.embed.weight
        assert model.head.weight.device.type == DEVICE
        model.head.weight.data.fill_(3.0)
        assert model.embed.weight[0, 0].item() == 3
        back = model.cpu()
        assert back.head.weight is back.embed.weight and back.head.weight.device.type == "cpu"

    def test_tied_weights_train_as_on_the_cpu(self):
        def train(device: str) -> list[float]:
            torch.manual_seed(3)
            model = Tied().to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            x = torch.arange(10, device=device)
            losses = []
            for _ in range(6):
                loss = F.cross_entropy(model(x), (x + 1) % 10)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        losses = train(DEVICE)
        assert losses[-1] < losses[0]
        assert_same(losses, train("cpu"))

    def test_parameters_keep_their_identity(self):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        before = list(model.parameters())
        before[0].grad = torch.ones_like(before[0])
        model.to(DEVICE)
        assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
        assert before[0].grad.device.type == DEVICE
        assert all(b.device.type == DEVICE for b in model.buffers())

    def test_an_optimizer_made_before_the_move_trains_the_moved_weights(self):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model.to(DEVICE)
        before = model.weight.detach().clone()
        model(torch.ones(4, 2, device=DEVICE)).sum().backward()
        optimizer.step()
        assert not torch.equal(model.weight.detach(), before)
        assert optimizer.state[model.weight]["exp_avg"].device.type == DEVICE

    def test_references_outside_the_module_follow(self):
        model = nn.Linear(2, 2)
        kept = model.weight
        tied_list = nn.ParameterList([model.weight])
        nn.Sequential(model, nn.Module()).to(DEVICE)
        assert kept is model.weight and tied_list[0].device.type == DEVICE

    def test_meta_to_empty_and_load(self):
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
        model.to_empty(device=DEVICE)
        source = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
        model.load_state_dict(source.state_dict())
        assert_same(dict(model.state_dict()), dict(source.state_dict()))
        with torch.device("meta"):
            assigned = nn.Linear(3, 4)
        assigned.load_state_dict({k: v.to(DEVICE) for k, v in source[0].state_dict().items()}, assign=True)
        assert assigned.weight.device.type == DEVICE and isinstance(assigned.weight, nn.Parameter)

    def test_half_float_bfloat16(self):
        model = nn.Linear(2, 2).to(DEVICE)
        assert model.bfloat16().weight.dtype == torch.bfloat16 and model.float().weight.dtype == torch.float32
        assert model.to(torch.float16).weight.device.type == DEVICE

    def test_deepcopy_keeps_ties_inside_and_cuts_them_outside(self):
        model = Tied().to(DEVICE)
        twin = copy.deepcopy(model)
        assert twin.head.weight is twin.embed.weight and twin.head.weight is not model.head.weight
        twin.head.weight.data.zero_()
        assert model.head.weight.abs().sum().item() > 0

    def test_state_dict_goes_both_ways(self):
        here, there = nn.GRU(3, 4), nn.GRU(3, 4).to(DEVICE)
        there.load_state_dict(here.state_dict())
        x = torch.randn(5, 2, 3)
        assert_same(there(x.to(DEVICE))[0], here(x)[0].detach())
        here.load_state_dict(there.state_dict())
        assert all(p.device.type == "cpu" for p in here.parameters())

    def test_parametrizations_and_weight_norm(self):
        from torch.nn.utils import parametrizations

        def run(x):
            torch.manual_seed(5)
            layers = [parametrizations.weight_norm(nn.Linear(4, 4)), parametrizations.orthogonal(nn.Linear(4, 4))]
            layers.append(parametrizations.spectral_norm(nn.Linear(4, 3)))
            return nn.Sequential(*layers).to(x.device)(x)

        assert_agrees(run, torch.randn(2, 4, requires_grad=True), rtol=1e-4, atol=1e-5)

    def test_lazy_modules(self):
        model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()).to(DEVICE)
        model(torch.randn(3, 5, device=DEVICE))
        assert model[0].weight.shape == (4, 5) and model[0].weight.device.type == DEVICE


CONVOLUTIONS = [
    (nn.Conv1d, (2, 4, 9)),
    (nn.Conv2d, (2, 4, 9, 9)),
    (nn.Conv3d, (1, 4, 5, 6, 7)),
    (nn.ConvTranspose1d, (2, 4, 9)),
    (nn.ConvTranspose2d, (2, 4, 9, 9)),
    (nn.ConvTranspose3d, (1, 4, 4, 5, 6)),
]


def gradients_agree(make, *inputs: torch.Tensor, **tolerance) -> None:
    """A module's output, input gradients and weight gradients are the CPU's."""
    results = {}
    for device in (DEVICE, "cpu"):
        torch.manual_seed(4)
        model = make().to(device)
        moved = [x.detach().to(device).requires_grad_(x.is_floating_point()) for x in inputs]
        out = model(*moved)
        first = out if isinstance(out, torch.Tensor) else out[0]
        seed = torch.randn(first.shape, generator=torch.Generator().manual_seed(6)).to(device, first.dtype)
        first.backward(seed)
        grads = [x.grad for x in moved if x.requires_grad] + [p.grad for p in model.parameters()]
        assert all(g is not None and g.device.type == device for g in grads)
        results[device] = [first.detach().cpu(), *(g.cpu() for g in grads)]
    assert_same(results[DEVICE], results["cpu"], **tolerance)


class TestLayers:
    @pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS, ids=lambda v: getattr(v, "__name__", ""))
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize(
        "options",
        [{}, {"stride": 2, "padding": 1}, {"groups": 2, "bias": False}, {"dilation": 2, "padding": 2}],
        ids=["plain", "strided", "grouped", "dilated"],
    )
    def test_convolutions(self, layer, shape, dtype, options):
        gradients_agree(lambda: layer(4, 6, 3, **options).to(dtype), torch.randn(shape, dtype=dtype))

    def test_convolution_in_channels_last(self):
        x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
        gradients_agree(lambda: nn.Conv2d(4, 8, 3, padding="same", padding_mode="reflect"), x)

    @pytest.mark.parametrize("layer", [nn.RNN, nn.LSTM, nn.GRU])
    @pytest.mark.parametrize(
        "options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}]
    )
    def test_recurrent(self, layer, options):
        gradients_agree(lambda: layer(5, 6, **options), torch.randn(4, 3, 5))

    @pytest.mark.parametrize("layer", [nn.RNN, nn.LSTM, nn.GRU])
    def test_recurrent_on_packed_sequences(self, layer):
        x, lengths = torch.randn(3, 5, 4), torch.tensor([5, 2, 4])  # lengths are a CPU tensor everywhere

        def run(x):
            torch.manual_seed(2)
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            out, _ = layer(4, 6, batch_first=True).to(x.device)(packed)
            padded, back = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
            assert back.tolist() == lengths.tolist() and out.batch_sizes.device.type == "cpu"
            return padded

        assert_agrees(run, x.requires_grad_())

    @pytest.mark.parametrize("layer", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
    def test_cells(self, layer):
        gradients_agree(lambda: layer(5, 6), torch.randn(3, 5))

    @pytest.mark.parametrize(
        ("make", "shape"),
        [
            (lambda: nn.BatchNorm1d(4), (6, 4)),
            (lambda: nn.BatchNorm2d(4), (2, 4, 5, 5)),
            (lambda: nn.GroupNorm(2, 4), (2, 4, 5)),
            (lambda: nn.InstanceNorm2d(4, affine=True), (2, 4, 5, 5)),
            (lambda: nn.LayerNorm(5), (3, 4, 5)),
            (lambda: nn.RMSNorm(5), (3, 4, 5)),
            (lambda: nn.LocalResponseNorm(2), (2, 4, 5)),
            (lambda: nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2)), (2, 3, 8, 8)),
            (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 4, 4)),
            (lambda: nn.Upsample(scale_factor=2, mode="nearest"), (1, 2, 4, 4)),
            (lambda: nn.PixelShuffle(2), (1, 4, 3, 3)),
            (lambda: nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.PReLU(), nn.Softmax(-1)), (3, 4)),
        ],
    )
    def test_norms_pools_and_friends(self, make, shape):
        gradients_agree(make, torch.randn(shape))

    def test_batch_norm_keeps_running_statistics(self):
        def run(x):
            norm = nn.BatchNorm1d(3).to(x.device)
            for _ in range(3):
                norm(x)
            return [norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.eval()(x).detach()]

        assert_agrees(run, torch.randn(8, 3) * 2 + 1)

    def test_embedding_bags(self):
        x, offsets = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2])
        for mode in ("sum", "mean", "max"):
            assert_agrees(
                lambda w, x, o, m=mode: F.embedding_bag(x, w, o, mode=m),
                torch.randn(6, 3, requires_grad=True),
                x,
                offsets,
            )
        assert_agrees(lambda w, x: F.embedding(x, w, padding_idx=4, max_norm=1.0), torch.randn(6, 3), x)

    @pytest.mark.parametrize("activation", ["relu", "gelu"])
    @pytest.mark.parametrize("norm_first", [False, True])
    def test_transformer_layers(self, activation, norm_first):
        options = {"dropout": 0.0, "batch_first": True, "activation": activation, "norm_first": norm_first}
        gradients_agree(
            lambda: nn.TransformerEncoderLayer(16, 4, 32, **options), torch.randn(2, 6, 16), rtol=1e-4, atol=1e-5
        )
        gradients_agree(
            lambda: nn.TransformerDecoderLayer(16, 4, 32, **options),
            torch.randn(2, 6, 16),
            torch.randn(2, 4, 16),
            rtol=1e-4,
            atol=1e-5,
        )

    def test_transformer_encoder_in_evaluation_takes_the_same_path(self):
        def run(x):
            torch.manual_seed(3)
            encoder = (
                nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).to(x.device).eval()
            )
            mask = torch.zeros(2, 6, dtype=torch.bool, device=x.device)
            mask[0, 4:] = True
            with torch.no_grad():
                return encoder(x, src_key_padding_mask=mask)[1]

        assert_agrees(run, torch.randn(2, 6, 16))

    def test_losses(self):
        logits, target = torch.randn(6, 5), torch.randint(0, 5, (6,))
        for smoothing, reduction in ((0.0, "mean"), (0.2, "sum"), (0.0, "none")):
            assert_agrees(
                lambda x, t, s=smoothing, r=reduction: F.cross_entropy(
                    x, t, label_smoothing=s, reduction=r, ignore_index=2
                ),
                logits.clone().requires_grad_(),
                target,
            )
        assert_agrees(
            lambda x, t: F.binary_cross_entropy_with_logits(x, t), logits.clone().requires_grad_(), torch.rand(6, 5)
        )

    def test_ctc_loss_with_lengths_on_either_device(self):
        log_probs, targets = torch.randn(12, 2, 5).log_softmax(-1), torch.randint(1, 5, (2, 4))
        lengths = torch.tensor([12, 10]), torch.tensor([4, 3])
        expected = F.ctc_loss(log_probs, targets, *lengths)
        there = log_probs.to(DEVICE), targets.to(DEVICE)
        assert_same(F.ctc_loss(*there, *lengths), expected)
        assert_same(F.ctc_loss(*there, *(n.to(DEVICE) for n in lengths)), expected)
