"""The configuration of a run: names, defaults, aliases, and clear words about mistakes."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from coterie.aliases import ALIASES, translate

Share = Annotated[float, Field(gt=0, le=1)]


class ConfigError(ValueError):
    """A configuration that cannot be meant; the message says what to write instead."""


class GRPOConfig(BaseModel):
    """Everything that a run depends on. Each name, with dashes, is also an option of `coterie train`."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    world: str = Field(default="bricks", description="a world's name, or a Python file that defines one")
    world_options: dict[str, Any] = Field(default_factory=dict, description="settings of the world itself")
    seed: int = Field(default=0, description="of everything random")
    out: str | None = Field(default=None, description="the run folder; by default runs/WORLD-DATE-TIME")
    start_from: str | None = Field(default=None, description="a run or checkpoint whose policy to start from")

    policy: Literal["auto", "causal", "fill"] = Field(
        default="auto", description="how answers are written; auto fills in where the world's prompts have blanks"
    )
    fill_passes: PositiveInt = Field(default=1, description="passes in which blanks are filled, the surest first")

    steps: NonNegativeInt = Field(default=100, description="GRPO steps: sample, score, learn")
    passes: PositiveInt | None = Field(default=None, description="instead of steps: passes over the training tasks")
    prompts_per_step: PositiveInt = Field(default=16, description="tasks a step")
    group_size: PositiveInt = Field(default=8, description="answers a task; they are rated against each other")
    epochs: PositiveInt = Field(default=1, description="passes over each step's answers")
    minibatch_size: PositiveInt | None = Field(default=None, description="answers an optimizer update; by default all")

    temperature: NonNegativeFloat = Field(default=1.0, description="of sampling while training")
    top_p: Share = Field(default=1.0, description="sample from the likeliest tokens that reach this probability")
    top_k: NonNegativeInt = Field(default=0, description="sample from this many likeliest tokens; 0: all")
    max_tokens: PositiveInt | None = Field(default=None, description="longest answer; by default the language's")

    advantage: Literal[
        "standardized",
        "centered",
        "leave_one_out",
        "batch_standardized",
        "pass_at_k",
        "pass_at_k_binary",
        "best_minus_second",
    ] = Field(default="standardized", description="how an answer is rated against its siblings")
    pass_k: PositiveInt = Field(default=4, description="the k of pass_at_k")
    advantage_limit: PositiveFloat | None = Field(default=None, description="clamp advantages to plus or minus this")
    baseline_memory: Share | None = Field(
        default=None, description="rate answers against a running mean of their task: for groups of one or two"
    )
    reward_parts: dict[str, float] = Field(
        default_factory=dict, description="weights of the score's parts; by default the world's own total counts"
    )
    reward_sum: Literal["weighted_sum", "normalized_sum"] = Field(
        default="weighted_sum", description="of the parts; normalized_sum standardizes each within the group first"
    )
    signal: str = Field(default="reward", description="groups differ in this: reward, success or a part's name")
    signal_tolerance: NonNegativeFloat = Field(default=1e-6, description="by more than this")
    redraws: NonNegativeInt = Field(default=0, description="rounds of drawing new tasks for groups that do not differ")

    loss: Literal["clipped", "gspo", "cispo", "policy_gradient"] = Field(default="clipped", description="per token")
    clip_low: PositiveFloat = Field(default=0.2, description="the ratio is clipped at 1 - clip_low")
    clip_high: PositiveFloat = Field(default=0.2, description="and at 1 + clip_high")
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        default=None, description="bound on the ratio of bad answers in the clipped loss"
    )
    aggregation: Literal["token_mean", "sequence_mean", "constant_length"] = Field(
        default="token_mean", description="how tokens become one number"
    )
    constant_length: PositiveInt | None = Field(default=None, description="tokens, for the aggregation of that name")
    importance_cap: PositiveFloat | None = Field(
        default=None, description="take the ratio against the policy before the step, and weight by sampler up to this"
    )
    overlong: Literal["keep", "mask", "shape"] = Field(
        default="keep", description="answers cut at the length limit: keep, mask out of the loss, or penalize"
    )
    overlong_buffer: PositiveInt = Field(default=16, description="tokens before the limit where the penalty begins")

    kl_coef: NonNegativeFloat = Field(default=0.0, description="weight of the KL to the reference")
    kl: Literal["k1", "k2", "k3"] = Field(default="k3", description="its estimator")
    kl_in: Literal["loss", "reward"] = Field(default="loss", description="where the KL counts")
    kl_target: PositiveFloat | None = Field(default=None, description="let kl_coef follow the KL towards this")
    reference: Literal["static", "ema", "periodic"] = Field(
        default="static", description="the policy at the start of GRPO; its moving average; or its copy now and then"
    )
    reference_old_share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.99, description="weight of the OLD reference in ema (TRL's ref_model_mixup_alpha is that of the new)"
    )
    reference_every: PositiveInt = Field(default=100, description="steps between copies in periodic")
    offload_reference: bool = Field(default=False, description="keep the reference off the device between rollouts")
    entropy_coef: NonNegativeFloat = Field(default=0.0, description="weight of the entropy bonus")
    entropy_target: PositiveFloat | None = Field(
        default=None, description="let entropy_coef follow the entropy towards this"
    )

    replay_capacity: NonNegativeInt = Field(default=0, description="groups kept to learn from again; 0: none")
    replay_share: Annotated[float, Field(ge=0)] = Field(
        default=0.25, description="replayed groups a step, as a share of its tasks"
    )
    replay_priority: Literal["reward", "surprise", "uniform"] = Field(
        default="reward", description="prefer groups whose rewards differ most, or whose good answers were unlikely"
    )
    replay_exponent: Annotated[float, Field(ge=0, le=1)] = Field(default=0.6, description="0 even, 1 by priority")
    replay_correction: Annotated[float, Field(ge=0, le=1)] = Field(default=0.4, description="of the bias that brings")
    replay_max_age: PositiveInt = Field(default=50, description="steps after which a group is forgotten")
    hindsight: NonNegativeInt = Field(
        default=0, description="failed answers a step to imitate as answers to what they did achieve"
    )
    task_order: Literal["shuffled", "difficulty"] = Field(
        default="shuffled", description="every task once an epoch, or more of those solved half the time"
    )
    curriculum: list[dict[str, Any]] | Literal["world"] = Field(
        default_factory=list,
        description='phases: tables of name, open_at, only and weights; "world": those it brings',
    )
    novelty_coef: NonNegativeFloat = Field(
        default=0.0, description="weight of the part novelty: successes that the run found seldom or never before"
    )

    learning_rate: PositiveFloat = Field(default=3e-4, description="at its peak")
    warmup_steps: NonNegativeInt = Field(default=5, description="steps in which the learning rate rises")
    schedule: Literal["cosine", "constant"] = Field(default="cosine", description="of the learning rate after the rise")
    final_rate: NonNegativeFloat = Field(default=0.1, description="where cosine ends, as a share of the peak")
    weight_decay: NonNegativeFloat = Field(default=0.01, description="of AdamW, on matrices")
    max_grad_norm: PositiveFloat = Field(default=1.0, description="longer gradients are shortened to this")

    cold_start_steps: NonNegativeInt = Field(
        default=300, description="supervised updates on the world's examples, first"
    )
    cold_start_batch: PositiveInt = Field(default=64, description="examples a supervised update")
    cold_start_rate: PositiveFloat = Field(default=2e-3, description="learning rate of the cold start at its peak")

    judge: str = Field(
        default="auto",
        description="whose verdict counts: new (trained first), a judge's folder, file.py:function, or none for the "
        "world's own; auto is new for a policy that fills in and none for others",
    )
    judge_steps: PositiveInt = Field(default=300, description="supervised updates of a new judge")
    judge_batch: PositiveInt = Field(default=64, description="texts an update of the judge")
    judge_rate: PositiveFloat = Field(default=1e-3, description="learning rate of the judge at its peak")
    guard: str = Field(
        default="independent", description="stop when the reward rises while this part of the score falls"
    )
    guard_window: NonNegativeInt = Field(default=20, description="steps that are averaged for that; 0: never stop")
    guard_tolerance: PositiveFloat = Field(default=0.03, description="how far it may fall below its best")

    width: PositiveInt = Field(default=128, description="of the transformer")
    depth: PositiveInt = Field(default=4, description="its layers")
    heads: PositiveInt = Field(default=4, description="its attention heads")

    model: str | None = Field(
        default=None, description="a language model to train instead: smollm2, a folder, or a name on a hub"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(default="auto", description="what it computes in")
    chat_template: bool = Field(default=True, description="pose prompts to it as a user's message where it knows chats")
    grammar: str | None = Field(
        default=None,
        description="its answers follow it: a JSON schema (.json), Lark (.lark), a regular expression, or world "
        "for the schema that the world brings",
    )
    lora_rank: NonNegativeInt = Field(default=16, description="of its LoRA adapter; 0: all its weights learn")
    lora_alpha: PositiveFloat = Field(default=32.0, description="the adapter counts lora_alpha / lora_rank")
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.0, description="of the adapter while learning")
    lora_targets: str = Field(default="all-linear", description="layers with an adapter; or their names, with commas")
    frozen: str = Field(default="", description="weights with such a part in their name stay, where all others learn")
    gradient_checkpointing: bool = Field(default=False, description="compute layers twice rather than keep them")
    compile_layers: bool = Field(default=False, description="let torch.compile fuse its layers for learning")
    optimizer: Literal["adamw", "adamw_8bit"] = Field(default="adamw", description="8 bits need CUDA and bitsandbytes")
    logprob_chunk: PositiveInt = Field(default=1024, description="places whose logits are in memory at once")

    device: str = Field(default="auto", description="cpu, cuda, cuda:1, …; auto takes a GPU where there is one")
    threads: NonNegativeInt = Field(
        default=0,
        description="of torch on the CPU; 0: all cores, and for a small policy on many of them the fastest number",
    )
    micro_batch_tokens: PositiveInt | None = Field(
        default=None,
        description="tokens in memory at once while learning; by default 2,048 on a CPU and 65,536 on a GPU",
    )

    workers: NonNegativeInt = Field(default=0, description="processes that score; 0 takes one a core")
    answer_limit_s: PositiveFloat = Field(default=10.0, description="seconds a world may take over one answer")

    eval_every: NonNegativeInt = Field(default=0, description="steps between evaluations; 0: only when asked")
    eval_tasks: PositiveInt = Field(default=100, description="held-out tasks an evaluation")
    eval_samples: PositiveInt = Field(default=1, description="answers a task in an evaluation; pass@k is for this k")
    eval_temperature: NonNegativeFloat | None = Field(default=None, description="by default that of training")
    save_every: PositiveInt = Field(default=20, description="steps between checkpoints")
    keep_checkpoints: PositiveInt = Field(default=3, description="how many of the newest are kept, besides the best")
    log_every: PositiveInt = Field(default=1, description="steps between lines where there is no terminal")
    rollouts_logged: NonNegativeInt = Field(default=16, description="answers a step that go into rollouts.jsonl")
    sample_every: NonNegativeInt = Field(
        default=50, description="steps between samples to read, where the world has any; 0: none"
    )
    track_project: str = Field(default="coterie", description="the W&B project")
    track_name: str | None = Field(default=None, description="the W&B run; by default the run folder's name")
    track: str = Field(default="", description="tensorboard, wandb, or both with a comma between")

    @pydantic.model_validator(mode="after")
    def _check(self) -> GRPOConfig:
        if self.passes is not None and "steps" in self.model_fields_set:
            raise ValueError("steps and passes say the same thing: write one of them")
        if self.minibatch_size and self.minibatch_size > self.prompts_per_step * self.group_size:
            raise ValueError(
                f"minibatch_size {self.minibatch_size} is more than a step's "
                f"{self.prompts_per_step} x {self.group_size} answers"
            )
        if self.advantage.startswith("pass_at_k") and self.pass_k > self.group_size:
            raise ValueError(f"pass_k {self.pass_k} is more than group_size {self.group_size}")
        if self.aggregation == "constant_length" and self.constant_length is None and self.max_tokens is None:
            raise ValueError("aggregation constant_length needs constant_length (or max_tokens) = a number of tokens")
        for name, coef, target in (
            ("kl", self.kl_coef, self.kl_target),
            ("entropy", self.entropy_coef, self.entropy_target),
        ):
            if target is not None and coef == 0:
                raise ValueError(f"{name}_target steers {name}_coef by factors: write a {name}_coef above 0")
        if self.kl_target is not None and self.kl_in == "reward":
            raise ValueError('kl_target follows the KL in the loss: write kl_in = "loss"')
        for tracker in self.trackers:
            if tracker not in ("tensorboard", "wandb"):
                raise ValueError(f"track knows tensorboard and wandb, not {tracker!r}")
        return self

    @property
    def trackers(self) -> tuple[str, ...]:
        return tuple(filter(None, (name.strip() for name in self.track.split(","))))


