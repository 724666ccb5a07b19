"""How fast does a language model learn, and in how much memory?

    python benchmarks/learner.py --json learner.json      # on a GPU, about two minutes
    python benchmarks/learner.py --tiny                   # the same rows with a tiny model, on a CPU

Random weights in the shapes of Qwen2.5, made on the device; whole updates by the learner that runs use: packed rows,
forward, loss, backward, float32 masters, AdamW. Operations are those of the model alone: 6 for each weight of the
layers and token (4 where the weight does not learn), the same for the head and chosen token, nothing for what
checkpointing does again; attention's are counted apart. They are compared with 790 TFLOP/s.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from shapes import SHAPES, Shape
from torch import Tensor

from coterie.engines.base import Dials
from coterie.engines.torch.learner import Learner, LearnerSettings
from coterie.engines.torch.logprobs import head
from coterie.engines.torch.logprobs.chunks import score_in_chunks
from coterie.engines.torch.logprobs.packed_attention import PackedLayout
from coterie.engines.torch.logprobs.packing import pack, split_packed
from coterie.engines.torch.pretrained import LanguageModel
from coterie.grpo.objective import Objective
from coterie.rollouts import Batch, pack_bits

PEAK = 790e12
Row = dict[str, Any]


TINY = Shape(64, 2, 4, 2, 96, 499)


@dataclass(frozen=True)
class Case:
    """One update to be timed."""

    name: str
    model: str
    prompts: int
    siblings: int
    prompt: int  # tokens
    answer: int
    micro_batch_tokens: int = 16_384
    share: bool = True
    checkpointing: bool = False
    compiled: bool = False
    lora_rank: int = 0
    frozen: str = ""
    optimizer: str = "adamw"
    updates: int = 2
    warm_up: int = 1


class Bench:
    """Where and how large."""

    def __init__(self, tiny: bool) -> None:
        self.tiny = tiny
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def shape(self, name: str) -> Shape:
        return TINY if self.tiny else SHAPES[name]

    def model(self, case: Case, dtype: torch.dtype | None = None) -> LanguageModel:
        shape = self.shape(case.model)
        config = transformers.Qwen2Config(**asdict(shape))
        torch.manual_seed(0)
        with self.device:
            causal = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype or self.dtype)
        if case.checkpointing:
            causal.gradient_checkpointing_enable({"use_reentrant": False})
        model = LanguageModel(causal)
        if case.lora_rank:
            adapter = peft.LoraConfig(r=case.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM")
            peft.get_peft_model(causal, adapter, autocast_adapter_dtype=False)
        for name, weight in causal.named_parameters():
            if case.frozen and case.frozen in name:
                weight.requires_grad_(False)
        if case.compiled:
            model.compile_layers()
        return model

    def batch(self, case: Case, vocabulary: int, seed: int = 0) -> Batch:
        rng = np.random.default_rng(seed)
        prompt, answer = (min(n, 24) if self.tiny else n for n in (case.prompt, case.answer))
        rows, length = case.prompts * case.siblings, prompt + answer
        tokens = rng.integers(0, vocabulary, (rows, length))
        tokens[:, :prompt] = np.repeat(tokens[:: case.siblings, :prompt], case.siblings, 0)
        chosen = np.broadcast_to(np.arange(length) >= prompt, (rows, length)).copy()
        # A model of random weights takes every token for about as likely.
        logprobs = np.where(chosen, -np.log(vocabulary), 0.0).astype(np.float32)
        advantages = rng.choice([-1.0, 1.0], rows).astype(np.float32)
        return Batch(tokens, np.full(rows, length), chosen, logprobs, advantages)

    def learner(self, model: LanguageModel, case: Case) -> Learner[LanguageModel]:
        settings = LearnerSettings(
            Objective(importance_cap=2.0), micro_batch_tokens=case.micro_batch_tokens, optimizer=case.optimizer
        )
        score = partial(score_in_chunks, chunk=64 if self.tiny else 2048, share=case.share)
        split = partial(split_packed, share=case.share)
        generator = torch.Generator(self.device).manual_seed(0)
        return Learner(model, settings, generator, score, split)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def clean(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak_gb(self) -> float:
        return torch.cuda.max_memory_allocated() / 1e9 if self.device.type == "cuda" else float("nan")


def operations(bench: Bench, case: Case, batch: Batch) -> tuple[float, float, int]:
    """(of matrix products with weights, of attention, tokens) in one update; LoRA's own are left out."""
    shape = bench.shape(case.model)
    each = 4 if case.lora_rank else 6
    tokens, pairs = 0, 0.0
    for rows in split_packed(batch, case.micro_batch_tokens, case.share):
        packed = pack(batch.rows(rows), case.share)
        tokens += len(packed.tokens)
        pairs += float((packed.positions + 1).sum())
    products = each * (shape.layer_weights * tokens + shape.vocab_size * shape.hidden_size * float(batch.chosen.sum()))
    return products, 12.0 * shape.num_hidden_layers * shape.hidden_size * pairs, tokens


