"""The arithmetic of a configuration: answers, tokens, updates and memory of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coterie.config import ConfigError, GRPOConfig
from coterie.training.curriculum import Phase, read_phases
from coterie.worlds.base import FillLanguage, World

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
        if language is None or config.model is not None:
            raise ConfigError("sizes can be told for the small transformer alone; a language model tells its own")
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


def phases_of(config: GRPOConfig) -> list[Phase]:
    """The curriculum's phases; one of all tasks if there is none."""
    try:
        assert config.curriculum != "world"
        return read_phases(config.curriculum) or [Phase("all")]
    except ValueError as error:
        raise ConfigError(str(error)) from None
