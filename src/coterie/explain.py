"""A configuration in words: the arithmetic of a step, the formulas, the memory, and what looks wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from coterie.config import ConfigError, GRPOConfig
from coterie.training.curriculum import Phase, read_phases
from coterie.worlds.base import FillLanguage, World

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
    "schedule": {
        "cosine": "then falls along a cosine to {final_rate:g} of that at the last step",
        "constant": "then stays",
    },
}

FLOAT = 4  # bytes; the small transformer is in float32 throughout
LOGIT_COPIES = 6  # logits, log-probabilities and the entropy's terms; four are kept, two come with the gradient
CPU_TOKENS, GPU_TOKENS = 2_048, 65_536  # micro_batch_tokens where it is not set


def count_parameters(vocabulary: int, width: int, depth: int, fills: bool = False) -> int:
    """Of the small transformer: embedding and head, `depth` blocks, norms, and a look at 7 places if it fills in."""
    attention, mlp, norms = 4 * width**2, 3 * width * hidden_width(width), 2 * width
    near = 7 * width**2 + width if fills else 0
    return 2 * vocabulary * width + depth * (attention + mlp + norms) + width + near


def hidden_width(width: int) -> int:
    """Of the SwiGLU."""
    return 16 * math.ceil(width / 6)


@dataclass(frozen=True)
class Sizes:
    """What a step comes to, in answers and tokens; tokens are upper bounds."""

    config: GRPOConfig
    vocabulary: int
    prompt_tokens: int
    answer_tokens: int
    answers: int
    replayed_groups: int
    learned_answers: int
    minibatch: int  # answers
    minibatches: int  # an epoch
    micro_tokens: dict[str, int]  # by kind of device; `auto` may mean either
    fills: bool  # in the prompt's own row; else the answer comes after it

    @classmethod
    def of(cls, config: GRPOConfig, world: World) -> Sizes:
        language = world.language()
        if language is None:
            raise ConfigError(f"the world {world.name!r} has no closed vocabulary: its language() is None")
        answers = config.prompts_per_step * config.group_size
        replayed = min(config.replay_capacity, round(config.replay_share * config.prompts_per_step))
        learned = answers + replayed * config.group_size
        minibatch = config.minibatch_size or learned
        fills = config.policy != "causal" and isinstance(language, FillLanguage)
        prompts = [language.encode_prompt(task.prompt) for task in world.tasks("train")]
        longest = min(config.max_tokens or language.max_tokens, language.max_tokens)
        if isinstance(language, FillLanguage) and fills:
            longest = max(prompt.count(language.mask) for prompt in prompts)
        kinds = {"a CPU": CPU_TOKENS * (config.group_size if fills else 1), "a GPU": GPU_TOKENS}
        if config.device != "auto":
            kinds.pop("a GPU" if config.device == "cpu" else "a CPU")
        return cls(
            config,
            vocabulary=len(language.vocabulary),
            prompt_tokens=max(map(len, prompts)),
            answer_tokens=longest,
            answers=answers,
            replayed_groups=replayed,
            learned_answers=learned,
            minibatch=minibatch,
            minibatches=math.ceil(learned / minibatch),
            micro_tokens={"any device": config.micro_batch_tokens} if config.micro_batch_tokens else kinds,
            fills=fills,
        )

    @property
    def row_tokens(self) -> int:
        return self.prompt_tokens + (0 if self.fills else self.answer_tokens)

    @property
    def updates(self) -> int:
        return self.config.epochs * self.minibatches


def memory(sizes: Sizes, micro_tokens: int) -> dict[str, int]:
    """Bytes by what holds them, at their peak."""
    config = sizes.config
    weights = FLOAT * count_parameters(sizes.vocabulary, config.width, config.depth, sizes.fills)
    cached = 0 if sizes.fills else 2 * config.depth * config.width
    rows = max(1, min(micro_tokens // sizes.row_tokens, sizes.minibatch))
    # Siblings that fill in at once share a row of the network.
    computed = max(1, rows // config.group_size) if sizes.fills and config.fill_passes == 1 else rows
    sampled = max(sizes.answers, config.eval_tasks * config.eval_samples if config.eval_every else 0)
    # A block keeps for its gradient about 14 widths (stream, norms, q, k, v, mixed) and 4 hidden widths a token.
    kept = config.depth * (14 * config.width + 4 * hidden_width(config.width))
    return {
        "weights": weights,
        "gradients": weights,
        "AdamW (two moments)": 2 * weights,
        "reference": weights if config.kl_coef else 0,
        # Keys and values, and a second copy for a moment whenever finished rows are dropped.
        "cache while sampling": 2 * FLOAT * sampled * sizes.row_tokens * cached,
        "activations of a micro-batch": FLOAT * computed * sizes.row_tokens * kept,
        "logits at chosen places": LOGIT_COPIES * FLOAT * rows * sizes.answer_tokens * sizes.vocabulary,
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
    yield f"the policy {_say(config, 'policy')}"
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
    yield (
        f"prompts up to {sizes.prompt_tokens:,} tokens, answers up to {sizes.answer_tokens:,}: at most "
        f"{sizes.learned_answers * sizes.row_tokens:,} tokens a step, {sizes.learned_answers * sizes.answer_tokens:,} "
        "of them chosen"
    )
    for device, tokens in sizes.micro_tokens.items():
        rows = max(1, tokens // sizes.row_tokens)
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


def phases_of(config: GRPOConfig) -> list[Phase]:
    """The curriculum's phases; one of all tasks if there is none."""
    try:
        return read_phases(config.curriculum) or [Phase("all")]
    except ValueError as error:
        raise ConfigError(str(error)) from None


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


