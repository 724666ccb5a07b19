"""A configuration in words: the arithmetic of a step, the formulas, and the memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from coterie.config import GRPOConfig
from coterie.doubts import warnings_of
from coterie.sizes import Sizes, count_parameters, memory, phases_of, text_memory
from coterie.worlds.base import World

# Every choice of every setting that is one, in a formula or a few words; names in braces are settings.
# r reward, A advantage, p policy, q reference, ratio = p / p_old per token, |y| tokens of an answer.
WORDS: dict[str, dict[str, str]] = {
    "policy": {
        "auto": "fills in where prompts have blanks, and writes from left to right where they have none",
        "causal": "writes from left to right",
        "fill": "fills the blanks of a prompt in {fill_passes} pass(es), every place in sight of every other",
    },
    "advantage": {
        "standardized": "A = (r - mean of the group) / (std of the group + 1e-6)",
        "centered": "A = r - mean of the group",
        "leave_one_out": "A = r - mean of the other answers of the group",
        "batch_standardized": "A = (r - mean of the group) / (std of the whole step + 1e-6)",
        "pass_at_k": "A = mean over the {pass_k}-subsets S with the answer of max(S) - max(S without it)",
        "pass_at_k_binary": "A = standardized success of the {pass_k}-subsets with the answer; right is r > 1/2",
        "best_minus_second": "A = (r_best - r_second) / (std of the group + 1e-6) for the best answer, else 0",
    },
    "reward_sum": {
        "weighted_sum": "r = sum of weight * part",
        "normalized_sum": "r = sum of weight * part, each part standardized within its group",
    },
    "overlong": {
        "keep": "answers cut at the limit count like others",
        "mask": "answers cut at the limit leave the loss",
        "shape": "r loses up to 1 over the last {overlong_buffer} tokens before the limit",
    },
    "loss": {
        "clipped": "-min(ratio * A, clip(ratio, 1 - {clip_low:g}, 1 + {clip_high:g}) * A)",
        "gspo": "-min(s * A, clip(s, 1 - {clip_low:g}, 1 + {clip_high:g}) * A), s = exp(mean over y of log ratio)",
        "cispo": "-constant(clip(ratio, 1 - {clip_low:g}, 1 + {clip_high:g})) * A * log p",
        "policy_gradient": "-A * log p",
    },
    "aggregation": {
        "token_mean": "sum over tokens / tokens of the update",
        "sequence_mean": "mean over each answer's |y| tokens, then over the answers of the update",
        "constant_length": "sum over tokens / ({constant_length} * answers of the update)",
    },
    "kl": {
        "k1": "log(p/q)",
        "k2": "log(p/q)^2 / 2",
        "k3": "q/p - 1 - log(q/p)",
    },
    "kl_in": {
        "loss": "in each token's loss",
        "reward": "in the reward: summed over the answer and taken from r",
    },
    "reference": {
        "static": "the policy as it is when GRPO begins",
        "ema": "moved after each step to {reference_old_share:g} * reference + (1 - {reference_old_share:g}) * policy",
        "periodic": "a copy of the policy, made anew every {reference_every} steps",
    },
    "replay_priority": {
        "reward": "the spread of a group's rewards",
        "surprise": "how good and how unlikely its answers were",
        "uniform": "the same for all",
    },
    "task_order": {
        "shuffled": "every task once before any comes again",
        "difficulty": "tasks solved about half the time come most often",
    },
    "dtype": {
        "auto": "bfloat16 on a GPU that has it, float32 elsewhere",
        "float32": "float32 throughout",
        "bfloat16": "bfloat16; the optimizer moves float32 masters, and probabilities are in float32",
    },
    "optimizer": {
        "adamw": "AdamW, two moments in float32",
        "adamw_8bit": "AdamW, two moments in 8 bits",
    },
    "schedule": {
        "cosine": "then falls along a cosine to {final_rate:g} of that at the last step",
        "constant": "then stays",
    },
}


def explain(config: GRPOConfig, world: World) -> str:
    """The whole configuration, section by section, then the warnings."""
    sizes = Sizes.of(config, world)
    sections = {
        "A step": _batch_lines(sizes, world),
        "Advantage": _advantage_lines(sizes),
        "Loss": _loss_lines(sizes),
        "Replay": _replay_lines(sizes),
        "Tasks": _task_lines(config, world),
        "Schedule": _schedule_lines(sizes, world),
        **({"Language model": _model_lines(sizes)} if config.model else {}),
        "Memory": _memory_lines(sizes),
        "Warnings": warnings_of(config, world) or ["none"],
    }
    return "\n".join(f"{title}\n" + "".join(f"  {line}\n" for line in lines) for title, lines in sections.items())


def _say(config: GRPOConfig, setting: str) -> str:
    """The formula of what is chosen, with this configuration's numbers in it."""
    return WORDS[setting][getattr(config, setting)].format_map(config.model_dump())


