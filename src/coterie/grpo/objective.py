"""The loss of one step: policy term, KL to the reference, entropy bonus; one function for every engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coterie.grpo.arrays import Array, masked_sum, namespace, where_masked
from coterie.grpo.kl import KLS, k3
from coterie.grpo.losses import (
    Sums,
    cispo,
    clipped_surrogate,
    constant_length,
    gspo,
    policy_gradient,
    sequence_mean,
    token_mean,
    truncated_importance_weights,
)


@dataclass(frozen=True)
class Objective:
    """What is minimized, besides the answers themselves."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    loss: str = "clipped"  # a name in LOSSES
    dual_clip: float | None = None  # of the clipped loss
    aggregation: str = "token_mean"  # a name in AGGREGATIONS
    constant_length: float | None = None  # tokens, of the aggregation of that name
    kl: str = "k3"  # a name in KLS
    importance_cap: float | None = None  # None: whoever sampled is the old policy

    def __post_init__(self) -> None:
        assert self.loss in LOSSES and self.aggregation in AGGREGATIONS and self.kl in KLS, self
        assert self.dual_clip is None or self.dual_clip > 1, "a dual clip is above 1"
        assert self.aggregation != "constant_length" or self.constant_length, "constant_length needs a length"

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0

    @property
    def only_advantages_matter(self) -> bool:
        """Whether a row without advantage has no gradient at all."""
        return self.kl_coef == 0 and self.entropy_coef == 0


# Each takes logprobs, old_logprobs, advantages, mask.
LOSSES: dict[str, Callable[[Objective, Array, Array, Array, Array], tuple[Array, Sums]]] = {
    "clipped": lambda o, new, old, adv, mask: clipped_surrogate(
        new, old, adv, mask, o.clip_low, o.clip_high, o.dual_clip
    ),
    "gspo": lambda o, new, old, adv, mask: gspo(new, old, adv, mask, o.clip_low, o.clip_high),
    "cispo": lambda o, new, old, adv, mask: cispo(new, old, adv, mask, o.clip_low, o.clip_high),
    "policy_gradient": lambda o, new, old, adv, mask: policy_gradient(new, adv, mask),
}

# Each takes per_token, mask, and the whole step's num_tokens and num_rows.
AGGREGATIONS: dict[str, Callable[[Objective, Array, Array, float, float], Array]] = {
    "token_mean": lambda o, per_token, mask, num_tokens, num_rows: token_mean(per_token, mask, num_tokens),
    "sequence_mean": lambda o, per_token, mask, num_tokens, num_rows: sequence_mean(per_token, mask, num_rows),
    "constant_length": lambda o, per_token, mask, num_tokens, num_rows: constant_length(
        per_token, mask, num_rows, o.constant_length or 0
    ),
}


def entropy(log_probabilities: Array) -> Array:
    """[..., V] -> [...]: -sum p log p; a token of probability 0 adds nothing."""
    xp = namespace(log_probabilities)
    possible = log_probabilities > -float("inf")
    # The inner where keeps the gradient finite at -inf.
    safe = xp.where(possible, log_probabilities, xp.zeros_like(log_probabilities))
    return -xp.sum(xp.where(possible, xp.exp(safe) * safe, xp.zeros_like(safe)), axis=-1)


def step_loss(
    objective: Objective,
    logprobs: Array,  # [N, T] of the policy
    entropies: Array,  # [N, T]
    old_logprobs: Array,  # [N, T] of the old policy: the sampler, or the policy before the step
    reference: Array | None,  # [N, T]
    advantages: Array,  # [N, 1]
    mask: Array,  # [N, T] which tokens were chosen
    num_tokens: float,  # of the whole step
    num_rows: float = float("nan"),  # of the whole step; only token_mean does without
    sampler_logprobs: Array | None = None,  # [N, T] where the sampler was not the old policy
) -> tuple[Array, Sums]:
    """This part's share of the step's loss, and its metrics as sums over tokens."""
    logprobs, old_logprobs = where_masked(logprobs, mask), where_masked(old_logprobs, mask)
    per_token, sums = LOSSES[objective.loss](objective, logprobs, old_logprobs, advantages, mask)
    sums["approx_kl"] = masked_sum(k3(old_logprobs, logprobs), mask)
    if sampler_logprobs is not None:
        assert objective.importance_cap is not None, "a sampler apart from the old policy needs an importance_cap"
        weights = truncated_importance_weights(old_logprobs, sampler_logprobs, mask, objective.importance_cap)
        per_token = per_token * weights
        sums["importance_weight"] = masked_sum(weights, mask)
    sums["policy_loss"], sums["entropy"] = masked_sum(per_token, mask), masked_sum(entropies, mask)
    if objective.entropy_coef:
        per_token = per_token - objective.entropy_coef * entropies
    if reference is not None:
        divergence = KLS[objective.kl](logprobs, where_masked(reference, mask))
        per_token = per_token + objective.kl_coef * divergence
        sums["kl"] = masked_sum(divergence, mask)
    return AGGREGATIONS[objective.aggregation](objective, per_token, mask, num_tokens, num_rows), sums
