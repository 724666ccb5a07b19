"""Reward functions that people already have run as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie import Task
from coterie.worlds.prompts.adapters import FromFile
from coterie.worlds.prompts.builtin import Reward
from coterie.worlds.prompts.reading import prompt_text
from coterie.worlds.prompts.world import PromptsWorld
from coterie.worlds.scoring import Scorer

ROOT = Path(__file__).parent.parent


def values(reward: Reward, task: Task, answers: list[str]) -> list[float | None]:
    return [verdict.value for verdict in reward.judge(task, answers)]


# As TRL's documentation has them: completions and keyword arguments, columns by name, None for what does not apply.
TRL = """
import re

def longer(completions, **kwargs):
    return [float(len(completion)) for completion in completions]

def thinks_first(completions, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(r"^<think>.*?</think><answer>.*?</answer>$", content) else 0.0 for content in contents]

def boxed(completions, ground_truth, **kwargs):
    found = [re.search(r"\\\\boxed\\{(.*?)\\}", completion) for completion in completions]
    contents = [match.group(1) if match else "" for match in found]
    return [1.0 if content == truth else 0.0 for content, truth in zip(contents, ground_truth)]

def only_math(prompts, completions, task, **kwargs):
    return [float("4" in c) if kind == "math" else None for p, c, kind in zip(prompts, completions, task)]

def by_ids(prompts, completions, completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]
"""
# As verl's documentation has them: one answer at a time; a number, or a table with a score.
VERL = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source == "gsm8k":
        return 1.0 if solution_str.split("####")[-1].strip() == ground_truth else 0.0
    return {"score": 0.5, "acc": extra_info["index"]}
"""


def test_trls_functions_run_unchanged(tmp_path: Path) -> None:
    (tmp_path / "trl.py").write_text(TRL)
    task = Task("t", "2+2?", {"prompt": "2+2?", "ground_truth": "4", "task": "math"})

    def run(name: str, task: Task, answers: list[str]) -> list[float | None]:
        return values(FromFile(f"{tmp_path}/trl.py:{name}", "trl"), task, answers)

    assert run("longer", task, ["a", "abc"]) == [1, 3]
    assert run("boxed", task, [r"\boxed{4}", r"\boxed{5}", "4"]) == [1, 0, 0]
    assert run("only_math", task, ["4", "5"]) == [1, 0]
    assert run("only_math", Task("t", "2+2?", {"task": "prose"}), ["4"]) == [None]
    chat = Task("t", prompt_text([{"role": "user", "content": "2+2?"}], ""))
    assert run("thinks_first", chat, ["<think>a</think><answer>4</answer>", "4"]) == [1, 0]
    with pytest.raises(ValueError, match="asks for completion_ids, and a world sees texts only"):
        run("by_ids", task, ["a"])


def test_verls_function_runs_unchanged(tmp_path: Path) -> None:
    (tmp_path / "verl.py").write_text(VERL)
    reward = FromFile(f"{tmp_path}/verl.py:compute_score", "verl")
    row = {"data_source": "gsm8k", "reward_model": {"style": "rule", "ground_truth": "72"}, "extra_info": {"index": 3}}
    assert values(reward, Task("t", "", row), ["so\n#### 72", "#### 71"]) == [1, 0]
    assert values(reward, Task("t", "", {**row, "data_source": "other"}), ["x"]) == [0.5]


def test_the_examples_rewards_run_in_a_world() -> None:
    file = ROOT / "examples/rewards.py"
    world = PromptsWorld(rewards=f"{file}:shows_work:1, trl:{file}:short_reward:1, verl:{file}:compute_score:2")
    [task] = [t for t in world.tasks("train") if t.tags["kind"] == "times"][:1]
    truth = str(task.spec["answer"])
    [score] = world.score(task, [f"= {truth}"])
    short = 1 - (2 + len(truth)) / 400
    assert score.parts == {"shows_work": 1.0, "short_reward": short, "compute_score": 1.0}
    assert score.total == pytest.approx((1 + short + 2) / 4)
    [plus] = [t for t in world.tasks("train") if t.tags["kind"] == "plus"][:1]
    assert "shows_work" not in world.score(plus, ["1"])[0].parts


def test_the_examples_rewards_compare_siblings_and_read_columns() -> None:
    file = ROOT / "examples/rewards.py"
    world = PromptsWorld(rewards=f"{file}:agrees:1, {file}:near:3")
    task = Task("t", "", {"answer": "7"})
    parts = [score.parts for score in world.score(task, ["7", "so 7", "it is 8", "none"])]
    assert [part["agrees"] for part in parts] == [0.5, 0.5, 0.25, 0.0]
    assert [part["near"] for part in parts] == [1.0, 1.0, 0.5, 0.0]
    assert world.compares_siblings


@pytest.mark.parametrize(
    ("body", "told"),
    [("return [float('nan')]", "gave nan"), ("return ['good']", "no number"), ("return []", "gave 0 rewards for 1")],
)
def test_nonsense_from_a_function_is_the_worlds_failure_and_told(tmp_path: Path, body: str, told: str) -> None:
    (tmp_path / "mine.py").write_text(f"def f(task, answers): {body}")
    world = PromptsWorld(rewards=f"{tmp_path}/mine.py:f")
    with Scorer(world, 1, 20.0) as scorer:
        [score] = scorer.score(world.tasks("train")[0], ["a"])
    assert score.fault == "raised"
    assert told in score.note
