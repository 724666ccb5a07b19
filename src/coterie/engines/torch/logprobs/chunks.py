"""Log-probabilities of a language model's answers: packed rows, and never more logits in memory than a chunk's."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from coterie.engines.torch.learner import Places, split_by_length
from coterie.engines.torch.logprobs.head import taken_logprobs
from coterie.engines.torch.logprobs.packed_attention import PackedLayout
from coterie.engines.torch.logprobs.packing import pack, split_packed
from coterie.engines.torch.pretrained import LanguageModel
from coterie.engines.torch.transfer import to_device, unpack
from coterie.grpo.objective import entropy
from coterie.rollouts import Batch, Ints


def split_rows(model: LanguageModel, batch: Batch, max_tokens: int) -> Iterator[Ints]:
    """Micro-batches of a batch, as this model lays out its tokens."""
    if model.why_plain:
        return split_by_length(batch, max_tokens)
    return split_packed(batch, max_tokens)


def score_in_chunks(model: LanguageModel, batch: Batch, temperature: float, chunk: int, share: bool = True) -> Places:
    """The batch under the model, as it was sampled; hidden states become logits `chunk` chosen places at a time."""
    model.learn(torch.is_grad_enabled())
    device = model.device
    hidden, sources = (padded_states if model.why_plain else packed_states)(model, batch, share)
    places = to_device(batch.chosen.ravel().nonzero()[0], device)
    taken = to_device(batch.tokens[batch.chosen], device)
    legal = None if batch.legal is None else to_device(batch.legal, device)
    sharpness = 1 / (temperature or 1.0)
    head = model.plain_head
    if head is None:
        logprobs, entropies = score_by_autograd(model, hidden, sources, taken, legal, sharpness, chunk)
    else:
        sharpness *= model.logit_scale
        logprobs, entropies = taken_logprobs(hidden, head.weight, sources, taken, legal, sharpness, chunk)
    blank = torch.zeros(batch.tokens.size, device=device)
    shape = batch.tokens.shape
    return Places(*(blank.index_copy(0, places, found).view(shape) for found in (logprobs, entropies)))


def packed_states(model: LanguageModel, batch: Batch, share: bool) -> tuple[Tensor, Tensor]:
    """[T, width] of the rows end to end, and [A] where each chosen token is predicted from."""
    packed = pack(batch, share)
    layout = PackedLayout(packed, model.device, model.causal.dtype, model.head_width)
    tokens, positions, sources = (
        to_device(array, model.device) for array in (packed.tokens, packed.positions, packed.sources)
    )
    return model(tokens[None], positions=positions[None], layout=layout)[0], sources


def padded_states(model: LanguageModel, batch: Batch, share: bool) -> tuple[Tensor, Tensor]:
    """[N T, width] of rows padded on the right, where causality hides the padding; and the same places."""
    tokens = to_device(batch.tokens[:, :-1], model.device)
    sources = batch.chosen[:, 1:].ravel().nonzero()[0]
    return model(tokens).flatten(0, 1), to_device(sources, model.device)


def score_by_autograd(
    model: LanguageModel,
    hidden: Tensor,
    sources: Tensor,
    taken: Tensor,
    legal: Tensor | None,
    sharpness: float,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """For a head that is more than a matrix: backward makes a chunk's logits anew, so that they are never kept."""

    def score(states: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        logits = model.logits(states) * sharpness
        if legal is not None:
            logits = logits.masked_fill(~unpack(legal[rows], logits.shape[-1]), -torch.inf)
        table = logits.log_softmax(-1)
        return table.gather(-1, taken[rows, None])[:, 0], entropy(table)

    found = []
    for start in range(0, len(sources), chunk):
        rows = slice(start, min(start + chunk, len(sources)))
        found.append(checkpoint(score, hidden[sources[rows]], rows, use_reentrant=False))
    logprobs, entropies = (torch.cat(each) for each in zip(*found, strict=True))
    return logprobs, entropies
