"""What TRL's GRPOTrainer answers to our cases; run with TRL installed to make trl.json anew.

pip install trl && PYTHONPATH=tests python -m peers.record_trl
"""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peers import cases

LOG_NAMES = ("prompt", "completion", "advantages", "rewards", "extra", "images")


def bare_trainer(**settings: Any) -> Any:
    """A GRPOTrainer that was never set up: no model, no data, only what its maths reads."""
    trainer_class = import_module("trl").GRPOTrainer
    trainer = trainer_class.__new__(trainer_class)
    accelerator = SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=1,
        process_index=0,
        sync_gradients=True,
        gather=lambda value: value,
        reduce=lambda value, reduction: value,
    )
    args = SimpleNamespace(
        use_bias_correction_kl=False,
        delta=None,
        steps_per_generation=1,
        gradient_accumulation_steps=1,
        gradient_checkpointing_kwargs=None,
        per_device_train_batch_size=1,
    )
    defaults: dict[str, Any] = {
        "accelerator": accelerator,
        "args": args,
        "model": SimpleNamespace(training=True, is_gradient_checkpointing=False),
        "_metrics": {"train": defaultdict(list)},
        "_logs": {name: defaultdict(list) if name in ("rewards", "extra") else [] for name in LOG_NAMES},
        "_pending_extra_logs": {},
        "_pending_metrics": {},
        "_entropy_bonus_enabled": False,
        "aux_loss_enabled": False,
        "beta": 0.0,
        "current_gradient_accumulation_steps": 1,
        "environment_factories": None,
        "environments": None,
        "epsilon_high": cases.CLIP_HIGH,
        "epsilon_low": cases.CLIP_LOW,
        "importance_sampling_level": "token",
        "mask_truncated_completions": False,
        "max_completion_length": cases.LENGTH,
        "multi_objective_aggregation": "sum_then_normalize",
        "num_iterations": 1,
        "off_policy_mask_threshold": None,
        "pad_to_multiple_of": None,
        "ref_model": None,
        "scale_rewards": "group",
        "_tokenizer": SimpleNamespace(pad_token_id=0),
        "tools": None,
        "top_entropy_quantile": 1.0,
        "use_adaptive_entropy": False,
        "use_vllm": False,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": cases.IMPORTANCE_CAP,
        "vllm_importance_sampling_clip_min": None,
    }
    for name, value in (defaults | settings).items():
        setattr(trainer, name, value)
    return trainer


def advantages(rewards: np.ndarray, **settings: Any) -> np.ndarray:
    """[R, P, G] -> [P, G], by the method that samples and scores, with sampling and scoring handed to it."""
    num_rewards, num_tasks, group_size = rewards.shape
    count = num_tasks * group_size
    trainer = bare_trainer(
        num_generations=group_size,
        reward_funcs=[None] * num_rewards,
        reward_func_names=[str(i) for i in range(num_rewards)],
        reward_weights=torch.tensor(cases.REWARD_WEIGHTS[:num_rewards], dtype=torch.float64),
        _generate=lambda prompts: ([[1]] * count, [[1]] * count, None, [""] * count, None, {}, None, None),
        _calculate_rewards=lambda *_: torch.as_tensor(rewards.reshape(num_rewards, count).T.copy()),
        **settings,
    )
    output = trainer._generate_and_score_completions([{"prompt": ""}] * count)
    return np.asarray(output["advantages"]).reshape(num_tasks, group_size)


def importance_weights(tokens: dict[str, Tensor]) -> np.ndarray:
    """[N, T] by the same method, as if another program had sampled; padding is sampled too, and masked here."""
    count, length = tokens["mask"].shape
    sampled = ([[1]] * count, [[1] * length] * count, None, [""] * count, tokens["sampler_logprobs"].tolist())
    trainer = bare_trainer(
        use_vllm=True,
        num_generations=count,
        reward_funcs=[None],
        reward_func_names=["0"],
        reward_weights=torch.ones(1),
        _generate=lambda prompts: (*sampled, {}, None, None),
        _calculate_rewards=lambda *_: torch.zeros(count, 1),
        _get_per_token_logps_and_entropies=lambda *_, **__: (tokens["old_logprobs"], None, None),
    )
    # It makes tensors of the sampler's lists, in the default type.
    torch.set_default_dtype(torch.float64)
    try:
        output = trainer._generate_and_score_completions([{"prompt": ""}] * count)
    finally:
        torch.set_default_dtype(torch.float32)
    return np.asarray(output["importance_sampling_ratio"] * tokens["mask"])


def loss(tokens: dict[str, Tensor], args: dict[str, Any] | None = None, **settings: Any) -> tuple[float, np.ndarray]:
    """The loss of the cases' tokens, and its gradient by their log-probabilities."""
    logprobs = tokens["logprobs"].clone().requires_grad_(True)
    trainer = bare_trainer(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, tokens["entropies"], None), **settings
    )
    for name, value in (args or {}).items():
        setattr(trainer.args, name, value)
    mask = tokens["mask"].long()
    ids = torch.ones_like(mask)
    batch = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": tokens["advantages"],
        "old_per_token_logps": tokens["old_logprobs"],
        "ref_per_token_logps": tokens["reference"],
        "num_items_in_batch": mask.sum(),
    }
    value = trainer._compute_loss(trainer.model, batch)
    value.backward()
    assert logprobs.grad is not None
    return float(value.detach()), logprobs.grad.numpy()


LOSS_SETTINGS: dict[str, dict[str, Any]] = {
    "clipped/sequence_mean": {"loss_type": "grpo"},
    "clipped/token_mean": {"loss_type": "bnpo"},
    "clipped/token_mean_of_step": {"loss_type": "dapo"},
    "clipped/constant_length": {"loss_type": "dr_grpo"},
    "clipped/dual": {"loss_type": "bnpo", "args": {"delta": cases.DUAL_CLIP}},
    "clipped/kl": {"loss_type": "bnpo", "beta": cases.KL_COEF},
    "clipped/entropy": {
        "loss_type": "bnpo",
        "_entropy_bonus_enabled": True,
        "entropy_coef": cases.ENTROPY_COEF,
    },
    "gspo/sequence_mean": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "cispo/token_mean": {"loss_type": "cispo", "epsilon_high": cases.CISPO_CAP},
}


def record() -> cases.Outputs:
    """Every answer by name."""
    rewards = cases.make_rewards()
    tokens = {name: torch.as_tensor(value) for name, value in cases.make_tokens().items()}
    outputs = {
        "advantages/standardized": advantages(rewards[:1]),
        "advantages/batch_standardized": advantages(rewards[:1], scale_rewards="batch"),
        "advantages/centered": advantages(rewards[:1], scale_rewards="none"),
        "advantages/weighted_sum": advantages(rewards),
        "advantages/normalized_sum": advantages(rewards, multi_objective_aggregation="normalize_then_sum"),
        "importance_weights": importance_weights(tokens),
    }
    for name, settings in LOSS_SETTINGS.items():
        value, gradient = loss(tokens, **settings)
        outputs |= {f"{name}/loss": np.array(value), f"{name}/gradient": gradient}
    return outputs


if __name__ == "__main__":
    cases.write_record("trl", {name: version(name) for name in ("trl", "torch", "transformers")}, record())