def time_update(bench: Bench, case: Case) -> Row:
    """Whole updates, the best of them."""
    bench.clean()
    model = bench.model(case)
    batch = bench.batch(case, model.vocabulary)
    learner = bench.learner(model, case)
    dials = Dials(learning_rate=1e-6)
    took = []
    for _ in range(case.warm_up + case.updates):
        bench.wait()
        begun = time.perf_counter()
        metrics = learner.update(batch, dials)
        bench.wait()
        took.append(time.perf_counter() - begun)
    seconds = min(took[case.warm_up :])
    assert metrics["skipped_updates"] == 0 and metrics["grad_norm"] > 0, metrics
    products, attention, tokens = operations(bench, case, batch)
    return {
        "row": case.name,
        "seconds": seconds,
        "first_s": took[0],
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "answer_tokens_per_s": float(batch.chosen.sum()) / seconds,
        "mfu": products / seconds / PEAK,
        "mfu_with_attention": (products + attention) / seconds / PEAK,
        "peak_gb": bench.peak_gb(),
        "sampler_gap_max": metrics["sampler_gap_max"],
        "checkpointing": case.checkpointing,
        "compiled": case.compiled,
        "lora_rank": case.lora_rank,
        "micro_batch_tokens": case.micro_batch_tokens,
    }


def profile_update(bench: Bench, case: Case) -> None:
    """Prints which kernels an update's time goes to."""
    bench.clean()
    model = bench.model(case)
    batch, learner = bench.batch(case, model.vocabulary), bench.learner(model, case)
    learner.update(batch, Dials(learning_rate=1e-6))
    activities = [
        torch.profiler.ProfilerActivity.CUDA if bench.device.type == "cuda" else torch.profiler.ProfilerActivity.CPU
    ]
    with torch.profiler.profile(activities=activities) as profile:
        learner.update(batch, Dials(learning_rate=1e-6))
        bench.wait()
    events = profile.key_averages()
    took = {event.key: event.self_device_time_total or event.self_cpu_time_total for event in events}
    counts = {event.key: event.count for event in events}
    for name in sorted(took, key=lambda name: -took[name])[:28]:
        print(f"   {took[name] / 1e3:8.1f} ms {counts[name]:6} x {name[:90]}")


def compare_memory(bench: Bench) -> Iterator[Row]:
    """Peak memory of log-probabilities and their gradient at 16 x 1,024 tokens, against the whole logits at once."""
    case = Case("", "0.5B", 16, 1, 8, 1016, checkpointing=True)
    rows: list[Row] = []
    for name in ("chunks", "plain"):
        bench.clean()
        model = bench.model(case)
        model.learn(True)
        batch = bench.batch(case, model.vocabulary)
        bench.clean()
        weights = bench.peak_gb()
        begun = time.perf_counter()
        if name == "chunks":
            score_in_chunks(model, batch, 1.0, 64 if bench.tiny else 2048).logprobs.sum().backward()
        else:
            plain_logprobs(model, batch).sum().backward()
        bench.wait()
        peak = bench.peak_gb()
        took = time.perf_counter() - begun
        rows.append({"row": f"memory, {name}", "seconds": took, "peak_gb": peak, "above_weights_gb": peak - weights})
    rows[0]["ratio"] = rows[1]["above_weights_gb"] / max(rows[0]["above_weights_gb"], 1e-9)
    yield from rows


