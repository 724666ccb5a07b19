"""Configuration to objects: the only place that joins everything."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.config import ConfigError, GRPOConfig, parse_settings, read_toml, write_toml
from coterie.engines.base import Engine, Judge
from coterie.extras import require
from coterie.grpo.objective import Objective
from coterie.judges import judge_named, obtain_judge
from coterie.runs.folder import RunFolder
from coterie.training.critics import CriticScorer
from coterie.training.judging import JudgedScorer, Scoring
from coterie.training.samples import Reader, Sample, has_passages
from coterie.training.trainer import Trainer, Watcher
from coterie.worlds.base import FillLanguage, World
from coterie.worlds.load import load_world, world_fields
from coterie.worlds.scoring import Scorer

if TYPE_CHECKING:
    from coterie.engines.torch.hf import LanguageModelEngine
    from coterie.engines.torch.learner import LearnerSettings
    from coterie.engines.torch.small.transformer import PolicyShape

FEW_CORES = 4  # all of which are taken


class GRPOTrainer(Trainer):
    """The trainer that a configuration describes; bring a world or an engine to use your own.

    It keeps a run folder when the configuration names one (`out`) or a run is handed in.
    """

    def __init__(
        self,
        config: GRPOConfig,
        *,
        world: World | None = None,
        engine: Engine | None = None,
        run: RunFolder | None = None,
        watchers: Sequence[Watcher] = (),
        say: Callable[[str], None] = print,
    ) -> None:
        world = world or load_world(config.world, config.world_options)
        config = settle(config, world)
        if engine is None:
            config = with_threads(config, world)
            engine = make_engine(config, world)
        scorer: Scoring = make_scorer(config, world)
        if judge_named(config, world) != "none":
            # Made when it is needed: a new one learns from the policy that GRPO starts from.
            scorer = JudgedScorer(scorer, lambda: obtain_judge(self, say))
        try:
            super().__init__(config, world, engine, scorer, run, watchers)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        # Last, so that a mistake in the configuration leaves no empty run behind.
        if run is None and config.out is not None:
            self.run = RunFolder.create(Path(config.out), write_toml(config))
        if self.run is not None:
            self.watchers += make_trackers(config, self.run)
            if has_passages(world):
                self.readers.append(sample_writer(self.run))


def make_scorer(config: GRPOConfig, world: World) -> Scorer | CriticScorer:
    """Worker processes and, where the world names models as rewards, this process."""
    scorer = Scorer(world, config.workers or available_cores(), config.answer_limit_s)
    return CriticScorer(world, scorer, lambda: make_critics(config, world)) if world.critics() else scorer


def make_critics(config: GRPOConfig, world: World) -> dict[str, Judge]:
    """The classifiers that a world names, loaded."""
    require("transformers", "llm")
    from coterie.engines.torch.classifier import Classifier

    try:
        return {name: Classifier(critic, find_device(config)) for name, critic in world.critics().items()}
    except ValueError as error:
        raise ConfigError(str(error)) from None


def settle(config: GRPOConfig, world: World) -> GRPOConfig:
    """Settings that are said in terms of the world, in numbers: passes over its tasks, its own curriculum."""
    meant: dict[str, object] = {}
    if config.passes is not None:
        steps = math.ceil(config.passes * len(world.tasks("train")) / config.prompts_per_step)
        meant |= {"steps": steps, "passes": None}
    if config.curriculum == "world":
        meant["curriculum"] = [dict(phase) for phase in world.phases()]
        if not meant["curriculum"]:
            raise ConfigError(f"the world {world.name!r} brings no curriculum; write phases under [[curriculum]]")
    if writes_text(config, world):
        # What suits a policy from scratch would ruin one that can already write.
        rate = 1e-4 if config.lora_rank else 1e-5
        usual = {"max_tokens": 256, "cold_start_steps": 0, "learning_rate": rate}
        if computes_in_bfloat16(config):
            # One token after another, and all at once: rounded differently, they are two policies.
            usual["importance_cap"] = 2.0
        meant |= {name: value for name, value in usual.items() if name not in config.model_fields_set}
    return config.model_copy(update=meant)


def writes_text(config: GRPOConfig, world: World) -> bool:
    """Whether the policy is a language model."""
    return config.model is not None or world.language() is None


def computes_in_bfloat16(config: GRPOConfig) -> bool:
    """Whether a language model does, where this runs."""
    if config.dtype != "auto" or config.device == "cpu":
        return config.dtype == "bfloat16"
    import torch

    return torch.cuda.is_available() and torch.cuda.is_bf16_supported()


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def with_threads(config: GRPOConfig, world: World) -> GRPOConfig:
    """Where there are many cores, as many threads as a small policy is fastest with; the run remembers the number."""
    many = available_cores() > FEW_CORES
    if config.threads or not many or writes_text(config, world) or find_device(config) != "cpu":
        return config
    from coterie.engines.torch.threads import fastest_threads

    rows = config.prompts_per_step * config.group_size
    threads = fastest_threads(shape_of_policy(config, world), rows, available_cores())
    return config.model_copy(update={"threads": threads})


def shape_of_policy(config: GRPOConfig, world: World) -> PolicyShape:
    """Of a small transformer for the world's closed vocabulary."""
    from coterie.engines.torch.small.transformer import PolicyShape

    language = world.language()
    assert language is not None
    causal = policy_kind(config, world) == "causal"
    try:
        return PolicyShape(len(language.vocabulary), config.width, config.depth, config.heads, causal=causal)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def make_engine(config: GRPOConfig, world: World) -> Engine:
    """A small transformer for the world's closed vocabulary, or a language model."""
    import torch

    from coterie.engines.torch.causal import CausalEngine
    from coterie.engines.torch.fill import FillEngine

    if writes_text(config, world):
        return make_language_model(config, world)
    language = world.language()
    assert language is not None
    device, shape = find_device(config), shape_of_policy(config, world)
    torch.set_num_threads(config.threads or available_cores())
    fills = not shape.causal
    # Siblings that fill in share their text, and it is computed once: a micro-batch holds as many more.
    cpu_tokens = 2_048 * (config.group_size if fills else 1)
    settings = learner_settings(config, cpu_tokens if device == "cpu" else 65_536)
    engine: CausalEngine | FillEngine
    if fills:
        assert isinstance(language, FillLanguage)
        engine = FillEngine(language, shape, settings, config.seed, device, config.offload_reference)
    else:
        engine = CausalEngine(language, shape, settings, config.seed, device, config.offload_reference)
    if config.start_from is not None:
        engine.load_policy(find_policy(Path(config.start_from)))
    return engine


