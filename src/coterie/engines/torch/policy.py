"""What every torch engine has: a model, its reference, its learner, and their files."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from coterie.engines.base import Dials, Metrics, Sampling
from coterie.engines.torch.learner import LEARNER_FILE, Learner, LearnerSettings, ScorePlaces
from coterie.engines.torch.small.transformer import PolicyShape, Transformer
from coterie.rollouts import Batch, Floats
from coterie.worlds.base import Language


class TorchPolicy:
    """The part of an engine that does not depend on how answers are written; engines add sample and imitate."""

    def __init__(
        self,
        language: Language,
        shape: PolicyShape,
        settings: LearnerSettings,
        seed: int,
        score: ScorePlaces[Transformer],
        device: str = "cpu",
        offload_reference: bool = False,
    ) -> None:
        self.language, self.offload_reference = language, offload_reference
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.model = Transformer(shape)
        self.model.initialize(torch.Generator().manual_seed(seed))
        self.model.to(self.device)
        self.reference: Transformer | None = None
        self.learner = Learner(self.model, settings, self.generator, score)

    def describe(self) -> str:
        shape = self.model.shape
        million = sum(p.numel() for p in self.model.parameters()) / 1e6
        return (
            f"transformer of {million:.2f}M parameters (width {shape.width}, depth {shape.depth}, "
            f"vocabulary {shape.vocabulary}) on {self.device}, float32, {torch.get_num_threads()} threads"
        )

    def stream(self, sampling: Sampling) -> torch.Generator:
        """Where the sampling's random numbers come from."""
        if sampling.seed is None:
            return self.generator
        return torch.Generator(self.device).manual_seed(sampling.seed)

    def update(self, batch: Batch, dials: Dials) -> Metrics:
        return self.learner.update(batch, dials)

    def reference_logprobs(self, batch: Batch, temperature: float) -> Floats:
        if self.reference is None:
            self.blend_reference(0.0)
        assert self.reference is not None
        logprobs = self.learner.logprobs(self.reference.to(self.device), batch, temperature)
        if self.offload_reference:
            self.reference.to("cpu")
        return logprobs

    @torch.no_grad()
    def blend_reference(self, old_share: float) -> None:
        if self.reference is None or old_share == 0:
            self.reference = copy.deepcopy(self.model).requires_grad_(False)
        else:
            for old, new in zip(self.reference.parameters(), self.model.parameters(), strict=True):
                old.mul_(old_share).add_(new.to(old.device), alpha=1 - old_share)
        if self.offload_reference:
            self.reference.to("cpu")

    def save(self, folder: Path) -> None:
        save_file(dict(self.model.state_dict()), folder / "policy.safetensors")
        self.learner.save(folder / LEARNER_FILE)
        if self.reference is not None:
            save_file(dict(self.reference.state_dict()), folder / "reference.safetensors")
        shape = {**asdict(self.model.shape), "vocabulary_spelling": list(self.language.vocabulary)}
        (folder / "policy.json").write_text(json.dumps(shape, indent=1))

    def load(self, folder: Path) -> None:
        self.load_policy(folder)
        self.learner.load(folder / LEARNER_FILE)
        self.reference = None
        if (folder / "reference.safetensors").exists():
            self.blend_reference(0.0)
            assert self.reference is not None
            self.reference.load_state_dict(load_file(folder / "reference.safetensors"))

    def load_policy(self, folder: Path) -> None:
        # Policies saved before there were others are causal.
        saved = {"causal": True, **json.loads((folder / "policy.json").read_text())}
        mine = {**asdict(self.model.shape), "vocabulary_spelling": list(self.language.vocabulary)}
        for name, value in mine.items():
            if saved.get(name) != value:
                told = "another vocabulary" if isinstance(value, list) else f"{name} {saved.get(name)}, not {value}"
                raise ValueError(f"the policy in {folder} has {told}: its settings must be those of this run")
        self.model.load_state_dict(load_file(folder / "policy.safetensors"))
