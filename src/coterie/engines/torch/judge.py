"""A judge of texts: the policy's blocks, trained to tell how much of a text was replaced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from coterie.engines.base import Metrics, Specimen
from coterie.engines.torch.small.transformer import PolicyShape, Transformer
from coterie.grpo.rewards import replaced_amount
from coterie.rollouts import Task
from coterie.worlds.base import Language

# The sigmoid is stretched by this much each way, so that it reaches 0 and 1 at finite inputs.
MARGIN = 0.05
ROWS_AT_ONCE = 64


class JudgeNetwork(nn.Module):
    """Reads a text with every place in sight of every other: how much was replaced, and which places were."""

    def __init__(self, shape: PolicyShape) -> None:
        super().__init__()
        self.body = Transformer(shape)
        self.amount = nn.Linear(shape.width, 1)
        self.places = nn.Linear(shape.width, 1)

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """[N, T] -> the amount [N], and a logit for each place [N, T]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        inside = positions < lengths[:, None]
        hidden = self.body(tokens, positions.expand_as(tokens), visible=inside[:, None, None])
        text = inside & (positions > 0)  # the first token only says that a text begins
        # The share of replaced places is a mean, so the state that it is read from is one too.
        pooled = (hidden * text[..., None]).sum(1) / text.sum(1, keepdim=True).clamp(min=1)
        amount = (1 + 2 * MARGIN) * torch.sigmoid(self.amount(pooled)[:, 0]) - MARGIN
        return amount, self.places(hidden)[..., 0]


class NetworkJudge:
    """A network with its language and its files. Called, it gives 1 for what looks untouched, less for more blanks."""

    def __init__(self, language: Language, shape: PolicyShape, seed: int, device: str = "cpu") -> None:
        assert not shape.causal, "a judge sees the whole text at once"
        self.language, self.device = language, torch.device(device)
        self.network = JudgeNetwork(shape)
        self.network.body.initialize(torch.Generator().manual_seed(seed))
        with torch.no_grad():
            for head in (self.network.amount, self.network.places):
                head.weight.zero_()
                head.bias.zero_()
        self.network.to(self.device)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=0.0, betas=(0.9, 0.95), fused=True)

    def begin_from(self, policy: Transformer) -> None:
        """Start with what the generator knows of the language."""
        self.network.body.load_state_dict(policy.state_dict())

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str], tasks: Sequence[Task], /) -> list[float]:
        rows = [np.array(self.language.encode_prompt(text)) for text in texts]
        verdicts: list[float] = []
        for start in range(0, len(rows), ROWS_AT_ONCE):
            tokens, lengths = self._pad(rows[start : start + ROWS_AT_ONCE])
            verdicts += (1 - self.network(tokens, lengths)[0]).tolist()
        return verdicts

    def learn(self, specimens: Sequence[Specimen], learning_rate: float) -> Metrics:
        """Squared error of the amount; which places were replaced is asked too, as that teaches far more a text."""
        tokens, lengths = self._pad([s.tokens for s in specimens])
        replaced = torch.zeros(tokens.shape, device=self.device)
        for row, specimen in enumerate(specimens):
            replaced[row, : len(specimen.replaced)] = torch.from_numpy(specimen.replaced)
        inside = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
        inside[:, 0] = False
        target = replaced_amount(replaced.sum(1) / inside.sum(1))
        amount, logits = self.network(tokens, lengths)
        squared = F.mse_loss(amount, target)
        by_place = F.binary_cross_entropy_with_logits(logits[inside], replaced[inside])
        self.optimizer.zero_grad(set_to_none=True)
        (10 * squared + by_place).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        error, place_loss = float(squared.detach()) ** 0.5, float(by_place.detach())
        return {"judge_error": error, "judge_place_loss": place_loss, "grad_norm": float(norm)}

    def _pad(self, rows: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
        for row, ids in enumerate(rows):
            tokens[row, : len(ids)] = torch.from_numpy(ids)
        return tokens.to(self.device), lengths

    def save(self, folder: Path) -> None:
        save_file(dict(self.network.state_dict()), folder / "judge.safetensors")
        shape = {**asdict(self.network.body.shape), "vocabulary_spelling": list(self.language.vocabulary)}
        (folder / "judge.json").write_text(json.dumps(shape, indent=1))

    @classmethod
    def load(cls, folder: Path, language: Language, device: str = "cpu") -> NetworkJudge:
        """A judge of this language, frozen."""
        shape = json.loads((folder / "judge.json").read_text())
        if shape.pop("vocabulary_spelling") != list(language.vocabulary):
            raise ValueError(
                f"the judge in {folder} reads another vocabulary: its corpus and tokenizer must be this run's"
            )
        judge = cls(language, PolicyShape(**shape), 0, device)
        judge.network.load_state_dict(load_file(folder / "judge.safetensors"))
        judge.network.requires_grad_(False)
        return judge