def learner_settings(config: GRPOConfig, micro_batch_tokens: int) -> LearnerSettings:
    """How updates are made, for every torch engine."""
    from coterie.engines.torch.learner import LearnerSettings

    return LearnerSettings(
        objective=Objective(
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            loss=config.loss,
            dual_clip=config.dual_clip,
            aggregation=config.aggregation,
            constant_length=config.constant_length or config.max_tokens,
            kl=config.kl,
            importance_cap=config.importance_cap,
        ),
        epochs=config.epochs,
        minibatch_size=config.minibatch_size,
        micro_batch_tokens=config.micro_batch_tokens or micro_batch_tokens,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        optimizer=config.optimizer,
    )


def make_language_model(config: GRPOConfig, world: World) -> LanguageModelEngine:
    """A pretrained model that writes text."""
    if config.model is None:
        raise ConfigError(
            f"the world {world.name!r} has no closed vocabulary; name a language model, as in --model smollm2"
        )
    for package in ("transformers", "peft"):
        require(package, "llm")
    if config.grammar is not None:
        require("llguidance", "grammar")
    import torch

    from coterie.engines.torch.hf import LanguageModelEngine
    from coterie.engines.torch.pretrained import ModelSettings

    device = find_device(config)
    torch.set_num_threads(config.threads or available_cores())
    chosen = {name: getattr(config, name) for name in ModelSettings.__dataclass_fields__}
    chosen["grammar"] = grammar_of(config, world)
    settings = learner_settings(config, 2_048 if device == "cpu" else 16_384)
    try:
        engine = LanguageModelEngine(
            ModelSettings(**chosen), settings, config.seed, device, config.offload_reference, world.instruction
        )
        if config.start_from is not None:
            engine.load_policy(find_policy(Path(config.start_from)))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return engine


