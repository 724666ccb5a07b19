"""The engine for closed languages: a small transformer, trained from scratch, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from coterie.engines.base import Metrics, Sampling
from coterie.engines.torch.learner import LearnerSettings, score_places
from coterie.engines.torch.policy import TorchPolicy
from coterie.engines.torch.small.decoding import Drawn, decode
from coterie.engines.torch.small.graphs import GraphDecoder
from coterie.engines.torch.small.transformer import PolicyShape
from coterie.rollouts import Completion, Finish, Group, Task, as_groups, make_batch
from coterie.worlds.base import Example, Language, LanguageError, TabledConstraint, trace_legal


class CausalEngine(TorchPolicy):
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
        super().__init__(language, shape, settings, seed, score_places, device, offload_reference)
        self.graphs = GraphDecoder(self.model, language.end) if self.device.type == "cuda" else None

    def describe(self) -> str:
        if self.graphs is None:
            return f"{super().describe()}; answers drawn token by token"
        tabled = isinstance(self.language.constraint([]), TabledConstraint)
        masks = "in tables on it" if tabled else "from the host"
        return f"{super().describe()}; answers drawn by captured graphs (products of TF32 parts), masks {masks}"

    def sample(self, tasks: Sequence[Task], group_size: int, sampling: Sampling) -> Iterator[tuple[int, Group]]:
        language = self.language
        begun = language.encode(sampling.begin)[:-1] if sampling.begin else []
        prompts = [language.encode_prompt(task.prompt) + begun for task in tasks]
        room = language.max_tokens - len(begun)
        max_tokens = min(sampling.max_tokens or room, room)
        stream = self.stream(sampling)
        at_once = self.graphs.tasks_at_once(prompts, group_size, max_tokens) if self.graphs else len(tasks)

        def completions() -> Iterator[tuple[int, Completion]]:
            for start in range(0, len(tasks), max(at_once, 1)):
                asked = prompts[start : start + at_once]
                constraint = language.constraint([t for t in tasks[start : start + at_once] for _ in range(group_size)])
                for token in begun:
                    constraint.advance(np.full(len(asked) * group_size, token))
                if self.graphs:
                    drawn = self.graphs.decode(asked, group_size, constraint, max_tokens, sampling, stream)
                else:
                    end = language.end
                    drawn = decode(self.model, asked, group_size, constraint, end, max_tokens, sampling, stream)
                for row, answer in drawn:
                    yield start * group_size + row, self._complete(asked[row // group_size], answer, begun)

        yield from as_groups(tasks, group_size, completions())

    def _complete(self, prompt: list[int], answer: Drawn, begun: Sequence[int] = ()) -> Completion:
        start, end = len(prompt), len(prompt) + len(answer.tokens)
        tokens, chosen, logprobs = np.empty(end, np.int64), np.ones(end, np.bool_), np.zeros(end, np.float32)
        tokens[:start], tokens[start:], chosen[:start], logprobs[start:] = prompt, answer.tokens, False, answer.logprobs
        return Completion(
            tokens=tokens,
            chosen=chosen,
            logprobs=logprobs,
            legal=None if answer.support is None else answer.support.copy(),
            text=self.language.decode([*begun, *answer.tokens.tolist()]),
            finish=answer.finish,
        )

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
