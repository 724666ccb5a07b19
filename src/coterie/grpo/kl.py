"""How far the policy has moved from a reference, per token."""

from __future__ import annotations

from coterie.grpo.arrays import Array, namespace

LOG_RATIO_LIMIT = 20.0


def k3(logprobs: Array, reference: Array) -> Array:
    """q/p - 1 - log(q/p), with p the policy and q the reference: unbiased and never negative.

    Schulman, 'Approximating KL divergence' (2020). The log-ratio is clamped before the exponent.
    """
    xp = namespace(logprobs, reference)
    log_ratio = xp.clip(reference - logprobs, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return xp.exp(log_ratio) - 1 - log_ratio