def grammar_of(config: GRPOConfig, world: World) -> str | None:
    """What answers follow; "world" is the JSON schema that the world brings."""
    if config.grammar != "world":
        return config.grammar
    if (schema := world.schema()) is None:
        raise ConfigError(f"the world {world.name!r} brings no grammar; write a file or a regular expression")
    return json.dumps(schema)


def export_policy(run: RunFolder, to: Path, merge: bool, checkpoint: str | None = None) -> None:
    """The language model of a run as a folder that transformers loads, or peft if its adapter stays apart."""
    config = read_run_config(run)
    world = load_world(config.world, config.world_options)
    if not writes_text(config, world):
        raise ConfigError(f"{run.path} trained no language model; its checkpoints are safetensors as they are")
    if to.exists() and any(to.iterdir()):
        raise ConfigError(f"{to} is already there; choose another --to")
    engine = make_language_model(config.model_copy(update={"start_from": None}), world)
    try:
        engine.load_policy(run.find_checkpoint(lambda _: None, checkpoint))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    to.mkdir(parents=True, exist_ok=True)
    engine.export(to, merge)


def find_device(config: GRPOConfig) -> str:
    """The device that is meant, if it is there."""
    import torch

    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device = {device!r}, but torch finds no GPU; write cpu or auto")
    return device


def policy_kind(config: GRPOConfig, world: World) -> str:
    """causal or fill"""
    can_fill = isinstance(world.language(), FillLanguage)
    if config.policy == "fill" and not can_fill:
        raise ConfigError(
            f"policy = 'fill' needs prompts with blanks, which {world.name} has not; write causal or auto"
        )
    return ("fill" if can_fill else "causal") if config.policy == "auto" else config.policy


def make_trackers(config: GRPOConfig, run: RunFolder) -> list[Watcher]:
    """Those that `track` names."""
    from coterie.bridges.trackers import TRACKERS

    return [TRACKERS[name](run.path, config.track_project, config.track_name) for name in config.trackers]


def sample_writer(run: RunFolder) -> Reader:
    """Puts samples into the run folder, a page a time."""
    from coterie.report.samples import write_samples

    def write(step: int, samples: Sequence[Sample]) -> None:
        shown = [(f"{s.task.id}: {s.score.total:.3f}", [(p.title, p.pieces) for p in s.passages]) for s in samples]
        write_samples(shown, run.path / "samples" / f"step-{step:06d}")

    return write


def find_policy(path: Path) -> Path:
    """The checkpoint meant by a run folder or a checkpoint folder."""
    if any((path / name).is_file() for name in ("policy.safetensors", "adapter_config.json", "config.json")):
        return path
    return RunFolder.open(path).find_checkpoint(lambda _: None)


def read_run_config(run: RunFolder) -> GRPOConfig:
    """The configuration a run was started with."""
    settings = read_toml(run.path / "config.toml")
    config = parse_settings(settings, world_fields(settings["world"]))
    # What a run leaves out it does without: no default may come in later.
    return config.model_copy(update=dict(config))


def default_out(config: GRPOConfig, suffix: str = "") -> str:
    """runs/WORLD-DATE-TIME"""
    return f"runs/{Path(config.world).stem}{suffix}-{time.strftime('%Y%m%d-%H%M%S')}"
