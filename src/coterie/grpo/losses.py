"""Policy losses per token, what they clip, and how tokens are averaged.

All arrays are [N, T], advantages [N, 1]. The ratio is policy / old policy; outside the mask it is 1, and its
logarithm is clamped before the exponent.
"""

from __future__ import annotations

from collections.abc import Callable

from coterie.grpo.arrays import Array, masked_sum, namespace, row_mean, stop_gradient, where_masked
from coterie.grpo.kl import LOG_RATIO_LIMIT

Sums = dict[str, Array]  # metrics as sums over tokens, so that micro-batches add up


def clipped_surrogate(
    logprobs: Array,
    old_logprobs: Array,
    advantages: Array,
    mask: Array,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Array, Sums]:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A); with a dual clip c > 1 and A < 0, at most -c A.

    Schulman et al., PPO (arXiv 1707.06347), equation 7; separate clips after DAPO (arXiv 2503.14476);
    dual clip after Ye et al. (arXiv 1912.09729).
    """
    xp = namespace(logprobs, old_logprobs)
    ratio = xp.exp(_log_ratio(logprobs, old_logprobs, mask))
    clipped = xp.clip(ratio, 1 - clip_low, 1 + clip_high)
    loss = -xp.minimum(ratio * advantages, clipped * advantages)
    sums = {
        "clip_low": _count(mask & (ratio < 1 - clip_low) & (advantages < 0), ratio),
        "clip_high": _count(mask & (ratio > 1 + clip_high) & (advantages > 0), ratio),
    }
    if dual_clip is not None:
        sums["clip_dual"] = _count(mask & (ratio > dual_clip) & (advantages < 0), ratio)
        loss = xp.where(advantages < 0, xp.minimum(loss, -dual_clip * advantages), loss)
    return loss, sums


def gspo(
    logprobs: Array, old_logprobs: Array, advantages: Array, mask: Array, clip_low: float, clip_high: float
) -> tuple[Array, Sums]:
    """The clipped surrogate of one ratio an answer, the geometric mean of its tokens' ratios.

    Zheng et al., GSPO (arXiv 2507.18071). Every token carries its answer's loss; as all have the same advantage,
    the gradient is that of the paper's token-wise form as well (its equations 11 and 18).
    """
    xp = namespace(logprobs, old_logprobs)
    log_ratio = row_mean(logprobs - old_logprobs, mask) * xp.ones_like(logprobs)
    return clipped_surrogate(log_ratio, xp.zeros_like(logprobs), advantages, mask, clip_low, clip_high)


def cispo(
    logprobs: Array, old_logprobs: Array, advantages: Array, mask: Array, clip_low: float, clip_high: float
) -> tuple[Array, Sums]:
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log p: the weight is clipped, no token loses its gradient.

    MiniMax-M1 (arXiv 2506.13585). An absolute cap c with no lower clip is clip_low = 1, clip_high = c - 1.
    """
    xp = namespace(logprobs, old_logprobs)
    ratio = stop_gradient(xp.exp(_log_ratio(logprobs, old_logprobs, mask)))
    loss = -xp.clip(ratio, 1 - clip_low, 1 + clip_high) * advantages * where_masked(logprobs, mask)
    sums = {
        "clip_low": _count(mask & (ratio < 1 - clip_low), ratio),
        "clip_high": _count(mask & (ratio > 1 + clip_high), ratio),
    }
    return loss, sums


def policy_gradient(logprobs: Array, advantages: Array, mask: Array) -> tuple[Array, Sums]:
    """-A log p: on-policy only, as there is no ratio to correct or to clip.

    Williams, REINFORCE (1992).
    """
    return -advantages * where_masked(logprobs, mask), {}


def token_mean(per_token: Array, mask: Array, num_tokens: float) -> Array:
    """The mean over all tokens of the step: pass the whole step's count, not the micro-batch's.

    Yu et al., DAPO (arXiv 2503.14476), section 3.3.
    """
    return masked_sum(per_token, mask) / num_tokens


def sequence_mean(per_token: Array, mask: Array, num_rows: float) -> Array:
    """The mean over each answer's tokens, then over the step's answers: a long answer's tokens weigh less.

    Shao et al., DeepSeekMath (arXiv 2402.03300), equation 3.
    """
    return namespace(per_token).sum(row_mean(per_token, mask)) / num_rows


def constant_length(per_token: Array, mask: Array, num_rows: float, length: float) -> Array:
    """The sum over tokens, by the step's answers times one length: a token weighs the same in every step.

    Liu et al., Dr. GRPO (arXiv 2503.20783), section 3.2.
    """
    return masked_sum(per_token, mask) / (num_rows * length)


def mask_overlong(mask: Array, cut_off: Array) -> Array:
    """[N, T], [N] -> [N, T]: answers cut at the length limit teach nothing.

    Yu et al., DAPO (arXiv 2503.14476), section 3.4; the step's tokens are then counted on the new mask.
    """
    return mask & ~cut_off[:, None]


def truncated_importance_weights(logprobs: Array, sampler_logprobs: Array, mask: Array, cap: float) -> Array:
    """min(p / sampler, cap), constant to the gradient: makes up for a sampler that was not the policy.

    Ionides (2008); Espeholt et al., IMPALA (arXiv 1802.01561). Here p is the policy before the step.
    """
    xp = namespace(logprobs, sampler_logprobs)
    return stop_gradient(xp.clip(xp.exp(_log_ratio(logprobs, sampler_logprobs, mask)), 0.0, cap))


# How the parts of a step agree on an extreme, which cannot be summed.
EXTREMES: dict[str, Callable[[float, float], float]] = {"ratio_min": min, "ratio_max": max}


def ratio_extremes(logprobs: Array, old_logprobs: Array, mask: Array) -> dict[str, Array]:
    """The smallest and the largest ratio of a token, and 1 where there is none; combined by EXTREMES."""
    xp = namespace(logprobs, old_logprobs)
    ratio = xp.exp(_log_ratio(logprobs, old_logprobs, mask))
    return {"ratio_min": xp.min(ratio), "ratio_max": xp.max(ratio)}


def _log_ratio(logprobs: Array, old_logprobs: Array, mask: Array) -> Array:
    log_ratio = where_masked(logprobs - old_logprobs, mask)
    return namespace(log_ratio).clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _count(places: Array, like: Array) -> Array:
    """How many places hold, in the type of the other sums."""
    xp = namespace(places, like)
    return xp.sum(xp.astype(places, like.dtype))