def plain_logprobs(model: LanguageModel, batch: Batch) -> Tensor:
    """As everybody writes it first: all logits, in float32."""
    tokens = torch.from_numpy(batch.tokens).to(model.device)
    logits: Tensor = model.causal(tokens[:, :-1], use_cache=False).logits.float()
    found: Tensor = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return found[torch.from_numpy(batch.chosen[:, 1:]).to(model.device)]


def distance(found: Tensor, wanted: Tensor) -> float:
    """Relative, in the Euclidean norm; not a number is as far as can be."""
    found, wanted = found.detach().float(), wanted.detach().float()
    far = float((found - wanted).norm() / wanted.norm().clamp(min=1e-30))
    return far if far == far else float("inf")


def check_head(bench: Bench) -> Iterator[Row]:
    """The kernels over logits against their plain twins, in memory full of not-a-numbers."""
    for rows, size, dtype in ((37, 1_000, torch.float32), (5, 151_936, torch.float32), (130, 49_155, torch.bfloat16)):
        for narrowed in (False, True):
            for with_entropy in (False, True):
                far = head_distance(bench.device, rows, size, dtype, narrowed, with_entropy)
                limit = 1e-5 if dtype == torch.float32 else 2e-2
                name = f"head {rows}x{size} {'masks ' if narrowed else ''}{'entropy ' if with_entropy else ''}"
                yield {"row": name + str(dtype)[6:], "distance": far, "limit": limit, "fine": far < limit}


def head_distance(
    device: torch.device, rows: int, size: int, dtype: torch.dtype, narrowed: bool, with_entropy: bool
) -> float:
    """The largest relative distance of anything: log-probabilities, entropies, gradients."""
    torch.manual_seed(rows)
    width, places = 64, rows + 3
    hidden = torch.randn(places, width, device=device, dtype=dtype)
    weight = torch.randn(size, width, device=device, dtype=dtype) / 4
    sources = torch.randint(places, (rows,), device=device)
    taken = torch.randint(size, (rows,), device=device)
    legal = None
    if narrowed:
        mask = np.random.default_rng(0).random((rows, size)) < 0.3
        mask[np.arange(rows), taken.cpu().numpy()] = True
        mask[0] = np.arange(size) == int(taken[0])  # one that had no choice
        legal = torch.from_numpy(pack_bits(mask)).to(device)
    slopes = torch.randn(2, rows, device=device)
    results = []
    for kernels in (head.kernels_for(device), head.PLAIN):
        states, matrix = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        poison(device, dtype)
        logprobs, entropies = head.taken_logprobs(states, matrix, sources, taken, legal, 1 / 0.7, 32, kernels)
        loss = (logprobs * slopes[0]).sum() + ((entropies * slopes[1]).sum() if with_entropy else 0.0)
        poison(device, dtype)
        loss.backward()
        frozen = hidden.clone().requires_grad_()
        poison(device, dtype)
        once, _ = head.taken_logprobs(frozen, weight, sources, taken, legal, 1 / 0.7, 32, kernels)
        (once * slopes[0]).sum().backward()
        results.append([logprobs, entropies, states.grad, matrix.grad, frozen.grad])
    return max(distance(mine, twin) for mine, twin in zip(*results, strict=True))


def poison(device: torch.device, dtype: torch.dtype) -> None:
    """Leave not-a-numbers where the next results will be allocated."""
    if device.type == "cuda":
        kept = [torch.full((2**size,), float("nan"), device=device) for size in range(8, 26)]
        del kept


def check_attention(bench: Bench) -> Iterator[Row]:
    """Flash kernels over packed rows against scaled dot products in float32, gradients included."""
    cases = {
        "shared, ragged": ([3, 1, 5, 2], 130, 90, 64),
        "one group": ([16], 1024, 128, 128),
        "nothing shared": ([1, 1, 1], 200, 77, 64),
    }
    for name, (groups, prompt, answer, head_width) in cases.items():
        batch = ragged_batch(groups, prompt, answer)
        packed = pack(batch)
        torch.manual_seed(1)
        shapes = ((14, head_width), (2, head_width), (2, head_width))
        given = [torch.randn(1, n, len(packed.tokens), d, device=bench.device, dtype=bench.dtype) for n, d in shapes]
        weights = torch.randn(1, len(packed.tokens), 14, head_width, device=bench.device)
        results = []
        for dtype in (bench.dtype, torch.float32):
            layout = PackedLayout(packed, bench.device, dtype, head_width)
            inputs = [tensor.to(dtype, copy=True).requires_grad_() for tensor in given]
            poison(bench.device, dtype)
            mixed = layout.attend(0, inputs[0], inputs[1], inputs[2], head_width**-0.5)
            poison(bench.device, dtype)
            (mixed.float() * weights).sum().backward()
            results.append([mixed, *(tensor.grad for tensor in inputs)])
        far = max(distance(mine, twin) for mine, twin in zip(*results, strict=True))
        yield {"row": f"attention, {name}", "distance": far, "limit": 1e-2, "fine": far < 1e-2}


