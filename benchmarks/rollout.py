"""Sampling alone: ours, transformers' generate, and vLLM where it is installed, on the same random Qwen2 models.

    OMP_NUM_THREADS=1 python benchmarks/rollout.py --shapes 0.3M 1M 4M --prompt 8 --answer 64
    OMP_NUM_THREADS=1 python benchmarks/rollout.py --shapes 4M --prompt 8 --answer 128 --group 64 --ending 0.04
    python benchmarks/rollout.py --device cuda --shapes 0.5B 1.5B 7B --group 8 64
    python benchmarks/rollout.py --device cuda --shapes 0.5B --group 64 --answer 1024 --ragged 16
    python benchmarks/rollout.py --device cuda --shapes 0.5B 7B --group 1 2 4 --answer 64 --samplers ours library
    COTERIE_CACHE=… python benchmarks/rollout.py --check 64 128

All return log-probabilities, except generate, which then gives none; each row says how far from the floor it is:
the time that the bytes or the operations of a token take at the speeds that were measured on an H200.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from shapes import END, SHAPES, Shape, random_model, random_prompts, save_model

from coterie.engines.base import Sampling
from coterie.engines.torch.attention import NAME
from coterie.engines.torch.decoder.decoder import Decoder
from coterie.engines.torch.decoder.writing import decode
from coterie.engines.torch.pretrained import LanguageModel, smollm2_folder
from coterie.rollouts import Bools, Ints
from coterie.worlds.base import Constraint

H200_BYTES, H200_OPERATIONS = 4.3e12, 790e12  # a second, as copies and bfloat16 products reach them


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    shape: str
    prompts: int
    group: int
    prompt: int
    answer: int
    ending: float
    ragged: int  # the shortest answer, if lengths are forced; 0: they are not
    device: str
    dtype: torch.dtype

    def __str__(self) -> str:
        more = f", end {self.ending:g}" if self.ending else ""
        more += f", lengths {self.ragged} to {self.answer}" if self.ragged else ""
        return f"{self.shape} {self.prompts} x {self.group}, {self.prompt} + {self.answer}{more}"

    @property
    def lengths(self) -> Ints:
        """How long each answer is made: spread evenly, in an order that mixes groups."""
        rows = self.prompts * self.group
        if not self.ragged:
            return np.full(rows, self.answer)
        spread = np.linspace(self.ragged, self.answer, rows).round().astype(np.int64)
        return np.random.default_rng(0).permutation(spread)


class UpTo:
    """Every row ends at its own length and not before."""

    def __init__(self, lengths: Ints, vocabulary: int) -> None:
        self.lengths, self.vocabulary, self.written = lengths, vocabulary, 0

    def legal(self) -> Bools:
        allowed = np.ones((len(self.lengths), self.vocabulary), np.bool_)
        last = self.lengths <= self.written + 1
        allowed[last] = False
        allowed[:, END] = last
        return allowed

    def advance(self, tokens: Ints) -> None:
        self.written += 1

    def keep(self, rows: Ints) -> None:
        self.lengths = self.lengths[rows]


def floor_s(shape: Shape, case: Case) -> float:
    """Seconds that an H200 needs at least: each token step reads weights and cache or computes, whichever is longer."""
    size = case.dtype.itemsize
    head = shape.hidden_size * shape.vocab_size
    weights = shape.layer_weights + head
    lengths = np.sort(case.lengths)
    total = 0.0
    for place in range(int(lengths[-1])):
        rows = int((lengths > place).sum())
        # A shared prompt is read once a group, what was written since once a row.
        cached = shape.cache_width * (case.prompts * case.prompt + rows * place)
        moved, computed = size * (weights + cached), 2 * rows * weights
        total += max(moved / H200_BYTES, computed / H200_OPERATIONS)
    return total


def sync(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def make_ours(case: Case, causal: Any, prompts: list[list[int]]) -> Callable[[], int]:
    """Our sampler; the number of tokens that it drew."""
    model = LanguageModel(causal)
    model.learn(False)
    generator = torch.Generator(case.device).manual_seed(0)
    if case.device != "cpu":
        decoder = Decoder(model)

        def run_on_gpu() -> int:
            # The device alone knows the lengths: the host finds out as it would with end tokens.
            limits = case.lengths if case.ragged else None
            drawn = decoder.decode(prompts, case.group, (END,), case.answer, Sampling(), generator, limits=limits)
            return sum(len(answer.tokens) for _, answer in drawn)

        return run_on_gpu

    def run() -> int:
        constraint: Constraint | None = UpTo(case.lengths, model.vocabulary) if case.ragged else None
        drawn = decode(model, prompts, case.group, (END,), case.answer, Sampling(), generator, constraint)
        return sum(len(answer.tokens) for _, answer in drawn)

    return run


def make_library(case: Case, causal: Any, prompts: list[list[int]]) -> Callable[[], int]:
    """Our sampler on a GPU, with the library's products however few the rows are."""
    kernels = import_module("coterie.engines.torch.decoder.kernels")
    ours = make_ours(case, causal, prompts)

    def run() -> int:
        with mock.patch.object(kernels, "fits", return_value=False):
            return ours()

    return run


