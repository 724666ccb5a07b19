"""The arithmetic of a configuration: answers, tokens, updates and memory of a step."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from coterie.config import ConfigError, GRPOConfig
from coterie.models import ModelShape, find_shape
from coterie.training.curriculum import Phase, read_phases
from coterie.worlds.base import FillLanguage, World

FLOAT = 4  # bytes; the small transformer is in float32 throughout
LOGIT_COPIES = 6  # logits, log-probabilities and the entropy's terms; four are kept, two come with the gradient
CPU_TOKENS, GPU_TOKENS = 2_048, 65_536  # micro_batch_tokens where it is not set
TEXT_GPU_TOKENS = 16_384  # of a language model
PIECE = re.compile(r"[^\W\d_]+|\d|[^\w\s]|_")  # words, digits and signs: on five texts 0.8 to 0.92 of SmolLM2's tokens
TOKENS_A_PIECE = 1.15
MOST_SLOTS = 1_024  # answers of a language model that are written at once
TEMPLATE_TOKENS = 32  # of its chat template around a prompt, about


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
    shape: ModelShape | None = None  # of a language model, where it is known

    @classmethod
    def of(cls, config: GRPOConfig, world: World) -> Sizes:
        answers = config.prompts_per_step * config.group_size
        replayed = min(config.replay_capacity, round(config.replay_share * config.prompts_per_step))
        learned = answers + replayed * config.group_size
        minibatch = config.minibatch_size or learned
        fills = not config.model and config.policy != "causal" and isinstance(world.language(), FillLanguage)
        shape = find_shape(config.model) if config.model else None
        vocabulary, prompt_tokens, answer_tokens = (
            _text(config, world, shape) if config.model else _words(config, world)
        )
        kinds = {
            "a CPU": CPU_TOKENS * (config.group_size if fills else 1),
            "a GPU": TEXT_GPU_TOKENS if config.model else GPU_TOKENS,
        }
        if config.device != "auto":
            kinds.pop("a GPU" if config.device == "cpu" else "a CPU")
        return cls(
            config,
            vocabulary,
            prompt_tokens,
            answer_tokens,
            answers=answers,
            replayed_groups=replayed,
            learned_answers=learned,
            minibatch=minibatch,
            minibatches=math.ceil(learned / minibatch),
            micro_tokens={"any device": config.micro_batch_tokens} if config.micro_batch_tokens else kinds,
            fills=fills,
            shape=shape,
        )

    @property
    def row_tokens(self) -> int:
        return self.prompt_tokens + (0 if self.fills else self.answer_tokens)

    @property
    def updates(self) -> int:
        return self.config.epochs * self.minibatches


def _words(config: GRPOConfig, world: World) -> tuple[int, int, int]:
    """Vocabulary, longest prompt and longest answer in the world's own language."""
    language = world.language()
    if language is None:
        raise ConfigError(
            f"the world {world.name!r} has no closed vocabulary; name a language model, as in --model smollm2"
        )
    prompts = [language.encode_prompt(task.prompt) for task in world.tasks("train")]
    longest = min(config.max_tokens or language.max_tokens, language.max_tokens)
    if config.policy != "causal" and isinstance(language, FillLanguage):
        longest = max(prompt.count(language.mask) for prompt in prompts)
    return len(language.vocabulary), max(map(len, prompts)), longest


def _text(config: GRPOConfig, world: World, shape: ModelShape | None) -> tuple[int, int, int]:
    """The same for a language model; prompts are guessed from their words, as its tokenizer may not be at hand."""
    assert config.max_tokens is not None, "build.settle says how long answers are"
    pieces = max(len(PIECE.findall(world.instruction(task))) for task in world.tasks("train"))
    prompt = math.ceil(TOKENS_A_PIECE * pieces) + (TEMPLATE_TOKENS if config.chat_template else 0)
    return shape.vocabulary if shape else 0, prompt, config.max_tokens


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


def text_memory(sizes: Sizes, shape: ModelShape, device: str, micro_tokens: int) -> dict[str, int]:
    """The same for a language model; `a CPU` computes in float32 where dtype is auto."""
    config = sizes.config
    exact = config.dtype == "float32" or (config.dtype == "auto" and device == "a CPU")
    each = FLOAT if exact else FLOAT // 2
    learning = shape.adapter(config.lora_rank, config.lora_targets) if config.lora_rank else shape.parameters
    moment = 1 if config.optimizer == "adamw_8bit" else FLOAT
    judged = config.eval_tasks if config.eval_every else 0
    prompts = max(config.prompts_per_step, judged)
    sampled = max(sizes.answers, judged * config.eval_samples)
    whole = config.kl_coef and not config.lora_rank
    averaged = not exact and config.reference == "ema"
    return {
        "weights": each * shape.parameters,
        "adapter": each * learning if config.lora_rank else 0,
        "float32 masters": 0 if exact else FLOAT * learning,
        "gradients": FLOAT * learning,
        "AdamW (two moments)": 2 * moment * learning,
        "reference": (FLOAT if averaged else each) * shape.parameters if whole else 0,
        # A prompt is kept once for all its siblings; a GPU has slots for so many answers, and others wait.
        "cache while sampling": each
        * shape.cached
        * (prompts * sizes.prompt_tokens + min(sampled, MOST_SLOTS) * sizes.answer_tokens),
        "activations of a micro-batch": each * micro_tokens * shape.kept(config.gradient_checkpointing),
        "logits at chosen places": LOGIT_COPIES * FLOAT * config.logprob_chunk * shape.vocabulary,
    }


def phases_of(config: GRPOConfig) -> list[Phase]:
    """The curriculum's phases; one of all tasks if there is none."""
    try:
        assert config.curriculum != "world"
        return read_phases(config.curriculum) or [Phase("all")]
    except ValueError as error:
        raise ConfigError(str(error)) from None
