"""Norms in fewer passes are the models' own."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM, GemmaConfig, LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated

from coterie.engines.torch.norms import quicken_norms, rms_norm

SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}


@pytest.mark.parametrize("shape", [(7,), (1, 9), (3, 4, 5, 64)])
@pytest.mark.parametrize("learns", [True, False])
def test_values_and_gradients_are_those_of_autograd(shape: tuple[int, ...], learns: bool) -> None:
    torch.manual_seed(0)
    x, grad = (torch.randn(shape, dtype=torch.float64) for _ in range(2))
    weight = torch.randn(shape[-1], dtype=torch.float64)
    (mine, ours), (theirs, plain) = ((x.clone().requires_grad_(), weight.clone().requires_grad_(learns)) for _ in "ab")
    found = rms_norm(mine, ours, 1e-3)
    wanted = plain * (theirs * torch.rsqrt(theirs.pow(2).mean(-1, keepdim=True) + 1e-3))
    torch.testing.assert_close(found, wanted)
    for result in (found, wanted):
        result.backward(grad)
    torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(ours.grad, plain.grad)
    assert torch.autograd.gradcheck(lambda a, b: rms_norm(a, b, 1e-3), (mine, ours))


@pytest.mark.parametrize(
    ("config", "norms"),
    [
        (LlamaConfig(vocab_size=32, num_key_value_heads=1, **SMALL), 5),
        (Qwen3Config(vocab_size=32, num_key_value_heads=1, head_dim=12, **SMALL), 9),
        (GemmaConfig(vocab_size=32, num_key_value_heads=1, head_dim=12, **SMALL), 0),  # adds one to the weight
    ],
    ids=["Llama", "Qwen3", "Gemma"],
)
def test_only_norms_that_compute_this_are_replaced(config: object, norms: int) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    tokens = torch.arange(12)[None]
    plain = copy.deepcopy(model)
    assert quicken_norms(model) == norms
    again = copy.deepcopy(model)
    for weight in again.parameters():
        weight.data.mul_(1.5)  # a copy has its own
    results = []
    for each in (plain, model):
        loss = each(tokens, labels=tokens).loss
        loss.backward()
        results.append([loss, *(weight.grad for weight in each.parameters())])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(again(tokens, labels=tokens).loss, results[0][0], rtol=1e-3)


def test_a_norm_with_a_gate_stays() -> None:
    gated, bare = MambaRMSNormGated(8), MambaRMSNormGated(8)
    del bare.weight
    assert quicken_norms(nn.ModuleList([gated, bare, LlamaRMSNorm(8)])) == 1
    x, gate = torch.randn(2, 3, 8)
    torch.testing.assert_close(gated(x, gate), rms_norm(x * F.silu(gate), gated.weight, gated.variance_epsilon))
