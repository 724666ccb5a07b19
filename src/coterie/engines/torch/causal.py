"""The engine for closed languages: a small transformer, trained from scratch, on any device."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from coterie.engines.base import Dials, Metrics, Sampling
from coterie.engines.torch.decoding import Drawn, decode
from coterie.engines.torch.learner import Learner, LearnerSettings
from coterie.engines.torch.transformer import PolicyShape, Transformer
from coterie.rollouts import Batch, Completion, Finish, Floats, Group, Task, make_batch
from coterie.worlds.base import Example, Language, LanguageError, trace_legal


class CausalEngine:
    """Samples and trains one policy in one language."""

    def __init__(
        self,
        language: Language,
        shape: PolicyShape,
        settings: LearnerSettings,
        seed: int,
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
        self.learner = Learner(self.model, settings, self.generator)

    def describe(self) -> str:
        shape = self.model.shape
        million = sum(p.numel() for p in self.model.parameters()) / 1e6
        return (
            f"transformer of {million:.2f}M parameters (width {shape.width}, depth {shape.depth}, "
            f"vocabulary {shape.vocabulary}) on {self.device}, float32, {torch.get_num_threads()} threads"
        )

    def sample(self, tasks: Sequence[Task], group_size: int, sampling: Sampling) -> Iterator[tuple[int, Group]]:
        language = self.language
        begun = language.encode(sampling.begin)[:-1] if sampling.begin else []
        prompts = [language.encode_prompt(task.prompt) + begun for task in tasks]
        constraint = language.constraint([task for task in tasks for _ in range(group_size)])
        for token in begun:
            constraint.advance(np.full(len(tasks) * group_size, token))
        room = language.max_tokens - len(begun)
        max_tokens = min(sampling.max_tokens or room, room)
        generator = self.generator
        if sampling.seed is not None:
            generator = torch.Generator(self.device).manual_seed(sampling.seed)
        waiting: dict[int, dict[int, Completion]] = {i: {} for i in range(len(tasks))}
        drawn = decode(self.model, prompts, group_size, constraint, language.end, max_tokens, sampling, generator)
        for row, answer in drawn:
            place, sibling = divmod(row, group_size)
            waiting[place][sibling] = self._complete(prompts[place], answer, begun)
            if len(waiting[place]) == group_size:
                siblings = waiting.pop(place)
                yield place, Group(tasks[place], [siblings[i] for i in range(group_size)])

    def _complete(self, prompt: list[int], answer: Drawn, begun: Sequence[int] = ()) -> Completion:
        blank = np.zeros(len(prompt), np.float32)
        return Completion(
            tokens=np.concatenate([np.array(prompt, np.int64), answer.tokens]),
            chosen=np.concatenate([blank.astype(np.bool_), np.ones(len(answer.tokens), np.bool_)]),
            logprobs=np.concatenate([blank, answer.logprobs]),
            legal=answer.support.copy(),
            text=self.language.decode([*begun, *answer.tokens.tolist()]),
            finish=answer.finish,
        )

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

    def imitate(self, examples: Sequence[Example], learning_rate: float) -> Metrics:
        """Examples that the language or its constraint refuses are left out and counted."""
        tasks, answers = [], []
        for example in examples:
            try:
                answers.append(self.language.encode(example.answer))
                tasks.append(example.task)
            except LanguageError:
                continue
        groups = []
        for task, answer, legal in zip(tasks, answers, trace_legal(self.language, tasks, answers), strict=True):
            if legal is not None:
                tokens = np.array(answer, np.int64)
                drawn = Drawn(tokens, np.zeros(len(tokens), np.float32), legal, Finish.STOP)
                groups.append(Group(task, [self._complete(self.language.encode_prompt(task.prompt), drawn)]))
        refused = {"cold_start_refused": float(len(examples) - len(groups))}
        if not groups:
            return refused
        batch = make_batch(groups, np.ones((len(groups), 1)))
        return {**self.learner.imitate(batch, learning_rate), **refused}

    def save(self, folder: Path) -> None:
        save_file(dict(self.model.state_dict()), folder / "policy.safetensors")
        state = {f"optimizer.{name}": value for name, value in self.learner.state().items()}
        state["generator"] = self.generator.get_state()
        save_file(state, folder / "learner.safetensors")
        if self.reference is not None:
            save_file(dict(self.reference.state_dict()), folder / "reference.safetensors")
        shape = {**asdict(self.model.shape), "vocabulary_spelling": list(self.language.vocabulary)}
        (folder / "policy.json").write_text(json.dumps(shape, indent=1))

    def load(self, folder: Path) -> None:
        self.load_policy(folder)
        state = load_file(folder / "learner.safetensors")
        self.generator.set_state(state.pop("generator"))
        self.learner.restore({name.removeprefix("optimizer."): value.to(self.device) for name, value in state.items()})
        self.reference = None
        if (folder / "reference.safetensors").exists():
            self.blend_reference(0.0)
            assert self.reference is not None
            self.reference.load_state_dict(load_file(folder / "reference.safetensors"))

    def load_policy(self, folder: Path) -> None:
        saved = json.loads((folder / "policy.json").read_text())
        mine = {**asdict(self.model.shape), "vocabulary_spelling": list(self.language.vocabulary)}
        for name, value in mine.items():
            if saved.get(name) != value:
                told = "another vocabulary" if isinstance(value, list) else f"{name} {saved.get(name)}, not {value}"
                raise ValueError(f"the policy in {folder} has {told}: its settings must be those of this run")
        self.model.load_state_dict(load_file(folder / "policy.safetensors"))
