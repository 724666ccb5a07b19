"""What looks wrong in a configuration."""

from __future__ import annotations

from collections.abc import Iterator

from coterie.config import GRPOConfig
from coterie.sizes import Sizes, phases_of
from coterie.worlds.base import World


def warnings_of(config: GRPOConfig, world: World) -> list[str]:
    """What a careful reader of this configuration would ask about."""
    sizes = Sizes.of(config, world)
    found = [*_signal_warnings(config), *_loss_warnings(sizes), *_task_warnings(config, world)]
    return [*found, *_run_warnings(sizes, world), *(_model_warnings(config) if config.model else ())]


def _signal_warnings(config: GRPOConfig) -> Iterator[str]:
    if config.group_size == 1 and config.baseline_memory is None:
        yield "a group of one has no sibling: every advantage is 0; raise group_size or set baseline_memory"
    if config.group_size == 2 and config.baseline_memory is None and config.advantage == "standardized":
        yield "in a group of two, standardized knows only better and worse; centered keeps by how much"
    if config.group_size > 2 and config.baseline_memory is not None:
        yield f"baseline_memory takes the place of advantage = {config.advantage}: it is for groups of one or two"
    if config.baseline_memory == 1:
        yield "baseline_memory = 1 keeps the first mean of each task for ever; 0.9 follows it"
    if config.temperature == 0:
        yield "at temperature 0 all answers of a group are the same: nothing is learned; write 1"
    if config.advantage_limit and config.advantage_limit < 1 and "standardized" in config.advantage:
        yield f"advantage_limit = {config.advantage_limit:g} leaves little but the sign of a standardized advantage"
    if config.advantage == "pass_at_k_binary":
        yield "pass_at_k_binary takes a reward above 1/2 for right: see that the world's rewards mean that"
    parts = config.reward_parts or any(phase.weights for phase in phases_of(config))
    if config.reward_sum == "normalized_sum" and not parts:
        yield "normalized_sum has no parts to sum: write reward_parts, as in {stable = 1.0}"


def _loss_warnings(sizes: Sizes) -> Iterator[str]:
    config = sizes.config
    if not config.kl_coef and (config.reference != "static" or config.kl_in == "reward" or config.offload_reference):
        yield "the reference is set but kl_coef is 0, so nothing is measured against it"
    if config.kl_coef and config.kl == "k1" and config.kl_in == "loss":
        yield "k1 in the loss has an expected gradient of 0, only noise; write k2 or k3, or kl_in = 'reward'"
    if config.reference == "ema" and config.reference_old_share in (0, 1):
        yield "an ema with reference_old_share 1 is static, and with 0 the policy itself"
    if config.reference == "periodic" and config.reference_every >= config.steps:
        yield f"periodic with reference_every = {config.reference_every} never copies in {config.steps} steps"
    if config.loss == "gspo" and max(config.clip_low, config.clip_high) > 0.01:
        yield "gspo's ratio is a mean over the answer and moves little: clips are usually about 3e-4 and 4e-4"
    if config.loss == "gspo" and config.aggregation == "token_mean":
        yield "gspo is meant with aggregation sequence_mean; token_mean weighs answers by their length"
    if config.loss == "policy_gradient" and (
        sizes.updates > 1 or (sizes.replayed_groups and config.importance_cap is None)
    ):
        yield "policy_gradient has no ratio: it is right for the first update of a rollout alone; write clipped"
    if config.loss == "clipped" and config.clip_low >= 1:
        yield "clip_low of 1 or more never acts: the ratio is never below 0"
    if config.dual_clip and config.loss != "clipped":
        yield f"dual_clip belongs to the clipped loss; {config.loss} takes no notice"
    if config.constant_length and config.aggregation != "constant_length":
        yield f"constant_length is set but the aggregation is {config.aggregation}"
    if sizes.learned_answers % sizes.minibatch:
        yield (
            f"minibatch_size {sizes.minibatch} does not divide {sizes.learned_answers} answers: the last update of an "
            f"epoch has {sizes.learned_answers % sizes.minibatch}, and counts as much"
        )
    if config.learning_rate > 0.01:
        yield f"learning_rate = {config.learning_rate:g} is high for AdamW"


