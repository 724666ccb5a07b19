"""Names and values that people bring from TRL and from other trainers, in our words."""

from __future__ import annotations

from typing import Any

# The same thing under another name.
ALIASES = {
    "num_generations": "group_size",
    "max_completion_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "beta": "kl_coef",
    "kl_penalty_weight": "kl_coef",
    "advantage_clip_ratio": "advantage_limit",
    "kl_beta": "kl_coef",
    "epsilon": "clip_low",
    "clip_range": "clip_low",
    "clip_ratio": "clip_low",
    "epsilon_high": "clip_high",
    "ppo_epochs": "epochs",
    "num_epochs": "passes",
    "num_episodes": "steps",
    "num_iterations": "steps",
    "max_steps": "steps",
    "batch_size": "prompts_per_step",
    "rollout_batch_size": "prompts_per_step",
    "lr": "learning_rate",
    "grad_clip": "max_grad_norm",
    "save_steps": "save_every",
    "save_interval": "save_every",
    "logging_steps": "log_every",
    "log_interval": "log_every",
    "eval_steps": "eval_every",
    "output_dir": "out",
    "out_dir": "out",
    "max_iters": "steps",
    "warmup_iters": "warmup_steps",
    "eval_interval": "eval_every",
    "sample_interval": "sample_every",
    "n_layer": "depth",
    "n_head": "heads",
    "n_embd": "width",
    "judge_checkpoint": "judge",
    "wandb_project": "track_project",
    "wandb_run_name": "track_name",
    "checkpoint": "start_from",
    "reference_mode": "reference",
    "ema_alpha": "reference_old_share",
    "reference_update_freq": "reference_every",
    "ref_model_sync_steps": "reference_every",
    "delta": "dual_clip",
    "model_name_or_path": "model",
    "model_name": "model",
    "lora_r": "lora_rank",
    "lora_target_modules": "lora_targets",
    "reward_weights": "reward_parts",
    "RL_LEARNING_RATE": "learning_rate",
    "RL_BATCH_SIZE": "prompts_per_step",
    "RL_MAX_STEPS": "steps",
    "GRPO_GROUP_SIZE": "group_size",
}

# The same thing under another name and with other values.
CHOICES: dict[str, dict[Any, dict[str, Any]]] = {
    "loss_type": {
        "grpo": {"aggregation": "sequence_mean"},
        "bnpo": {"aggregation": "token_mean"},
        "dapo": {"aggregation": "token_mean"},
        "dr_grpo": {"aggregation": "constant_length"},  # of max_tokens, unless constant_length is written
        "cispo": {"loss": "cispo", "aggregation": "token_mean"},
    },
    "scale_rewards": {
        "group": {"advantage": "standardized"},
        "batch": {"advantage": "batch_standardized"},
        "none": {"advantage": "centered"},
        "true": {"advantage": "standardized"},
        "false": {"advantage": "centered"},
    },
    "importance_sampling_level": {"token": {}, "sequence": {"loss": "gspo"}},
    "mask_truncated_completions": {"true": {"overlong": "mask"}, "false": {"overlong": "keep"}},
    "sync_ref_model": {"true": {"reference": "ema"}, "false": {"reference": "static"}},
    "use_curriculum": {"true": {"curriculum": "world"}, "false": {"curriculum": []}},
    "use_priority_buffer": {
        "true": {"replay_capacity": 16, "replay_priority": "reward"},
        "false": {"replay_priority": "uniform"},
    },
    "wandb_log": {"true": {"track": "wandb"}, "false": {"track": ""}},
    "use_gurobi": {"true": {"program": "gurobi"}, "false": {"program": "limit_load"}},
    "lr_scheduler_type": {"cosine": {"schedule": "cosine"}, "constant": {"schedule": "constant"}},
    "advantage_estimator": {"pass@k": {"advantage": "best_minus_second"}, "grpo": {"advantage": "standardized"}},
}

REFUSED = {
    "gamma": "an answer has one reward, at its end: there is nothing for gamma to discount",
    "num_brick_types": 'name the sizes themselves, as in sizes = "1x2 2x2 2x4"',
    "max_brick_rejections": "bricks that do not fit are masked; to refuse them instead: coterie sample RUN --rejection",
    "resume_from_checkpoint": "to go on with a run, write coterie train --resume RUN",
    "gradient_accumulation_steps": "a step is cut to fit by micro_batch_tokens; write prompts_per_step for all of it",
}
# A single clip of another trainer means both of ours.
BOTH_CLIPS = ("epsilon", "clip_range", "clip_ratio")


def translate(name: str, value: Any) -> dict[str, Any]:
    """A setting of another trainer as ours; {name: value} where nothing is to be translated."""
    if name in REFUSED:
        raise ValueError(REFUSED[name])
    if name in BOTH_CLIPS:
        return {"clip_low": value, "clip_high": value}
    if name == "ref_model_mixup_alpha":  # the weight of the NEW policy there, of the old reference here
        return {"reference_old_share": 1 - float(value)}
    if name in ("replay_buffer_size", "REPLAY_BUFFER_SIZE"):  # answers there, groups of 64 here
        return {"replay_capacity": max(1, round(int(value) / 64))}
    if name == "generator_checkpoint":  # pretrained there, so it does not go through a cold start again
        return {"start_from": value, "cold_start_steps": 0}
    if name == "dataset":
        return {"corpus": value}
    if name == "report_to":
        return {"track": "" if value in ("none", []) else ",".join([value] if isinstance(value, str) else value)}
    if name not in CHOICES:
        return {ALIASES.get(name, name): value}
    meanings = CHOICES[name]
    if str(value).lower() not in meanings:
        raise ValueError(f"{name} = {value!r} has no counterpart here; write one of {', '.join(meanings)}")
    return meanings[str(value).lower()]
