"""Policy losses, per token, and how tokens are averaged. All arrays are [N, T]; advantages [N, 1]."""

from __future__ import annotations

from coterie.grpo.arrays import Array, masked_sum, namespace

Sums = dict[str, Array]  # metrics as sums over tokens, so that micro-batches add up


def clipped_surrogate(
    logprobs: Array, old_logprobs: Array, advantages: Array, mask: Array, clip_low: float, clip_high: float
) -> tuple[Array, Sums]:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = policy / sampling policy.

    Schulman et al., PPO (arXiv 1707.06347), equation 7; separate clips after DAPO (arXiv 2503.14476).
    """
    xp = namespace(logprobs, old_logprobs)
    log_ratio = xp.where(mask, logprobs - old_logprobs, xp.zeros_like(logprobs))
    ratio = xp.exp(log_ratio)
    clipped = xp.clip(ratio, 1 - clip_low, 1 + clip_high)
    loss = -xp.minimum(ratio * advantages, clipped * advantages)
    one = xp.ones_like(logprobs)
    sums = {
        "approx_kl": masked_sum(ratio - 1 - log_ratio, mask),
        "clip_low": masked_sum(one, mask & (ratio < 1 - clip_low) & (advantages < 0)),
        "clip_high": masked_sum(one, mask & (ratio > 1 + clip_high) & (advantages > 0)),
    }
    return loss, sums


def token_mean(per_token: Array, mask: Array, num_tokens: float) -> Array:
    """The mean over all tokens of the step: pass the whole step's count, not the micro-batch's."""
    return masked_sum(per_token, mask) / num_tokens