def _unknown_parts(config: GRPOConfig, world: World) -> list[str]:
    """Parts of the score that the configuration names but the world, asked about one example, does not."""
    named = {*config.reward_parts, config.signal, *(part for phase in phases_of(config) for part in phase.weights)}
    named -= {"reward", "success", "valid", "overlong", "kl", "novelty"}
    if not named or not len(world.examples()):
        return []
    example = world.examples()[0]
    [score] = world.score(example.task, [example.answer])
    return sorted(named - score.parts.keys())


def _task_warnings(config: GRPOConfig, world: World) -> Iterator[str]:
    for part in _unknown_parts(config, world):
        yield f"the world's scores have no part {part!r}: it counts as 0 in every answer"
    for place, phase in enumerate(phases_of(config)):
        admitted = sum(map(phase.admits, world.tasks("train")))
        where = f"phase {phase.name}" if config.curriculum else "the world"
        if admitted < config.prompts_per_step:
            yield f"{where} has {admitted} training tasks, fewer than prompts_per_step: a step repeats some"
        if place and not 0 < phase.open_at <= 1:
            yield f"{where} opens at a success of {phase.open_at:g}; write a share above 0 and up to 1"
    if config.hindsight and type(world).relabel is World.relabel:
        yield f"hindsight is set, but the world {world.name} does not define relabel"
    if config.cold_start_steps and config.start_from:
        yield "the policy of start_from goes through the cold start again; write cold_start_steps = 0"
    if not config.model and not config.start_from and not (config.cold_start_steps and len(world.examples())):
        yield "the policy starts from random weights: without a cold start it may never meet a reward"
    heldout = len(world.tasks("heldout"))
    if config.eval_tasks > heldout:
        yield f"eval_tasks = {config.eval_tasks}, but only {heldout} tasks are held out"


def _model_warnings(config: GRPOConfig) -> Iterator[str]:
    if config.optimizer == "adamw_8bit" and config.device == "cpu":
        yield "adamw_8bit needs a GPU: training refuses it on a CPU; write adamw"
    if config.frozen and config.lora_rank:
        yield "with LoRA every weight is frozen: training refuses frozen; write lora_rank = 0, or no frozen"
    if not config.lora_rank and config.learning_rate > 1e-4:
        yield f"learning_rate = {config.learning_rate:g} is high for all weights of a language model; 1e-5 is usual"
    if config.lora_alpha > 4 * config.lora_rank > 0:
        yield f"an adapter that counts {config.lora_alpha / config.lora_rank:g} times learns in jumps; lower lora_alpha"


def _run_warnings(sizes: Sizes, world: World) -> Iterator[str]:
    config = sizes.config
    language = world.language()
    if language and not config.model and config.max_tokens and config.max_tokens > language.max_tokens:
        yield f"max_tokens = {config.max_tokens} is cut to the language's own {language.max_tokens}"
    if config.overlong == "shape" and config.overlong_buffer >= sizes.answer_tokens:
        yield f"overlong_buffer {config.overlong_buffer} is no less than the limit: every answer is penalized"
    if config.replay_capacity and not sizes.replayed_groups:
        yield "replay_share of a step's tasks rounds to 0 groups: nothing is ever replayed"
    if not config.model and config.width % (2 * config.heads):
        yield f"width {config.width} does not divide into {config.heads} heads of even size: training refuses it"
    if min(sizes.micro_tokens.values()) < sizes.row_tokens:
        yield f"a micro-batch is smaller than the longest row: such rows, {sizes.row_tokens} tokens, go one by one"
    if config.steps and config.warmup_steps >= config.steps:
        yield f"warmup_steps = {config.warmup_steps} of {config.steps} steps: the peak rate is never reached"
    if not config.eval_every:
        yield "eval_every is 0: no held-out numbers until `coterie eval`"
    if config.save_every > config.steps:
        yield f"save_every = {config.save_every} is more than steps: a run that is killed starts over"