def parse_settings(settings: Mapping[str, Any], world_settings: Mapping[str, Any]) -> GRPOConfig:
    """A configuration from plain names and values; names of the world's own settings go to the world."""
    ours: dict[str, Any] = {}
    options = dict(settings.get("world_options", {}))
    for raw, given in settings.items():
        try:
            meant = translate(raw.replace("-", "_"), given)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        for name, value in meant.items():
            if name == "world_options":
                continue
            if name in GRPOConfig.model_fields:
                ours[name] = value
            elif name in world_settings:
                options[name] = value
            else:
                raise ConfigError(_unknown(raw, [*GRPOConfig.model_fields, *ALIASES, *world_settings]))
    for name in options:
        if name not in world_settings:
            raise ConfigError(_unknown(name, world_settings, "the world has no setting"))
    try:
        return GRPOConfig(**ours, world_options={k: _coerce(k, v, world_settings[k]) for k, v in options.items()})
    except pydantic.ValidationError as error:
        raise ConfigError(_explain(error)) from None


def _coerce(name: str, value: Any, default: Any) -> Any:
    """A world's setting as the type of its default: the command line brings only strings."""
    if type(value) is type(default) or (isinstance(default, str) and _are_tables(value)):
        return value  # tables that have a short form in text, such as rewards, are read by the world
    try:
        return pydantic.TypeAdapter(type(default)).validate_python(value)
    except pydantic.ValidationError:
        raise ConfigError(f"{name} must be {_type_name(type(default))}, not {value!r}") from None


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(table, dict) for table in value)


