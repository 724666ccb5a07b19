"""A whole GRPO step, ours and TRL's in turn, on the same random Qwen2 model, prompts, group size and lengths.

    OMP_NUM_THREADS=1 python benchmarks/step.py --shapes 0.3M 1M 4M
    OMP_NUM_THREADS=1 python benchmarks/step.py --shapes 4M --prompt 128 --kl 0.04
    OMP_NUM_THREADS=1 python benchmarks/step.py --shapes 4M --prompts 8 --group 64 --answer 128 --ending 0.04
    python benchmarks/step.py --device cuda --shapes 0.5B --prompt 128 --answer 128 --group 8 64

TRL (pip install trl) has what suits the device: float32 on a CPU, bfloat16 by autocast on a GPU, no gradient
checkpointing, cached keys and values, fused AdamW, and the same micro-batch as we have (--micro).
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import transformers
from shapes import SHAPES, EvenNumbers, make_tokenizer, random_model, random_prompts, save_model, share_of_even

from coterie import GRPOConfig, GRPOTrainer

RATE = 1e-6


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    shape: str
    prompts: int
    group: int
    prompt: int
    answer: int
    ending: float
    kl: float
    lora: int
    micro: int  # rows in memory at once while learning
    device: str

    def __str__(self) -> str:
        more = [f"end {self.ending:g}"] * bool(self.ending) + [f"KL {self.kl:g}"] * bool(self.kl)
        more += [f"LoRA {self.lora}"] * bool(self.lora) + [f"micro-batch {self.micro}"] * (self.micro < self.rows)
        return ", ".join([f"{self.shape} {self.prompts} x {self.group}, {self.prompt} + {self.answer}", *more])

    @property
    def rows(self) -> int:
        return self.prompts * self.group


class Clock:
    """Seconds by name: of the wall, and of this process."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.wall: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, list[float]] = defaultdict(list)

    def read(self) -> tuple[float, float]:
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()

    def add(self, name: str, since: tuple[float, float]) -> None:
        wall, cpu = self.read()
        self.wall[name].append(wall - since[0])
        self.cpu[name].append(cpu - since[1])

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        since = self.read()
        yield
        self.add(name, since)

    def best(self, rounds: int) -> dict[str, dict[str, float]]:
        """The best of the last rounds: what came before warmed up."""
        return {
            name: {"wall_s": min(self.wall[name][-rounds:]), "cpu_s": min(self.cpu[name][-rounds:])}
            for name in self.wall
        }


def make_ours(case: Case, folder: Path, prompts: list[list[int]], clock: Clock) -> tuple[Any, Callable[[], object]]:
    """Our trainer, and its step."""
    config = GRPOConfig(
        model=str(folder),
        device=case.device,
        threads=torch.get_num_threads(),
        workers=1,
        prompts_per_step=case.prompts,
        group_size=case.group,
        max_tokens=case.answer,
        kl_coef=case.kl,
        lora_rank=case.lora,
        learning_rate=RATE,
        warmup_steps=0,
        schedule="constant",
        micro_batch_tokens=case.micro * (case.prompt + case.answer),
    )
    trainer = GRPOTrainer(config, world=EvenNumbers(prompts))
    # Loaded by the model's name, the tokenizer would take numbers apart.
    engine: Any = trainer.engine
    engine.tokenizer = make_tokenizer(SHAPES[case.shape].vocab_size)
    assert engine.encode_prompt(trainer.world.tasks("train")[0].prompt) == prompts[0]
    trainer.scorer.prepare()
    generate = trainer.generate_rollouts

    def sample(*given: Any) -> Any:
        with clock.timed("ours sampling"):
            return generate(*given)

    vars(trainer)["generate_rollouts"] = sample

    def step() -> None:
        with clock.timed("ours"):
            metrics = trainer.step()
        assert metrics["frac_reward_zero_std"] == 0
        if case.device == "cpu":  # what is fast must also be right
            assert abs(metrics["ratio_max"] - 1) < 1e-4, metrics["ratio_max"]

    return trainer, step