def ragged_batch(groups: list[int], prompt: int, answer: int, vocabulary: int = 400) -> Batch:
    """Groups of these sizes, with prompts and answers of many lengths, one of them a single token."""
    rng = np.random.default_rng(0)
    starts = [rng.integers(0, vocabulary, int(n)) for n in rng.integers(prompt // 2, prompt + 1, len(groups))]
    owners = np.repeat(np.arange(len(groups)), groups)
    ends = [rng.integers(0, vocabulary, int(n)) for n in [1, *rng.integers(2, answer + 1, len(owners) - 1)]]
    lengths = np.array([len(starts[owner]) + len(end) for owner, end in zip(owners, ends, strict=True)])
    tokens = np.zeros((len(owners), lengths.max()), np.int64)
    places = np.arange(lengths.max())
    for row, (owner, end) in enumerate(zip(owners, ends, strict=True)):
        tokens[row, : lengths[row]] = np.concatenate([starts[owner], end])
    begins = np.array([len(starts[owner]) for owner in owners])
    chosen = (places >= begins[:, None]) & (places < lengths[:, None])
    return Batch(tokens, lengths, chosen, np.zeros(tokens.shape, np.float32), np.ones(len(owners), np.float32))


def check_gradients(bench: Bench) -> Iterator[Row]:
    """A small model's gradients, prompts shared against every row for itself and against padded rows."""
    torch.backends.cuda.matmul.allow_tf32 = False
    tiny = Bench(True)
    for dtype in dict.fromkeys((torch.float32, bench.dtype)):
        batch = ragged_batch([5, 1, 7], 60, 40)
        model = tiny.model(Case("", "0.5B", 1, 1, 1, 1), dtype)
        weights = torch.linspace(-1, 1, int(batch.chosen.sum()), device=bench.device)
        chosen = torch.from_numpy(batch.chosen).to(bench.device)

        def gradients(logprobs: Tensor, model: LanguageModel = model, weights: Tensor = weights) -> Tensor:
            model.zero_grad()
            (logprobs * weights).sum().backward()
            return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

        plain = gradients(plain_logprobs(model, batch))
        limit = 1e-5 if dtype == torch.float32 else 5e-2
        for name, share in (("shared", True), ("packed", False)):
            far = distance(gradients(score_in_chunks(model, batch, 1.0, 32, share).logprobs[chosen]), plain)
            row = f"gradients, {name} against padded, {str(dtype)[6:]}"
            yield {"row": row, "distance": far, "limit": limit, "fine": far < limit}


def cases() -> dict[str, list[Case]]:
    """The rows of the table that are updates."""
    small = Case("1.5B, all weights", "1.5B", 8, 8, 128, 896)
    many = Case("1.5B, 64 siblings, 1024 + 128, shared", "1.5B", 1, 64, 1024, 128)
    long = replace(many, name="1.5B, 64 siblings, 1024 + 512, shared", answer=512)
    large = Case(
        "7B, all but embeddings, checkpointing", "7B", 4, 8, 128, 896, 8_192, checkpointing=True, frozen="embed_tokens"
    )
    adapter = Case("7B, LoRA 64", "7B", 4, 8, 128, 896, 8_192, lora_rank=64)
    largest = Case(
        "14B, LoRA 64, 64 answers of 1168, checkpointing",
        "14B", 1, 64, 512, 1168, checkpointing=True, lora_rank=64, updates=1, warm_up=0,
    )  # fmt: skip
    lean = replace(
        large, name="7B, all but embeddings, 8-bit AdamW", checkpointing=False, optimizer="adamw_8bit",
        micro_batch_tokens=4_096,
    )  # fmt: skip
    return {
        "1.5B": [small, replace(small, name=small.name + ", checkpointing", checkpointing=True)],
        "7B": [large, adapter],
        "siblings": [
            many,
            replace(many, name=many.name.replace("shared", "unshared"), share=False, updates=1),
            long,
            replace(long, name=long.name.replace("shared", "unshared"), share=False, updates=1),
        ],
        "14B": [largest],
        "compiled": [replace(small, name=small.name + ", compiled", compiled=True)],
        "plain 7B": [lean],
        "compiled 7B": [replace(each, name=each.name + ", compiled", compiled=True) for each in (lean, adapter)],
    }


class Results:
    """Rows, each printed and written as soon as it is there: whoever stops the benchmark keeps what it found."""

    def __init__(self, bench: Bench, file: Path | None) -> None:
        self.rows: list[Row] = []
        self.file = file
        self.head = {
            "device": torch.cuda.get_device_name() if bench.device.type == "cuda" else "cpu",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    def add(self, row: Row) -> None:
        speeds = {old["row"]: old["answer_tokens_per_s"] for old in self.rows if "mfu" in old}
        if "mfu" in row and (speed := speeds.get(row["row"].replace("unshared", "shared"))):
            row["shared_times_faster"] = speed / row["answer_tokens_per_s"]
        self.rows.append(row)
        print(told(row), flush=True)
        if self.file:
            self.file.write_text(json.dumps({**self.head, "rows": self.rows}, indent=1))

    @contextmanager
    def going_on(self, name: str) -> Iterator[None]:
        """One failure must not lose the rest."""
        begun = time.perf_counter()
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.add({"row": name, "failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"})
        print(f"-- {name}: {time.perf_counter() - begun:.1f} s", flush=True)


def told(row: Row) -> str:
    """A row of the table."""
    if "failed" in row:
        said = f"FAILED {row['failed']}"
    elif "distance" in row:
        said = f"{row['distance']:.1e} (limit {row['limit']:.0e}) {'' if row['fine'] else 'WRONG'}"
    elif "mfu" in row:
        said = (
            f"{row['seconds']:7.3f} s  {row['tokens_per_s']:9,.0f} tok/s  {row['answer_tokens_per_s']:9,.0f} answer "
            f"tok/s  {row['mfu']:6.1%} ({row['mfu_with_attention']:.1%} with attention)  {row['peak_gb']:6.1f} GB  "
            f"first {row['first_s']:.1f} s"
        )
        if "shared_times_faster" in row:
            said += f"  (shared: {row['shared_times_faster']:.2f} times as fast)"
    else:
        ratio = f"  plain / chunks = {row['ratio']:.1f}" if "ratio" in row else ""
        said = f"{row['peak_gb']:.2f} GB, {row['above_weights_gb']:.2f} above the weights{ratio}"
    return f"{row['row']:52} {said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model in every row")
    parser.add_argument("--only", help="with commas: checks, memory, profile, " + ", ".join(cases()))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bench = Bench(options.tiny)
    results = Results(bench, options.json)
    checks: dict[str, Callable[[Bench], Iterator[Row]]] = {"gradients": check_gradients}
    if bench.device.type == "cuda":  # elsewhere the kernels are their own twins
        checks = {"head": check_head, "attention": check_attention, **checks}
    only = options.only.split(",") if options.only else ["checks", "memory", *cases()]
    if "memory" in only and bench.device.type == "cuda":
        checks["memory"] = compare_memory
    for name, check in checks.items():
        if name == "memory" or "checks" in only:
            with results.going_on(name):
                for row in check(bench):
                    results.add(row)
    for section, several in cases().items():
        for case in several if section in only else ():
            with results.going_on(case.name):
                results.add(time_update(bench, case))
    if "profile" in only:
        with results.going_on("profile"):
            profile_update(bench, cases()["1.5B"][0])
    print(
        "wrong: "
        + (", ".join(row["row"] for row in results.rows if "failed" in row or not row.get("fine", True)) or "nothing")
    )


if __name__ == "__main__":
    main()