def make_generate(case: Case, causal: Any, prompts: list[list[int]]) -> Callable[[], int]:
    """transformers' own, with its growing cache; rows that are done go on until the last one is."""
    given = torch.tensor(prompts, device=case.device).repeat_interleave(case.group, 0)
    last = torch.tensor(case.lengths, device=case.device)

    class AtLength(transformers.LogitsProcessor):  # type: ignore[misc]
        def __call__(self, tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            ends = last <= tokens.shape[1] - case.prompt + 1
            scores = scores.masked_fill(ends[:, None], -torch.inf)
            scores[:, END] = torch.where(ends, 0.0, -torch.inf)
            return scores

    def run() -> int:
        with torch.no_grad():
            found = causal.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=case.answer,
                do_sample=True,
                top_k=0,
                pad_token_id=END,
                logits_processor=[AtLength()] if case.ragged else [],
            )[:, case.prompt :]
        return int(((found == END).cumsum(-1) - (found == END).long() == 0).sum())

    return run


def make_vllm(case: Case, causal: Any, prompts: list[list[int]]) -> Callable[[], int]:
    """vLLM with the log-probability of each token, as GRPO needs it; it holds its own copy of the weights."""
    vllm = import_module("vllm")
    dtype = str(case.dtype).removeprefix("torch.")
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), causal)
        model = vllm.LLM(model=folder, dtype=dtype, gpu_memory_utilization=0.4, seed=0)
    per_row = [
        vllm.SamplingParams(max_tokens=int(length), temperature=1.0, logprobs=0, ignore_eos=bool(case.ragged))
        for length in case.lengths
    ]
    given = [{"prompt_token_ids": prompt} for prompt in prompts for _ in range(case.group)]

    def run() -> int:
        found = model.generate(given, per_row, use_tqdm=False)
        return sum(len(each.outputs[0].token_ids) for each in found)

    return run


MAKERS = {"ours": make_ours, "library": make_library, "generate": make_generate, "vllm": make_vllm}


def time_round(run: Callable[[], int], device: str) -> dict[str, float]:
    """Tokens a second, by the wall and by processor time."""
    sync(device)
    since = time.perf_counter(), time.process_time()
    tokens = run()
    sync(device)
    wall, cpu = time.perf_counter() - since[0], time.process_time() - since[1]
    return {"tokens": float(tokens), "tokens_a_s": tokens / wall, "tokens_a_cpu_s": tokens / cpu}


def measure(case: Case, samplers: list[str], rounds: int) -> dict[str, Any]:
    """The best round of each, all in turn after one that warms up; who fails is told, and the others go on."""
    shape = SHAPES[case.shape]
    prompts = random_prompts(case.prompts, case.prompt, shape.vocab_size)
    causal = random_model(shape, case.ending, case.device, case.dtype)
    found: dict[str, Any] = {"floor_tokens_a_s": float(case.lengths.sum()) / floor_s(shape, case)}
    runs: dict[str, Callable[[], int]] = {}
    for turn in range(rounds + 1):
        for name in samplers if turn == 0 else list(runs):
            try:
                if turn == 0:
                    runs[name] = MAKERS[name](case, causal, prompts)
                causal.set_attn_implementation("sdpa" if name == "generate" else NAME)
                figures = time_round(runs[name], case.device)
                if turn > 0:
                    best = found.get(name, figures)
                    found[name] = {key: max(value, best[key]) for key, value in figures.items()}
            except Exception:
                runs.pop(name, None)
                print(f"{name} failed on {case}", flush=True)
                traceback.print_exc()
            gc.collect()
    return found