def make_trl(
    case: Case, folder: Path, prompts: list[list[int]], clock: Clock, rounds: int, between: Callable[[], object]
) -> Any:
    """TRL's trainer; after each of its steps comes `between`."""
    trl, datasets, peft = import_module("trl"), import_module("datasets"), import_module("peft")

    class InTurn(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.since = clock.read()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.add("TRL", self.since)
            between()

    settings = trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=case.micro,
        gradient_accumulation_steps=case.rows // case.micro,
        num_generations=case.group,
        max_completion_length=case.answer,
        max_steps=rounds,
        beta=case.kl,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        gradient_checkpointing=False,
        bf16=case.device != "cpu",
        use_cpu=case.device == "cpu",
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        # Weights that learn are in float32, by autocast used in bfloat16; those under an adapter need not be.
        model_init_kwargs={"dtype": "bfloat16" if case.lora and case.device != "cpu" else "float32"},
    )
    adapter = peft.LoraConfig(task_type="CAUSAL_LM", r=case.lora, lora_alpha=32, target_modules="all-linear")
    trainer = trl.GRPOTrainer(
        model=str(folder),
        args=settings,
        reward_funcs=lambda completion_ids, **_: [share_of_even(answer) for answer in completion_ids],
        train_dataset=datasets.Dataset.from_dict({"prompt": [" ".join(map(str, p)) for p in prompts]}),
        processing_class=make_tokenizer(SHAPES[case.shape].vocab_size),
        peft_config=adapter if case.lora else None,
        callbacks=[InTurn()],
    )
    generate = trainer._generate_single_turn

    def sample(*given: Any, **named: Any) -> Any:
        with clock.timed("TRL sampling"):
            return generate(*given, **named)

    trainer._generate_single_turn = sample
    return trainer


def measure(case: Case, rounds: int, with_trl: bool) -> dict[str, dict[str, float]]:
    """The best step of each, in seconds; one step of each comes first and does not count."""
    clock = Clock(case.device)
    prompts = random_prompts(case.prompts, case.prompt, SHAPES[case.shape].vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), random_model(SHAPES[case.shape], case.ending, case.device))
        trainer, step = make_ours(case, Path(folder), prompts, clock)
        with trainer.scorer:
            if with_trl:
                try:
                    make_trl(case, Path(folder), prompts, clock, rounds + 1, step).train()
                except Exception as error:  # where it runs out of memory, ours is measured all the same
                    print(f"TRL failed: {type(error).__name__}: {str(error)[:200]}", flush=True)
                    if not isinstance(error, torch.OutOfMemoryError):
                        traceback.print_exc()
            while len(clock.wall["ours"]) < rounds + 1:
                step()
    return clock.best(rounds)


def report(case: Case, found: dict[str, dict[str, float]]) -> None:
    """A line: seconds and ratios, whole and of sampling alone."""
    ours, theirs = found["ours"], found.get("TRL")
    tokens = case.rows * case.answer
    told = f"{case!s:44} ours {ours['wall_s']:7.3f} s (sampling {found['ours sampling']['wall_s']:7.3f})"
    if theirs:
        pairs = ((theirs, ours), (found["TRL sampling"], found["ours sampling"]))
        whole, sampling = (f"{a['wall_s'] / b['wall_s']:5.2f}x" for a, b in pairs)
        told += f"  TRL {theirs['wall_s']:7.3f} s (sampling {found['TRL sampling']['wall_s']:7.3f})"
        told += f"  step {whole}  sampling {sampling}"
        if case.device == "cpu":
            told += "  by processor time" + "".join(f" {a['cpu_s'] / b['cpu_s']:5.2f}x" for a, b in pairs)
    if not case.ending:
        told += f"  {tokens / found['ours sampling']['wall_s']:,.0f} tok/s"
    print(told, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--shapes", nargs="+", default=["0.3M", "1M", "4M"], choices=list(SHAPES))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, nargs="+", default=[8])
    parser.add_argument("--prompt", type=int, default=8, help="tokens")
    parser.add_argument("--answer", type=int, default=64, help="tokens")
    parser.add_argument("--ending", type=float, default=0.0, help="probability of the end token")
    parser.add_argument("--kl", type=float, default=0.0)
    parser.add_argument("--lora", type=int, default=0, help="rank; 0: all weights learn")
    parser.add_argument("--micro", type=int, default=0, help="rows a micro-batch; 0: the whole step")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="the best counts")
    parser.add_argument("--alone", action="store_true", help="without TRL")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    logging.getLogger("trl").setLevel(logging.ERROR)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    with suppress(PackageNotFoundError):
        versions["trl"] = version("trl")
    print(f"{chosen.device}, {chosen.threads} threads, best of {chosen.rounds}; {versions}", flush=True)
    rows = []
    for shape in chosen.shapes:
        for group in chosen.group:
            micro = min(chosen.micro or chosen.prompts * group, chosen.prompts * group)
            sizes = (chosen.prompts, group, chosen.prompt, chosen.answer)
            case = Case(shape, *sizes, chosen.ending, chosen.kl, chosen.lora, micro, chosen.device)
            try:
                found = measure(case, chosen.rounds, not chosen.alone)
                report(case, found)
                rows.append({"case": str(case), **found})
            except Exception:  # one failure does not lose the other rows
                print(f"{case} failed", flush=True)
                traceback.print_exc()
            gc.collect()
            if chosen.device != "cpu":
                torch.cuda.empty_cache()
    if chosen.json:
        chosen.json.write_text(json.dumps({"versions": versions, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
