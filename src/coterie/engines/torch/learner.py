"""Learns from a step: log-probabilities at chosen places, micro-batches, one loss, one optimizer."""

from __future__ import annotations

import importlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.engines.base import Dials, Metrics, OutOfStep
from coterie.engines.torch.transformer import Transformer
from coterie.grpo.losses import EXTREMES, ratio_extremes
from coterie.grpo.objective import Objective, entropy, step_loss
from coterie.phases import phase
from coterie.rollouts import Batch, Floats, Ints, unpack_bits

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


@dataclass(frozen=True)
class Part:
    """Some rows of a step and, where the sampler was not the old policy, its log-probabilities."""

    batch: Batch
    sampler: Floats | None

    def rows(self, index: Ints) -> Part:
        batch = self.batch.rows(index)
        return Part(batch, None if self.sampler is None else self.sampler[index, : batch.tokens.shape[1]])


def micro_batches(lengths: Ints, max_tokens: int) -> Iterator[Ints]:
    """Rows of like length together, so that little is padding and all fits into max_tokens."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, max_tokens // int(lengths[order[start]]))
        yield order[start : start + count]
        start += count


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
        self, model: Model, settings: LearnerSettings, generator: torch.Generator, score: ScorePlaces[Model]
    ) -> None:
        self.model, self.settings, self.generator, self.score = model, settings, generator, score
        learning = [p for p in model.parameters() if p.requires_grad]
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
        for rows in micro_batches(batch.lengths, self.settings.micro_batch_tokens):
            part = batch.rows(rows)
            result[rows, : part.tokens.shape[1]] = self.score(model, part, temperature).logprobs.cpu().numpy()
        return result

    def update(self, batch: Batch, dials: Dials) -> Metrics:
        """Every epoch over the step, in minibatches; the metrics are means over tokens and updates."""
        objective = replace(self.settings.objective, kl_coef=dials.kl_coef, entropy_coef=dials.entropy_coef)
        # With an importance cap the old policy is the one before this step, whoever sampled.
        sampler = batch.logprobs if objective.importance_cap is not None else None
        if sampler is not None:
            batch = replace(batch, logprobs=self.logprobs(self.model, batch, dials.temperature))
        totals: Totals = defaultdict(float)
        extremes: dict[str, float] = {}
        for _ in range(self.settings.epochs):
            for rows in self._minibatches(batch.num_rows):
                part = Part(batch.rows(rows), None if sampler is None else sampler[rows])
                add(totals, self._learn(part, objective, dials, extremes))
        tokens, updates = max(totals.pop("tokens"), 1), totals.pop("updates")
        per_update = ("grad_norm", "loss")
        counts = ("skipped_updates", "skipped_rows")
        means = {
            name: value if name in counts else value / (updates if name in per_update else tokens)
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
            return torch.from_numpy(array).to(device)

        def loss_of(part: Part) -> Tensor:
            batch = part.batch
            with phase("forward"):
                places = self.score(self.model, batch, dials.temperature)
            old, chosen = tensor(batch.logprobs), tensor(batch.chosen)
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
                None if part.sampler is None else tensor(part.sampler),
            )
            add(sums, {name: float(value.detach()) for name, value in more.items()})
            add(sums, {"loss": float(loss.detach()), "tokens": float(batch.chosen.sum())})
            for name, value in ratio_extremes(places.logprobs.detach(), old, chosen).items():
                extremes[name] = EXTREMES[name](extremes.get(name, 1.0), float(value))
            return cast(Tensor, loss)

        splits = micro_batches(batch.lengths[active], self.settings.micro_batch_tokens)
        parts = (whole.rows(active[rows]) for rows in splits)
        add(sums, self._descend((loss_of(part) for part in parts), dials.learning_rate))
        return sums

    def imitate(self, batch: Batch, learning_rate: float) -> Metrics:
        """One supervised update: the mean negative log-likelihood of the chosen tokens."""
        num_tokens = float(batch.chosen.sum())
        total = 0.0

        def loss_of(rows: Ints) -> Tensor:
            nonlocal total
            loss = -self.score(self.model, batch.rows(rows), 1.0).logprobs.sum() / num_tokens
            total += float(loss.detach())
            return loss

        splits = micro_batches(batch.lengths, self.settings.micro_batch_tokens)
        metrics = self._descend((loss_of(rows) for rows in splits), learning_rate)
        return {"cold_start_loss": total, **metrics}

    def _descend(self, losses: Iterator[Tensor], learning_rate: float) -> Metrics:
        """Accumulate the gradients of the parts' losses and step; one that is not finite is not taken."""
        self.optimizer.zero_grad(set_to_none=True)
        num_parts = 0
        for loss in losses:
            with phase("backward"):
                loss.backward()
            num_parts += 1
        if num_parts == 0:
            return {"grad_norm": 0.0, "skipped_updates": 0}
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm))
        if not math.isfinite(norm):
            self.bad_updates_in_a_row += 1
            if self.bad_updates_in_a_row >= self.settings.max_bad_updates:
                raise OutOfStep(f"{self.bad_updates_in_a_row} updates in a row had a gradient that is not finite")
            return {"grad_norm": 0.0, "skipped_updates": 1}
        self.bad_updates_in_a_row = 0
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        with phase("optimizer"):
            self.optimizer.step()
        return {"grad_norm": norm, "skipped_updates": 0}

    def state(self) -> dict[str, Tensor]:
        """The optimizer's state under the parameters' names."""
        found = {}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                # In 8 bits the step is a plain number, and parameters share tables, which safetensors does not allow.
                found[f"{key}.{name}"] = torch.as_tensor(value).clone() if self._in_8_bits else value
        return found

    def restore(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        parameters = dict(self.model.named_parameters())
        self.optimizer.state.clear()
        for full_name, value in state.items():
            key, name = full_name.split(".", 1)
            plain = self._in_8_bits and key == "step"
            self.optimizer.state[parameters[name]][key] = value.item() if plain else value.clone()

    @property
    def _in_8_bits(self) -> bool:
        return self.settings.optimizer == "adamw_8bit"
