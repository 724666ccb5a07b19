"""One update from rollouts that somebody else made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from coterie.engines.base import Dials, Metrics
from coterie.grpo.advantages import ADVANTAGES
from coterie.rollouts import Batch, Bools, Floats, Group, Task, make_batch

if TYPE_CHECKING:
    from coterie.engines.torch.hf import LanguageModelEngine

Logprobs = Sequence[float | Sequence[float]]


class Rollouts(TypedDict, total=False):
    """An entry an answer. Without logprobs the policy as it is counts as the sampler; without ref_logprobs no KL."""

    prompts: Sequence[str]
    responses: Sequence[str]
    rewards: Sequence[float]
    prompt_ids: Sequence[int]  # answers with the same one are siblings
    logprobs: Logprobs  # of the sampler: a number a token, end token included, or their sum
    ref_logprobs: Logprobs


def grpo_update(
    engine: LanguageModelEngine,
    batch: Rollouts,
    learning_rate: float,
    kl_coef: float = 0.001,
    advantage: str = "centered",
    pass_k: int = 4,
    temperature: float = 1.0,
) -> Metrics:
    """Move the engine's policy towards the better responses to each prompt."""
    names = ("prompts", "responses", "rewards", "prompt_ids", "logprobs", "ref_logprobs")
    counts = {name: len(batch[name]) for name in names if name in batch}  # type: ignore[literal-required]
    if len(set(counts.values())) != 1 or not {*names[:4]} <= counts.keys():
        raise ValueError(f"grpo_update needs as many entries of each of {', '.join(names[:4])}; it has {counts}")
    tasks = [Task(str(which), prompt) for which, prompt in zip(batch["prompt_ids"], batch["prompts"], strict=True)]
    pairs = zip(tasks, batch["responses"], strict=True)
    groups = [Group(task, [engine.known(task, response)]) for task, response in pairs]
    advantages = sibling_advantages(batch["rewards"], batch["prompt_ids"], advantage, pass_k)
    rows = make_batch(groups, advantages[:, None])
    now = engine.logprobs(rows, temperature)
    rows = replace(rows, logprobs=spread(batch["logprobs"], now, rows, "logprobs") if "logprobs" in batch else now)
    if "ref_logprobs" in batch and kl_coef > 0:
        rows = replace(rows, reference=spread(batch["ref_logprobs"], now, rows, "ref_logprobs"))
    return engine.update(rows, Dials(learning_rate, temperature, kl_coef if rows.reference is not None else 0.0))


def sibling_advantages(rewards: Sequence[float], prompt_ids: Sequence[int], advantage: str, pass_k: int) -> Floats:
    """[N]: each answer beside those with the same prompt id, however many there are."""
    values, ids = np.array(rewards, np.float64), np.array(prompt_ids)
    result = np.zeros(len(values), np.float32)
    for which in np.unique(ids):
        siblings = ids == which
        result[siblings] = np.asarray(ADVANTAGES[advantage](values[None, siblings], pass_k))[0]
    return result


def spread(given: Logprobs, now: Floats, batch: Batch, name: str) -> Floats:
    """[N, T]: log-probabilities as they were given, at the chosen places."""
    result = np.zeros_like(now)
    for row, (told, chosen) in enumerate(zip(given, batch.chosen, strict=True)):
        result[row, chosen] = row_logprobs(told, now[row], chosen, f"{name}[{row}]")
    return result


def row_logprobs(told: float | Sequence[float], now: Floats, chosen: Bools, where: str) -> Floats:
    """A number a token; a sum is the policy's own tokens, all moved by the same amount."""
    numbers = np.array(told, np.float32)
    if numbers.ndim == 0:
        return np.asarray(now[chosen] + (numbers - now[chosen].sum()) / chosen.sum())
    if len(numbers) != chosen.sum():
        raise ValueError(
            f"{where} has {len(numbers)} numbers, but the response has {chosen.sum()} tokens with its end: "
            "write one a token, or their sum"
        )
    return numbers