def _memory_lines(sizes: Sizes) -> Iterator[str]:
    config = sizes.config
    parameters = count_parameters(sizes.vocabulary, config.width, config.depth, sizes.fills)
    yield f"{parameters:,} parameters: width {config.width}, depth {config.depth}, vocabulary {sizes.vocabulary}"
    for device, tokens in sizes.micro_tokens.items():
        held = memory(sizes, tokens)
        learning, sampling = ("activations of a micro-batch", "logits at chosen places"), "cache while sampling"
        always = sum(size for name, size in held.items() if name not in (*learning, sampling))
        if config.offload_reference:
            always -= held["reference"]
        peak = always + max(held[sampling], sum(held[name] for name in learning))
        told = ", ".join(f"{name} {size / 2**20:,.1f}" for name, size in held.items() if size)
        yield f"on {device}, in MiB: {told}; about {peak / 2**20:,.1f} at the peak, besides torch itself"


def warnings_of(config: GRPOConfig, world: World) -> list[str]:
    """What a careful reader of this configuration would ask about."""
    sizes = Sizes.of(config, world)
    found = [*_signal_warnings(config), *_loss_warnings(sizes), *_task_warnings(config, world)]
    return [*found, *_run_warnings(sizes, world)]


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
    named -= {"reward", "success", "valid", "overlong", "kl"}
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
    if not config.start_from and not (config.cold_start_steps and len(world.examples())):
        yield "the policy starts from random weights: without a cold start it may never meet a reward"
    heldout = len(world.tasks("heldout"))
    if config.eval_tasks > heldout:
        yield f"eval_tasks = {config.eval_tasks}, but only {heldout} tasks are held out"


def _run_warnings(sizes: Sizes, world: World) -> Iterator[str]:
    config = sizes.config
    language = world.language()
    if language and config.max_tokens and config.max_tokens > language.max_tokens:
        yield f"max_tokens = {config.max_tokens} is cut to the language's own {language.max_tokens}"
    if config.overlong == "shape" and config.overlong_buffer >= sizes.answer_tokens:
        yield f"overlong_buffer {config.overlong_buffer} is no less than the limit: every answer is penalized"
    if config.replay_capacity and not sizes.replayed_groups:
        yield "replay_share of a step's tasks rounds to 0 groups: nothing is ever replayed"
    if config.width % (2 * config.heads):
        yield f"width {config.width} does not divide into {config.heads} heads of even size: training refuses it"
    if min(sizes.micro_tokens.values()) < sizes.row_tokens:
        yield f"a micro-batch is smaller than the longest row: such rows, {sizes.row_tokens} tokens, go one by one"
    if config.steps and config.warmup_steps >= config.steps:
        yield f"warmup_steps = {config.warmup_steps} of {config.steps} steps: the peak rate is never reached"
    if not config.eval_every:
        yield "eval_every is 0: no held-out numbers until `coterie eval`"
    if config.save_every > config.steps:
        yield f"save_every = {config.save_every} is more than steps: a run that is killed starts over"