def _batch_lines(sizes: Sizes, world: World) -> Iterator[str]:
    config = sizes.config
    tasks = len(world.tasks("train"))
    drawn = config.steps * config.prompts_per_step
    yield "the policy is a language model" if config.model else f"the policy {_say(config, 'policy')}"
    yield f"{config.prompts_per_step} tasks x {config.group_size} answers = {sizes.answers:,} answers a step"
    yield (
        f"{config.steps:,} steps = {config.steps * sizes.answers:,} answers; {drawn:,} tasks drawn of {tasks:,} to "
        f"train on, {drawn / tasks:.2g} times each"
    )
    if config.redraws:
        yield f"groups without signal make way for others: up to {1 + config.redraws} rounds of sampling a step"
    yield (
        f"epochs x minibatches: {config.epochs} x {sizes.minibatches} (of {sizes.minibatch:,} answers) = "
        f"{sizes.updates} optimizer updates a rollout, {config.steps * sizes.updates:,} in all"
    )
    about = "about " if config.model else ""
    yield (
        f"prompts up to {about}{sizes.prompt_tokens:,} tokens, answers up to {sizes.answer_tokens:,}: at most {about}"
        f"{sizes.learned_answers * sizes.row_tokens:,} tokens a step, {sizes.learned_answers * sizes.answer_tokens:,} "
        "of them chosen"
    )
    for device, tokens in sizes.micro_tokens.items():
        rows = max(1, tokens // sizes.row_tokens)
        if sizes.config.model:
            yield (
                f"micro-batches on {device}: a prompt once, then its answers, without padding, up to {tokens:,} tokens "
                f"at once; at least {rows:,} of the longest rows"
            )
            continue
        yield (
            f"micro-batches on {device}: rows of like length, up to {tokens:,} tokens with padding; of the longest "
            f"rows {rows:,} at once, so at most {math.ceil(sizes.minibatch / rows)} an update"
        )
    yield "gradients of micro-batches add up; all denominators are the whole update's"


def _advantage_lines(sizes: Sizes) -> Iterator[str]:
    config = sizes.config
    judged = config.judge not in ("auto", "none") or (config.judge == "auto" and sizes.fills)
    told = f"r = the verdict of a frozen judge ({config.judge})" if judged else "r = the world's own total"
    weights = ", ".join(f"{weight:g} {part}" for part, weight in config.reward_parts.items())
    yield f"{_say(config, 'reward_sum')}: {weights}" if weights else told
    if config.overlong != "keep":
        yield _say(config, "overlong")
    if config.baseline_memory is not None:
        yield f"A = r - running mean of the task's rewards, which remembers {config.baseline_memory:g} a step"
    else:
        yield _say(config, "advantage")
        yield f"0 in a group whose {config.signal} differs by no more than {config.signal_tolerance:g}"
    if config.advantage_limit:
        yield f"clamped to +-{config.advantage_limit:g}"


def _loss_lines(sizes: Sizes) -> Iterator[str]:
    config = sizes.config
    yield f"per token      {_say(config, 'loss')}"
    if config.dual_clip and config.loss == "clipped":
        yield f"dual clip      at most -{config.dual_clip:g} * A where A < 0"
    if config.importance_cap:
        yield f"weight         min(p_old / p_sampler, {config.importance_cap:g}), constant to the gradient"
    if config.kl_coef:
        yield f"+ KL           {config.kl_coef:g} * ({_say(config, 'kl')}), {_say(config, 'kl_in')}"
        yield f"reference      q is {_say(config, 'reference')}"
    if config.kl_target:
        yield f"kl_coef        raised or lowered, by at most 2 % a step, towards a KL of {config.kl_target:g}"
    if config.entropy_coef:
        steered = f", steered towards an H of {config.entropy_target:g}" if config.entropy_target else ""
        yield f"- entropy      {config.entropy_coef:g} * H(p){steered}"
    yield f"mean           {_say(config, 'aggregation')}"
    if config.loss == "policy_gradient":
        return
    if config.importance_cap:
        yield "ratio          p / p_old, p_old the policy before the step, whoever sampled"
    elif sizes.updates == 1 and not sizes.replayed_groups:
        yield "ratio          p / p_sampler; with one update a rollout it is 1, so no clip ever acts"
    else:
        yield f"ratio          p / p_sampler, as recorded, also for later updates and for replay; {past_clip(config)}"


def past_clip(config: GRPOConfig) -> str:
    """What a clip does to a token whose ratio has moved past it."""
    if config.loss == "cispo":
        return "past a clip a token keeps its gradient, with a bounded weight"
    worst = "" if config.dual_clip or config.loss != "clipped" else "; bad answers grown likelier have no bound"
    return f"a token pushed past its clip teaches nothing more{worst}"


def _replay_lines(sizes: Sizes) -> Iterator[str]:
    config = sizes.config
    if not config.replay_capacity:
        yield "none: replay_capacity is 0"
        return
    yield (
        f"up to {config.replay_capacity:,} groups of the last {config.replay_max_age} steps are kept; "
        f"{sizes.replayed_groups} join each step"
    )
    yield (
        f"drawn by priority^{config.replay_exponent:g} (priority: {_say(config, 'replay_priority')}), weighted by "
        f"(chance * size)^-{config.replay_correction:g}, the largest weight 1"
    )
    if config.importance_cap is None and config.loss != "policy_gradient":
        yield f"their ratio is against the policy that sampled them, as importance_cap is not set: {past_clip(config)}"


def _task_lines(config: GRPOConfig, world: World) -> Iterator[str]:
    tasks = world.tasks("train")
    yield f"{_say(config, 'task_order')}; {len(world.tasks('heldout')):,} more are held out"
    for place, phase in enumerate(phases_of(config)):
        admitted = sum(map(phase.admits, tasks))
        opens = f", opens at a success of {phase.open_at:.0%} in the one before" if place else ""
        rewarded = f", rewards {dict(phase.weights)}" if phase.weights else ""
        only = f", only {dict(phase.only)}" if phase.only else ""
        yield f"phase {phase.name!r}: {admitted:,} of {len(tasks):,} tasks{only}{opens}{rewarded}"


def _schedule_lines(sizes: Sizes, world: World) -> Iterator[str]:
    config = sizes.config
    cold = config.cold_start_steps if len(world.examples()) else 0
    yield f"cold start: {cold:,} updates on {config.cold_start_batch} examples each, up to {config.cold_start_rate:g}"
    yield (
        f"GRPO: the learning rate rises over {config.warmup_steps} steps to {config.learning_rate:g}, "
        f"{_say(config, 'schedule')}"
    )
    saved = f"a checkpoint every {config.save_every} steps"
    yield f"held-out tasks every {config.eval_every} steps, {saved}" if config.eval_every else saved


def _model_lines(sizes: Sizes) -> Iterator[str]:
    """What of it learns, in what, and what is on and off."""
    config, shape = sizes.config, sizes.shape
    known = f"{shape.parameters / 1e6:,.1f}M parameters" if shape else "its size is told when it is loaded"
    yield f"{config.model}: {known}; computes in {_say(config, 'dtype')}"
    if config.lora_rank:
        some = f", {shape.adapter(config.lora_rank, config.lora_targets) / 1e6:,.2f}M parameters" if shape else ""
        dropout = f", dropout {config.lora_dropout:g}" if config.lora_dropout else ""
        yield (
            f"LoRA of rank {config.lora_rank} on {config.lora_targets}{some}, counting "
            f"{config.lora_alpha / config.lora_rank:g} times{dropout}; all else is frozen"
        )
    else:
        yield f"all weights learn{f', but those with {config.frozen} in their names' if config.frozen else ''}"
    yield f"optimizer: {_say(config, 'optimizer')}"
    if not config.kl_coef:
        yield "no reference: kl_coef is 0"
    elif config.lora_rank:
        still = config.reference == "static"
        yield f"reference: the adapter {'switched off' if still else 'with other weights'}; no second model"
    else:
        yield f"reference: a copy of the model{', off the device between rollouts' if config.offload_reference else ''}"
    for name, on in (
        ("gradient checkpointing", config.gradient_checkpointing),
        ("chat template", config.chat_template),
        (f"grammar ({config.grammar})" if config.grammar else "grammar", config.grammar is not None),
    ):
        yield f"{name}: {'on' if on else 'off'}"


def _memory_lines(sizes: Sizes) -> Iterator[str]:
    config = sizes.config
    if config.model and sizes.shape is None:
        yield f"{config.model} is not on this disk; `coterie train` tells when it is loaded"
        return
    if not config.model:
        parameters = count_parameters(sizes.vocabulary, config.width, config.depth, sizes.fills)
        yield f"{parameters:,} parameters: width {config.width}, depth {config.depth}, vocabulary {sizes.vocabulary}"
    for device, tokens in sizes.micro_tokens.items():
        held = text_memory(sizes, sizes.shape, device, tokens) if sizes.shape else memory(sizes, tokens)
        learning, sampling = ("activations of a micro-batch", "logits at chosen places"), "cache while sampling"
        always = sum(size for name, size in held.items() if name not in (*learning, sampling))
        if config.offload_reference:
            always -= held["reference"]
        peak = always + max(held[sampling], sum(held[name] for name in learning))
        told = ", ".join(f"{name} {size / 2**20:,.1f}" for name, size in held.items() if size)
        yield f"on {device}, in MiB: {told}; about {peak / 2**20:,.1f} at the peak, besides torch itself"
