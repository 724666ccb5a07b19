"""Learns from a step: log-probabilities at chosen places, micro-batches, one loss, one optimizer."""

from __future__ import annotations

import importlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from coterie.engines.base import Dials, Metrics, OutOfStep
from coterie.engines.torch.masters import Masters
from coterie.engines.torch.small.transformer import Transformer
from coterie.engines.torch.transfer import to_device
from coterie.grpo.losses import EXTREMES, ratio_extremes
from coterie.grpo.objective import Objective, entropy, step_loss
from coterie.phases import phase
from coterie.rollouts import Batch, Floats, Ints, unpack_bits

LEARNER_FILE = "learner.safetensors"
Totals = defaultdict[str, float]
Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class LearnerSettings:
    """How updates are made; the objective says what they are for."""

    objective: Objective = field(default_factory=Objective)
    epochs: int = 1
    minibatch_size: int | None = None  # answers an optimizer update; None: the whole step
    micro_batch_tokens: int = 16_384  # tokens, padding included, in memory at once
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    max_bad_updates: int = 10
    optimizer: str = "adamw"  # a name in OPTIMIZERS


@dataclass(frozen=True)
class Places:
    """The log-probability and entropy at every place, 0 where nothing was chosen."""

    logprobs: Tensor  # [N, T]
    entropies: Tensor  # [N, T]


# How a batch is read: a causal policy looks back from each place, one that fills in hides what was chosen.
ScorePlaces = Callable[[Model, Batch, float], Places]
# How it is split into micro-batches of so many tokens.
SplitRows = Callable[[Batch, int], Iterator[Ints]]


@dataclass(frozen=True)
class Part:
    """Some rows of a step and, where it had to be asked, what the policy before the step thought of them."""

    batch: Batch
    old: Floats | None  # [N, T]
    is_first: bool  # of the first update, which shows how far sampler and learner are apart

    def rows(self, index: Ints) -> Part:
        batch = self.batch.rows(index)
        return Part(batch, None if self.old is None else self.old[index, : batch.tokens.shape[1]], self.is_first)


def micro_batches(lengths: Ints, max_tokens: int) -> Iterator[Ints]:
    """Rows of like length together, so that little is padding and all fits into max_tokens."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, max_tokens // int(lengths[order[start]]))
        yield order[start : start + count]
        start += count


def split_by_length(batch: Batch, max_tokens: int) -> Iterator[Ints]:
    """Micro-batches of rows that are padded to the longest of them."""
    return micro_batches(batch.lengths, max_tokens)


def score_places(model: Transformer, batch: Batch, temperature: float) -> Places:
    """The batch under the model, as it was sampled: same temperature, same support."""
    device = model.head.weight.device
    tokens = torch.from_numpy(batch.tokens).to(device)
    chosen = torch.from_numpy(batch.chosen).to(device)
    positions = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
    # Place t is predicted from place t - 1; only those places get logits.
    hidden = model(tokens[:, :-1], positions[:, :-1])[chosen[:, 1:]]  # [A, width]
    logits = model.head(hidden) / (temperature or 1.0)
    if batch.legal is not None:
        support = torch.from_numpy(unpack_bits(batch.legal, logits.shape[-1])).to(device)
        logits = logits.masked_fill(~support, -torch.inf)
    table = logits.log_softmax(-1)
    taken = table.gather(-1, tokens[chosen][:, None])[:, 0]
    blank = torch.zeros(tokens.shape, device=device)
    return Places(blank.masked_scatter(chosen, taken), blank.masked_scatter(chosen, entropy(table)))


def add(totals: Totals, more: Mapping[str, float]) -> None:
    """Add each value to the total of its name."""
    for name, value in more.items():
        totals[name] += value


class Tally:
    """What the parts of an update add up to, on the device: to read there is to wait for all that it has to do."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.parts: list[Tensor] = []

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        self.names = list(metrics)
        self.parts.append(torch.stack([value.detach().float() for value in metrics.values()]))

    def read(self, norm: Tensor) -> tuple[float, list[dict[str, float]]]:
        """The gradient's norm and the metrics of every part, in one go."""
        first, *rest = torch.cat([norm.detach().float()[None], *self.parts]).tolist()
        size = len(self.names)
        return first, [
            dict(zip(self.names, rest[i : i + size], strict=True)) for i in range(0, len(rest), max(size, 1))
        ]


