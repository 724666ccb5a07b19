"""What verl's core_algos answer to our cases; run with verl installed to make verl.json anew.

pip install verl && PYTHONPATH=tests python -m peers.record_verl
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peers import cases


def advantages(estimator: str, rewards: np.ndarray, **settings: Any) -> np.ndarray:
    """[P, G] -> [P, G], each reward as an answer of one token."""
    algorithms = import_module("verl.trainer.ppo.core_algos")
    groups = np.repeat(np.arange(rewards.shape[0]), rewards.shape[1])
    scores = torch.as_tensor(rewards.reshape(-1, 1).copy())
    result, _ = algorithms.get_adv_estimator_fn(estimator)(
        token_level_rewards=scores, response_mask=torch.ones_like(scores), index=groups, **settings
    )
    return np.asarray(result).reshape(rewards.shape)


def loss(tokens: dict[str, Tensor], name: str, aggregation: str, **settings: Any) -> tuple[float, np.ndarray]:
    """The loss of the cases' tokens, and its gradient by their log-probabilities."""
    algorithms = import_module("verl.trainer.ppo.core_algos")
    mask = tokens["mask"].double()
    actor = {"clip_ratio_low": cases.CLIP_LOW, "clip_ratio_high": cases.CLIP_HIGH, "clip_ratio_c": 1e12}
    weights = settings.pop("rollout_is_weights", None)
    config = import_module("verl.workers.config").ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        global_batch_info={
            "batch_num_tokens": float(mask.sum()),
            "global_batch_size": mask.shape[0],
            "loss_scale_factor": cases.LENGTH,
        },
        **(actor | settings),
    )
    logprobs = tokens["logprobs"].clone().requires_grad_(True)
    value, _ = algorithms.get_policy_loss_fn(name)(
        old_log_prob=tokens["old_logprobs"],
        log_prob=logprobs,
        advantages=tokens["advantages"][:, None].expand(mask.shape),
        response_mask=mask,
        loss_agg_mode=aggregation,
        config=config,
        rollout_is_weights=weights,
    )
    value.backward()
    assert logprobs.grad is not None
    return float(value.detach()), logprobs.grad.numpy()


def divergence(tokens: dict[str, Tensor], name: str) -> np.ndarray:
    """[N, T] of the log-probabilities to the reference."""
    algorithms = import_module("verl.trainer.ppo.core_algos")
    return np.asarray(algorithms.kl_penalty(tokens["logprobs"], tokens["reference"], name))


def importance_weights(tokens: dict[str, Tensor]) -> Tensor:
    """[N, T] of the old policy over the sampler."""
    correction = import_module("verl.trainer.ppo.rollout_corr_helper")
    log_ratio = tokens["old_logprobs"] - tokens["sampler_logprobs"]
    weights, _ = correction.compute_rollout_correction_weights(
        log_ratio, tokens["mask"].double(), rollout_is="token", rollout_is_threshold=cases.IMPORTANCE_CAP
    )
    assert isinstance(weights, Tensor)
    return weights


def adapted_coefs() -> list[float]:
    """The coefficient after each of a few observations, from 0.1 towards a divergence of 0.5, rate 0.1."""
    controller = import_module("verl.trainer.ppo.core_algos").AdaptiveKLController(0.1, 0.5, horizon=640)
    coefs = []
    for observed in cases.OBSERVED_KLS:
        controller.update(observed, n_steps=64)
        coefs.append(float(controller.value))
    return coefs


LOSSES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "clipped/token_mean": ("vanilla", "token-mean", {}),
    "clipped/sequence_mean": ("vanilla", "seq-mean-token-mean", {}),
    "clipped/constant_length": ("vanilla", "seq-mean-token-sum-norm", {}),
    "clipped/dual": ("vanilla", "token-mean", {"clip_ratio_c": cases.DUAL_CLIP}),
    "gspo/sequence_mean": ("gspo", "seq-mean-token-mean", {}),
    "gspo/token_mean": ("gspo", "token-mean", {}),
    "cispo/token_mean": ("cispo", "token-mean", {}),
    "policy_gradient/token_mean": ("gpg", "token-mean", {}),
}


def record() -> cases.Outputs:
    """Every answer by name."""
    rewards = cases.make_rewards()[0]
    tokens = {name: torch.as_tensor(value) for name, value in cases.make_tokens().items()}
    weights = importance_weights(tokens)
    outputs = {
        "advantages/standardized": advantages("grpo", rewards),
        "advantages/centered": advantages("grpo", rewards, norm_adv_by_std_in_grpo=False),
        "advantages/leave_one_out": advantages("rloo", rewards),
        "advantages/best_minus_second": advantages("grpo_passk", rewards, config={"norm_adv_by_std_in_grpo": True}),
        "advantages/pass_at_group": advantages("grpo_passk", rewards, config={"norm_adv_by_std_in_grpo": False}),
        "importance_weights": weights.numpy(),
        "adapted_coefs": np.array(adapted_coefs()),
        **{f"kl/{name}": divergence(tokens, name) for name in ("k1", "k2", "k3")},
    }
    for name, (policy_loss, aggregation, settings) in LOSSES.items():
        value, gradient = loss(tokens, policy_loss, aggregation, **settings)
        outputs |= {f"{name}/loss": np.array(value), f"{name}/gradient": gradient}
    value, gradient = loss(tokens, "vanilla", "token-mean", rollout_is_weights=weights)
    outputs |= {"clipped/importance/loss": np.array(value), "clipped/importance/gradient": gradient}
    value, gradient = loss(tokens | {"logprobs": torch.as_tensor(cases.beyond_the_clamp())}, "vanilla", "token-mean")
    return outputs | {"clipped/beyond_the_clamp/loss": np.array(value), "clipped/beyond_the_clamp/gradient": gradient}


if __name__ == "__main__":
    cases.write_record("verl", {name: version(name) for name in ("verl", "torch")}, record())
