"""A token by few operations is a token of the model."""

from __future__ import annotations

import pytest
import torch

from coterie.engines.torch.small.decoding import draw, fill_prompts
from coterie.engines.torch.small.transformer import PolicyShape, Transformer


def make_model() -> Transformer:
    model = Transformer(PolicyShape(13, 24, 2, 3))
    model.initialize(torch.Generator().manual_seed(0))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(5.0).add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return model


@pytest.mark.parametrize("prompts", [[[1, 2, 3], [4], [5, 6]], [[1, 2], [3, 4], [5, 6]]], ids=["padded", "even"])
@torch.inference_mode()
def test_rows_that_stay_get_the_logits_of_the_whole_text(prompts: list[list[int]]) -> None:
    model = make_model()
    step, logits, positions = fill_prompts(model, prompts, 2, room=2)  # it has to grow
    texts = [list(prompt) for prompt in prompts for _ in range(2)]
    rng = torch.Generator().manual_seed(2)
    for place in range(9):
        for row, text in enumerate(texts):
            tokens = torch.tensor([text])
            whole = model.head(model(tokens, torch.arange(len(text))[None])[:, -1])
            torch.testing.assert_close(logits[row : row + 1], whole, atol=1e-5, rtol=1e-5)
        if place in (2, 5):
            going = torch.ones(len(texts), dtype=torch.bool)
            going[[0, len(texts) - 2]] = False
            order = step.drop(going)
            assert sorted(order.tolist()) == going.nonzero()[:, 0].tolist()
            texts, positions = [texts[i] for i in order], positions[order]
        token = torch.randint(0, 13, (len(texts),), generator=rng)
        texts = [[*text, int(t)] for text, t in zip(texts, token, strict=True)]
        logits, positions = step.logits(step(token, positions)), positions + 1
    assert len(texts) == 2


def test_only_what_is_allowed_is_drawn_as_often_as_it_is_likely() -> None:
    logits = torch.tensor([[5.0, 0.0, 1.0, 9.0, 2.0, -1.0]]).repeat(40_000, 1)
    support = torch.tensor([[False, True, True, False, True, False]]).repeat(40_000, 1)
    tokens, logprobs = draw(logits, support, 0.5, torch.Generator().manual_seed(0))
    # At temperature 1/2 the odds are 1 : e^2 : e^4.
    chances = torch.tensor([1.0, 7.389, 54.598]) / 62.987
    counts = tokens.bincount(minlength=6)
    assert counts[[0, 3, 5]].tolist() == [0, 0, 0]
    expected = 40_000 * chances
    assert float(((counts[[1, 2, 4]] - expected) ** 2 / expected).sum()) < 18.4  # p < .0001
    torch.testing.assert_close(logprobs[tokens == 4][0], chances[2].log(), atol=1e-4, rtol=0)