def report(case: Case, found: dict[str, Any]) -> None:
    """A line: tokens a second, ratios, and on a GPU the distance to the floor."""
    told = f"{case!s:40}"
    ours = found.get("ours")
    for name, figures in found.items():
        if name == "floor_tokens_a_s":
            continue
        told += f"  {name} {figures['tokens_a_s']:>9,.0f} tok/s"
        if ours and name != "ours":
            told += f" (ours {ours['tokens_a_s'] / figures['tokens_a_s']:.2f}x"
            cpu = ours["tokens_a_cpu_s"] / figures["tokens_a_cpu_s"]
            told += f", by processor time {cpu:.2f}x)" if case.device == "cpu" else ")"
    if ours and case.device != "cpu":
        floor = found["floor_tokens_a_s"]
        told += f"  floor {floor:,.0f}, {floor / ours['tokens_a_s']:.1f}x away"
    print(told, flush=True)


def check(num_prompts: int, num_tokens: int, device: str) -> None:
    """SmolLM2 with its real weights, greedily, in float32: every token must be the one that generate finds."""
    source = smollm2_folder()
    causal = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).to(device).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    asked = [f"Tell me {what} about the number {i}." for i, what in enumerate(["a story", "a fact"] * num_prompts)]
    chats = [[{"role": "user", "content": text}] for text in asked[:num_prompts]]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    end = tokenizer.eos_token_id
    causal.generation_config.eos_token_id = end
    causal.set_attn_implementation("sdpa")
    longest = max(map(len, prompts))
    given = torch.tensor([[end] * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
    real = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    whole = causal.generate(given, attention_mask=real, max_new_tokens=num_tokens, do_sample=False, pad_token_id=end)[
        :, longest:
    ]
    theirs = [[*row[: row.index(end)], end] if end in row else row for row in whole.tolist()]
    model = LanguageModel(causal)
    stream = torch.Generator(device)
    draw = partial(decode, model) if device == "cpu" else Decoder(model).decode
    ours = dict(draw(prompts, 1, (end,), num_tokens, Sampling(temperature=0), stream))
    same = sum(ours[row].tokens.tolist() == theirs[row] for row in range(num_prompts))
    print(f"{same} of {num_prompts} answers of up to {num_tokens} tokens are generate's, token by token")
    for row in range(num_prompts):
        pairs = zip(ours[row].tokens.tolist(), theirs[row], strict=False)
        parted = [place for place, (a, b) in enumerate(pairs) if a != b]
        if parted:
            print(f"  answer {row} parts at token {parted[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--shapes", nargs="+", default=["0.3M", "1M", "4M"], choices=list(SHAPES))
    parser.add_argument("--samplers", nargs="+", default=None, choices=list(MAKERS))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, nargs="+", default=[8])
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    parser.add_argument("--answer", type=int, default=128, help="tokens")
    parser.add_argument("--ending", type=float, default=0.0, help="probability of the end token")
    parser.add_argument("--ragged", type=int, default=0, help="force lengths from this to --answer, spread evenly")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="the best counts")
    parser.add_argument("--check", type=int, nargs=2, metavar=("PROMPTS", "TOKENS"), help="SmolLM2 against generate")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.check:
        num_prompts, num_tokens = chosen.check
        check(num_prompts, num_tokens, chosen.device)
        return
    has_vllm = importlib.util.find_spec("vllm") is not None
    samplers = chosen.samplers or ["ours", "generate", *(["vllm"] if has_vllm else [])]
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    versions |= {"vllm": version("vllm")} if has_vllm else {}
    dtype = torch.float32 if chosen.device == "cpu" else torch.bfloat16
    print(f"{chosen.device}, {dtype}, {chosen.threads} threads, best of {chosen.rounds}; {versions}", flush=True)
    rows = []
    for shape in chosen.shapes:
        for group in chosen.group:
            lengths = (chosen.prompt, chosen.answer, chosen.ending, chosen.ragged)
            case = Case(shape, chosen.prompts, group, *lengths, chosen.device, dtype)
            found = measure(case, samplers, chosen.rounds)
            report(case, found)
            rows.append({"case": str(case), **found})
            gc.collect()  # the next row needs the memory of this one
            if chosen.device != "cpu":
                torch.cuda.empty_cache()
    if chosen.json:
        chosen.json.write_text(json.dumps({"versions": versions, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