def _type_name(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(kind, kind.__name__)


def _unknown(name: str, known: Iterable[str], told: str = "there is no setting") -> str:
    near = difflib.get_close_matches(name.replace("-", "_"), known, 1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`coterie train --help` lists them all"
    return f"{told} {name!r}; {hint}"


def _explain(error: pydantic.ValidationError) -> str:
    """The first mistake, in a sentence."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message
    name = str(first["loc"][0])
    return f"{name} = {first['input']!r} will not do: {message[0].lower()}{message[1:]}"


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def write_toml(config: GRPOConfig) -> str:
    """The configuration as TOML; what is not set is left out."""
    values = config.model_dump(exclude_none=True)
    options = values.pop("world_options")
    lists = {"curriculum": values.pop("curriculum")}
    lists |= {f"world_options.{name}": options.pop(name) for name in list(options) if _are_tables(options[name])}
    lines = _toml_lines(values)
    if options:
        lines += ["", "[world_options]", *_toml_lines(options)]
    for name, tables in lists.items():
        for table in tables:
            lines += ["", f"[[{name}]]", *_toml_lines(table)]
    return "\n".join(lines) + "\n"


def _toml_lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_toml_value(value)}" for name, value in table.items()]


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml_value(inner)}" for name, inner in value.items()) + "}"
    # JSON's strings, numbers, booleans and lists are TOML's, but for characters beyond ASCII.
    return json.dumps(value, ensure_ascii=False)
