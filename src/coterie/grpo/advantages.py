"""How good an answer is beside its siblings: rewards [P, G] -> advantages [P, G]."""

from __future__ import annotations

from coterie.grpo.arrays import Array, namespace

# Rewards closer together than this are equal: float noise is no signal.
SIGNAL_TOLERANCE = 1e-6


def has_signal(rewards: Array, tolerance: float = SIGNAL_TOLERANCE) -> Array:
    """[P]: whether the answers of a group differ in reward at all."""
    xp = namespace(rewards)
    return xp.max(rewards, axis=1) - xp.min(rewards, axis=1) > tolerance


def standardized(rewards: Array, eps: float = 1e-6) -> Array:
    """(r - mean) / (std + eps) within each group; 0 in a group without signal.

    Shao et al., DeepSeekMath (arXiv 2402.03300), section 4.1.2; the std is the unbiased one, as in
    TRL and verl.
    """
    xp = namespace(rewards)
    if rewards.shape[1] < 2:
        return xp.zeros_like(rewards)
    centered = rewards - xp.mean(rewards, axis=1, keepdims=True)
    std = xp.sqrt(xp.sum(centered**2, axis=1, keepdims=True) / (rewards.shape[1] - 1))
    return xp.where(has_signal(rewards)[:, None], centered / (std + eps), xp.zeros_like(rewards))
