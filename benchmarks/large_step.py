"""Whole steps of a large model with random weights: seconds and peak memory of every phase.

    python benchmarks/large_step.py --shape 14B --group 64 --prompt 512 --answer 1168 --steps 2 --json large.json
    python benchmarks/large_step.py --shape 4M --group 8 --prompt 8 --answer 16 --optimizer adamw --device cpu

The settings are those of examples/besiege-14b.toml: one prompt, LoRA of rank 64 on all linear layers, 8-bit AdamW,
learning rate 5e-6, gradients clipped at .5, KL .001 against the model without its adapter,
pass@k. With --ending answers end by chance.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from shapes import SHAPES, EvenNumbers, make_tokenizer, random_model, random_prompts

from coterie import GRPOConfig, GRPOTrainer
from coterie.build import learner_settings
from coterie.engines.torch.hf import LanguageModelEngine
from coterie.engines.torch.pretrained import LanguageModel, ModelSettings, Pretrained, add_adapter

GB = 1e9


class Phases:
    """Seconds and peak memory by phase."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device != "cpu"
        self.found: dict[str, dict[str, float]] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        since = time.perf_counter()
        yield
        if self.on_gpu:
            torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() / GB if self.on_gpu else 0.0
        self.found[name] = {"seconds": time.perf_counter() - since, "peak_GB": peak}
        print(f"{name:24} {self.found[name]['seconds']:8.2f} s   peak {peak:6.1f} GB", flush=True)


def make_engine(chosen: argparse.Namespace, config: GRPOConfig) -> LanguageModelEngine:
    """The engine around a model that was never saved anywhere."""
    dtype = torch.float32 if chosen.device == "cpu" else torch.bfloat16
    causal = random_model(SHAPES[chosen.shape], chosen.ending, chosen.device, dtype)
    causal.requires_grad_(True)
    causal.gradient_checkpointing_enable({"use_reentrant": False})
    settings = ModelSettings(**{name: getattr(config, name) for name in ModelSettings.__dataclass_fields__})
    model = LanguageModel(causal)
    adapter = add_adapter(causal, settings, config.seed)
    model.learn(False)
    loaded = Pretrained(model, make_tokenizer(SHAPES[chosen.shape].vocab_size), adapter)
    return LanguageModelEngine(settings, learner_settings(config, 16_384), 0, chosen.device, loaded=loaded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--shape", default="14B", choices=list(SHAPES))
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--answer", type=int, default=1168, help="tokens")
    parser.add_argument("--ending", type=float, default=0.0, help="probability of the end token")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--optimizer", default="adamw_8bit")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    config = GRPOConfig(
        model="random",
        device=chosen.device,
        workers=1,
        prompts_per_step=1,
        group_size=chosen.group,
        max_tokens=chosen.answer,
        advantage="pass_at_k",
        pass_k=max(2, chosen.group // 4),
        lora_rank=64,
        lora_alpha=64.0,
        optimizer=chosen.optimizer,
        learning_rate=5e-6,
        max_grad_norm=0.5,
        kl_coef=0.001,
        gradient_checkpointing=True,
        warmup_steps=0,
    )
    phases = Phases(chosen.device)
    with phases.timed("model"):
        engine = make_engine(chosen, config)
    print(engine.describe())
    prompts = random_prompts(1, chosen.prompt, SHAPES[chosen.shape].vocab_size)
    trainer = GRPOTrainer(config, world=EvenNumbers(prompts), engine=engine)
    with trainer.scorer:
        for step in range(1, chosen.steps + 1):
            tasks = trainer.world.tasks("train")
            with phases.timed(f"step {step}: sample"):
                groups = trainer.generate_rollouts(tasks)
            lengths = [int(c.chosen.sum()) for c in groups[0].completions]
            print(f"  {len(lengths)} answers of {min(lengths)} to {max(lengths)} tokens, {sum(lengths)} together")
            with phases.timed(f"step {step}: score"):
                scores = trainer.compute_rewards(groups)
            advantages = trainer.compute_advantages(scores, tasks)
            with phases.timed(f"step {step}: learn"):
                metrics = trainer.train_on_rollouts(groups, advantages)
            told = ("loss", "grad_norm", "kl", "sampler_gap_mean", "sampler_gap_max", "skipped_updates")
            print("  " + ", ".join(f"{name} {metrics[name]:.3g}" for name in told if name in metrics), flush=True)
    if chosen.json:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        chosen.json.write_text(json.dumps({"versions": versions, "phases": phases.found}, indent=1))


if __name__ == "__main__":
    main()
