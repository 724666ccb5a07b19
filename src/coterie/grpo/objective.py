"""The loss of one step: policy term, KL to the reference, entropy bonus; one function for every engine."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.grpo.arrays import Array, masked_sum, namespace
from coterie.grpo.kl import k3
from coterie.grpo.losses import Sums, clipped_surrogate, token_mean


@dataclass(frozen=True)
class Objective:
    """What is minimized, besides the answers themselves."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.0
    entropy_coef: float = 0.0

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0

    @property
    def only_advantages_matter(self) -> bool:
        """Whether a row without advantage has no gradient at all."""
        return self.kl_coef == 0 and self.entropy_coef == 0


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
    old_logprobs: Array,  # [N, T] of the sampler
    reference: Array | None,  # [N, T]
    advantages: Array,  # [N, 1]
    mask: Array,  # [N, T] which tokens were chosen
    num_tokens: float,  # of the whole step
) -> tuple[Array, Sums]:
    """This part's share of the step's loss, and its metrics as sums over tokens."""
    per_token, sums = clipped_surrogate(
        logprobs, old_logprobs, advantages, mask, objective.clip_low, objective.clip_high
    )
    loss = token_mean(per_token, mask, num_tokens)
    sums = {"policy_loss": masked_sum(per_token, mask), "entropy": masked_sum(entropies, mask), **sums}
    if objective.entropy_coef:
        loss = loss - objective.entropy_coef * token_mean(entropies, mask, num_tokens)
    if reference is not None:
        divergence = k3(logprobs, reference)
        loss = loss + objective.kl_coef * token_mean(divergence, mask, num_tokens)
        sums["kl"] = masked_sum(divergence, mask)
    return loss, sums
