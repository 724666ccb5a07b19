"""Log-probabilities of a language model's answers, never with more logits in memory than a chunk's."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from coterie.engines.torch.learner import Places
from coterie.engines.torch.pretrained import LanguageModel
from coterie.grpo.objective import entropy
from coterie.rollouts import Batch, Bits, unpack_bits


def score_in_chunks(model: LanguageModel, batch: Batch, temperature: float, chunk: int) -> Places:
    """The batch under the model, as it was sampled; hidden states become logits `chunk` chosen places at a time."""
    model.learn(torch.is_grad_enabled())
    tokens = torch.from_numpy(batch.tokens).to(model.device)
    chosen = torch.from_numpy(batch.chosen).to(model.device)
    # Place t is predicted from place t - 1. Rows are padded on the right, where causality hides the padding.
    hidden = model(tokens[:, :-1])[chosen[:, 1:]]  # [A, width]
    taken = tokens[chosen]
    logprobs, entropies = [], []
    for place, part in enumerate(hidden.split(chunk)):
        rows = slice(place * chunk, place * chunk + len(part))
        legal = None if batch.legal is None else batch.legal[rows]
        # Backward makes a chunk's logits anew, so that they are never kept.
        found = checkpoint(score_chunk, model, part, taken[rows], legal, temperature, use_reentrant=False)
        logprobs.append(found[0])
        entropies.append(found[1])
    blank = torch.zeros(tokens.shape, device=model.device)
    return Places(blank.masked_scatter(chosen, torch.cat(logprobs)), blank.masked_scatter(chosen, torch.cat(entropies)))


def score_chunk(
    model: LanguageModel, hidden: Tensor, taken: Tensor, legal: Bits | None, temperature: float
) -> tuple[Tensor, Tensor]:
    """[A], [A]: the log-probability of what was taken, and the entropy of what could have been."""
    logits = model.logits(hidden) / (temperature or 1.0)
    if legal is not None:
        support = torch.from_numpy(unpack_bits(legal, logits.shape[-1])).to(logits.device)
        logits = logits.masked_fill(~support, -torch.inf)
    table = logits.log_softmax(-1)
    return table.gather(-1, taken[:, None])[:, 0], entropy(table)
