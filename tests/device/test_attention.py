"""scaled_dot_product_attention in all its forms, forward and backward as on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from .helpers import DEVICE, assert_agrees


class TestAttention:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("length", [3, 40])
    @pytest.mark.parametrize("case", ["plain", "causal", "bool", "float", "all-masked", "scale", "broadcast"])
    def test_masks(self, case, length, dtype):
        q, k, v = (torch.randn(2, 4, length, 8, dtype=dtype).requires_grad_() for _ in range(3))
        mask = None
        if case in ("bool", "all-masked"):
            mask = torch.rand(2, 1, length, length) > 0.3
            mask[..., 0] = True
            if case == "all-masked":
                mask[:, :, 1] = False
        elif case == "float":
            mask = torch.randn(2, 4, length, length, dtype=dtype)
        elif case == "broadcast":
            mask = torch.randn(length, length, dtype=dtype)

        def attend(q, k, v, mask):
            return F.scaled_dot_product_attention(
                q, k, v, mask, is_causal=case == "causal", scale=0.3 if case == "scale" else None
            )

        assert_agrees(attend, q, k, v, mask)

    def test_grouped_queries(self):
        q = torch.randn(2, 8, 5, 4).requires_grad_()
        k, v = (torch.randn(2, 2, 5, 4).requires_grad_() for _ in range(2))
        attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)  # noqa: E731
        repeat = lambda t: t.repeat_interleave(4, 1)  # noqa: E731
        assert_agrees(attend, q, k, v)
        assert_agrees(
            lambda q, k, v: attend(q, k, v) - F.scaled_dot_product_attention(q, repeat(k), repeat(v), is_causal=True),
            q,
            k,
            v,
        )

    def test_different_lengths_and_a_different_value_size(self):
        attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v)  # noqa: E731
        assert_agrees(attend, torch.randn(1, 2, 3, 8), torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 8))
        assert_agrees(attend, torch.randn(1, 2, 3, 8), torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 5))
        assert_agrees(attend, torch.randn(3, 8), torch.randn(7, 8), torch.randn(7, 8))

    def test_dropout_drops_the_share_that_was_asked_for(self):
        q = torch.randn(1, 1, 64, 16, device=DEVICE)
        value = torch.eye(64, device=DEVICE)[None, None]
        out = F.scaled_dot_product_attention(q, q, value, dropout_p=0.5)
        share = (out == 0).float().mean().item()
        assert 0.4 < share < 0.6
        assert (F.scaled_dot_product_attention(q, q, value) == 0).sum().item() == 0

    def test_backends_may_be_chosen(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q = torch.randn(1, 2, 6, 8)
        with sdpa_kernel(SDPBackend.MATH):
            assert_agrees(lambda q: F.scaled_dot_product_attention(q, q, q), q.requires_grad_())

    def test_multi_head_attention_returns_weights(self):
        def run(x):
            torch.manual_seed(3)
            out, weights = nn.MultiheadAttention(8, 2, batch_first=True).to(x.device)(x, x, x, need_weights=True)
            return [out, weights]

        assert_agrees(run, torch.randn(2, 5, 8))
