"""Norms in fewer passes are the models' own."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, GemmaConfig, LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from coterie.engines.torch.norms import quicken_norms, rms_norm

SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}


@pytest.mark.parametrize("shape", [(7,), (1, 9), (3, 4, 5, 64)])
def test_values_and_gradients_are_those_of_autograd(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    norm = LlamaRMSNorm(shape[-1], eps=1e-3).double()
    torch.nn.init.normal_(norm.weight)
    x, grad = (torch.randn(shape, dtype=torch.float64) for _ in range(2))
    theirs, mine = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours = norm.weight.detach().clone().requires_grad_()
    # Theirs computes in float32.
    wanted = theirs * torch.rsqrt(theirs.pow(2).mean(-1, keepdim=True) + 1e-3) * norm.weight
    found = rms_norm(mine, ours, 1e-3)
    torch.testing.assert_close(found, wanted)
    wanted.backward(grad)
    found.backward(grad)
    torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(ours.grad, norm.weight.grad)
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


def test_a_frozen_weight_gets_no_gradient() -> None:
    x, weight = torch.randn(3, 8, requires_grad=True), torch.ones(8)
    rms_norm(x, weight, 1e-6).sum().backward()
    assert weight.grad is None
    assert x.grad is not None