def make_adamw(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """AdamW as torch has it."""
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=True)


def make_adamw_8bit(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """AdamW whose moments take a byte each; by bitsandbytes, on CUDA."""
    if groups[0]["params"][0].device.type != "cuda":
        raise ValueError("optimizer = 'adamw_8bit' needs a CUDA device; write adamw, with lora_rank to save memory")
    try:
        bitsandbytes = importlib.import_module("bitsandbytes")
    except ImportError:
        raise ValueError(
            "optimizer = 'adamw_8bit' needs bitsandbytes; run: pip install bitsandbytes, or write adamw"
        ) from None
    return cast(torch.optim.Optimizer, bitsandbytes.optim.AdamW8bit(groups, lr=0.0, betas=(0.9, 0.95)))


OPTIMIZERS = {"adamw": make_adamw, "adamw_8bit": make_adamw_8bit}


class Learner(Generic[Model]):
    """A model and its optimizer."""

    def __init__(
        self,
        model: Model,
        settings: LearnerSettings,
        generator: torch.Generator,
        score: ScorePlaces[Model],
        split: SplitRows = split_by_length,
    ) -> None:
        self.model, self.settings, self.generator, self.score, self.split = model, settings, generator, score, split
        self.masters = Masters(model)
        learning = [each.master for each in self.masters.learned]
        self.optimizer = OPTIMIZERS[settings.optimizer](
            [
                {"params": [p for p in learning if p.dim() >= 2], "weight_decay": settings.weight_decay},
                {"params": [p for p in learning if p.dim() < 2], "weight_decay": 0.0},
            ]
        )
        self.bad_updates_in_a_row = 0
        self.halved = False  # whether micro-batches had to become smaller

    @torch.inference_mode()
    def logprobs(self, model: Model, batch: Batch, temperature: float) -> Floats:
        """[N, T] under this model, in micro-batches."""
        result = np.zeros(batch.tokens.shape, np.float32)
        parts = list(self.split(batch, self.settings.micro_batch_tokens))
        # The first is fetched when the last is under way, so that the device never waits.
        found = [self.score(model, batch.rows(rows), temperature).logprobs for rows in parts]
        for rows, logprobs in zip(parts, found, strict=True):
            result[rows, : logprobs.shape[1]] = logprobs.cpu().numpy()
        return result

    def update(self, batch: Batch, dials: Dials) -> Metrics:
        """Every epoch over the step, in minibatches; the metrics are means over tokens and updates."""
        objective = replace(self.settings.objective, kl_coef=dials.kl_coef, entropy_coef=dials.entropy_coef)
        minibatch_size = self.settings.minibatch_size or batch.num_rows
        # With an importance cap the old policy is the one before this step, whoever sampled. If there is only one
        # update, that is the policy itself, and asking it beforehand would be a pass for nothing.
        old = None
        if objective.importance_cap is not None and (self.settings.epochs > 1 or minibatch_size < batch.num_rows):
            old = self.logprobs(self.model, batch, dials.temperature)
        totals: Totals = defaultdict(float)
        extremes: dict[str, float] = {}
        for epoch in range(self.settings.epochs):
            for place, rows in enumerate(self._minibatches(batch.num_rows)):
                part = Part(batch.rows(rows), None if old is None else old[rows], epoch == place == 0)
                add(totals, self._learn(part, objective, dials, extremes))
        tokens, updates = max(totals.pop("tokens"), 1), totals.pop("updates")
        per_update = ("grad_norm", "loss")
        as_it_is = ("skipped_updates", "skipped_rows", "sampler_gap_mean")
        means = {
            name: value if name in as_it_is else value / (updates if name in per_update else tokens)
            for name, value in totals.items()
        }
        return means | extremes

    def _minibatches(self, num_rows: int) -> Iterator[Ints]:
        size = self.settings.minibatch_size or num_rows
        order = np.arange(num_rows)
        if size < num_rows:
            order = torch.randperm(num_rows, generator=self.generator, device=self.generator.device).cpu().numpy()
        for start in range(0, num_rows, size):
            yield order[start : start + size]

    def _learn(self, whole: Part, objective: Objective, dials: Dials, extremes: dict[str, float]) -> Metrics:
        """One optimizer update; where memory does not suffice, micro-batches are halved, once."""
        try:
            return self._learn_rows(whole, objective, dials, extremes)
        except torch.OutOfMemoryError:
            if self.halved:
                raise OutOfStep(
                    f"memory does not suffice for micro-batches of {self.settings.micro_batch_tokens} tokens, with "
                    f"answers of up to {whole.batch.lengths.max()} tokens with their prompts; lower micro_batch_tokens "
                    "or max_tokens, or for a language model set gradient_checkpointing"
                ) from None
        # Out here the failed pass and all that it held are gone.
        self.halved = True
        self.settings = replace(self.settings, micro_batch_tokens=max(1, self.settings.micro_batch_tokens // 2))
        torch.cuda.empty_cache()
        return self._learn(whole, objective, dials, extremes)

    def _learn_rows(self, whole: Part, objective: Objective, dials: Dials, extremes: dict[str, float]) -> Metrics:
        """One optimizer update; the denominators are this update's, however it is split."""
        batch, device = whole.batch, self.generator.device
        acted = batch.chosen.any(1)  # a row in which nothing was chosen is no part of the step
        num_tokens, num_rows = float(batch.chosen.sum()), float(acted.sum())
        active = np.flatnonzero(acted & (batch.advantages != 0) if objective.only_advantages_matter else acted)
        sums: Totals = defaultdict(float, updates=1.0, skipped_rows=float(batch.num_rows - len(active)))
        add(sums, {"loss": 0.0, "tokens": 0.0})  # a step may have no row to learn from

        def tensor(array: NDArray[np.generic]) -> Tensor:
            return to_device(array, device)

        def loss_of(part: Part) -> tuple[Tensor, dict[str, Tensor]]:
            batch = part.batch
            with phase("forward"):
                places = self.score(self.model, batch, dials.temperature)
            own, sampler, chosen = places.logprobs.detach(), tensor(batch.logprobs), tensor(batch.chosen)
            corrected = objective.importance_cap is not None
            old = sampler
            if corrected:
                old = own if part.old is None else tensor(part.old)
            loss, more = step_loss(
                objective,
                places.logprobs,
                places.entropies,
                old,
                None if batch.reference is None else tensor(batch.reference),
                tensor(batch.advantages)[:, None],
                chosen,
                num_tokens,
                num_rows,
                sampler if corrected else None,
            )
            gaps = torch.where(chosen, (own - sampler).abs(), 0.0)
            gap = {"sampler_gap_mean": gaps.sum(), "sampler_gap_max": gaps.max()} if part.is_first else {}
            return cast(Tensor, loss), {**more, "loss": loss, **ratio_extremes(own, old, chosen), **gap}

        splits = self.split(batch.rows(active), self.settings.micro_batch_tokens) if len(active) else ()
        parts = [whole.rows(active[rows]) for rows in splits]
        taken, found = self._descend((loss_of(part) for part in parts), dials.learning_rate)
        add(sums, taken)
        num_learned = float(batch.chosen[active].sum())
        sums["tokens"] = num_learned
        for metrics in found:
            for name, combine in EXTREMES.items():
                extremes[name] = combine(extremes.get(name, 1.0), metrics.pop(name))
            if "sampler_gap_max" in metrics:
                extremes["sampler_gap_max"] = max(extremes.get("sampler_gap_max", 0.0), metrics.pop("sampler_gap_max"))
                metrics["sampler_gap_mean"] /= num_learned
            add(sums, metrics)
        return sums

    def imitate(self, batch: Batch, learning_rate: float) -> Metrics:
        """One supervised update: the mean negative log-likelihood of the chosen tokens."""
        num_tokens = float(batch.chosen.sum())

        def loss_of(rows: Ints) -> tuple[Tensor, dict[str, Tensor]]:
            loss = -self.score(self.model, batch.rows(rows), 1.0).logprobs.sum() / num_tokens
            return loss, {"loss": loss}

        splits = self.split(batch, self.settings.micro_batch_tokens)
        metrics, found = self._descend((loss_of(rows) for rows in splits), learning_rate)
        return {"cold_start_loss": sum(part["loss"] for part in found), **metrics}

    def _descend(
        self, losses: Iterator[tuple[Tensor, dict[str, Tensor]]], learning_rate: float
    ) -> tuple[Metrics, list[Metrics]]:
        """Accumulate the gradients of the parts' losses and step; one that is not finite is not taken."""
        self.optimizer.zero_grad(set_to_none=True)
        tally = Tally()
        for loss, metrics in losses:
            with phase("backward"):
                loss.backward()
            tally.add(metrics)
        if not tally.parts:
            return {"grad_norm": 0.0, "skipped_updates": 0}, []
        learning = [each.master for each in self.masters.learned]
        norm, found = tally.read(torch.nn.utils.clip_grad_norm_(learning, self.settings.max_grad_norm))
        if not math.isfinite(norm):
            self.bad_updates_in_a_row += 1
            if self.bad_updates_in_a_row >= self.settings.max_bad_updates:
                raise OutOfStep(f"{self.bad_updates_in_a_row} updates in a row had a gradient that is not finite")
            return {"grad_norm": 0.0, "skipped_updates": 1}, found
        self.bad_updates_in_a_row = 0
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        with phase("optimizer"):
            self.optimizer.step()
            self.masters.publish()
        return {"grad_norm": norm, "skipped_updates": 0}, found

    def save(self, file: Path) -> None:
        """All that going on needs besides the weights, the random stream included."""
        state = {f"optimizer.{name}": value for name, value in self.state().items()}
        save_file(state | {"generator": self.generator.get_state()}, file)

    def load(self, file: Path) -> None:
        """The inverse of `save`; the weights must be those of that moment already."""
        state = load_file(file)
        self.generator.set_state(state.pop("generator"))
        device = self.generator.device
        self.restore({name.removeprefix("optimizer."): value.to(device) for name, value in state.items()})

    def state(self) -> dict[str, Tensor]:
        """The optimizer's state and the masters, under the parameters' names."""
        found = {f"master.{each.name}": each.master.detach() for each in self.masters.apart}
        for each in self.masters.learned:
            for key, value in self.optimizer.state.get(each.master, {}).items():
                # In 8 bits the step is a plain number, and parameters share tables, which safetensors does not allow.
                found[f"{key}.{each.name}"] = torch.as_tensor(value).clone() if self._in_8_bits else value
        return found

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        masters = {each.name: each.master for each in self.masters.learned}
        self.optimizer.state.clear()
        self.masters.follow()
        for full_name, value in state.items():
            key, name = full_name.split(".", 1)
            if key == "master":
                masters[name].copy_(value)
                continue
            plain = self._in_8_bits and key == "step"
            self.optimizer.state[masters[name]][key] = value.item() if plain else value.clone()
        self.masters.publish()

    @property
    def _in_8_bits(self) -> bool:
        return self.settings.optimizer == "adamw_8bit"
