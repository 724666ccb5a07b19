"""Fill-in from pretraining to GRPO, as a library and on the command line."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import GRPOConfig, GRPOTrainer
from coterie.cli import main
from coterie.config import ConfigError, parse_settings, read_toml, write_toml
from coterie.engines.torch.causal import CausalEngine
from coterie.engines.torch.fill import FillEngine
from coterie.explain import explain
from coterie.judges import examine_judge, load_judge
from coterie.runs.folder import RunFolder
from coterie.sizes import Sizes, count_parameters, memory
from coterie.worlds.load import load_world, world_fields
from test_resume import comparable, final_bytes, run_killable

SEED_NAMES = (
    "loss", "pg_loss", "kl_penalty", "mean_reward", "std_reward", "mean_advantage", "mean_kl", "mean_log_prob",
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text of its own."""
    rng = random.Random(0)
    words = ["the", "of", "a", "value", "list", "name", "class", "object", "is", "not", "in", "may", "be", "used"]
    sentences = [" ".join(rng.choices(words, k=14)) + f" {i}." for i in range(300)]
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n\n".join(sentences))
    return path


@pytest.fixture
def settings(corpus: Path, small: dict[str, Any]) -> dict[str, Any]:
    return {
        **small,
        "world": "fill",
        "prompts_per_step": 4,
        "group_size": 4,
        "cold_start_steps": 10,
        "cold_start_batch": 8,
        "judge_steps": 6,
        "judge_batch": 8,
        "world_options": {"corpus": str(corpus), "block_size": 32},
    }


def as_options(settings: dict[str, Any]) -> list[str]:
    flat = {**settings, **settings["world_options"]}
    return [f"--{name}={value}" for name, value in flat.items() if name not in ("world", "world_options")]


def test_one_trainer_does_all_three_steps_and_logs_the_seeds_names(settings: dict[str, Any], tmp_path: Path) -> None:
    said: list[str] = []
    out = tmp_path / "run"
    config = GRPOConfig(**settings, steps=2, kl_coef=0.1, sample_every=2, out=str(out), temperature=0.8, top_p=0.95)
    trainer = GRPOTrainer(config, say=said.append)
    assert isinstance(trainer.engine, FillEngine)
    with trainer.scorer:
        metrics = trainer.train()
    assert trainer.progress.cold_step == 10 and trainer.progress.step == 2
    assert said[0].startswith("judge on ") and " AUC 0." in said[0] and len(said) >= 6
    assert all(np.isfinite(metrics[name]) for name in SEED_NAMES)
    assert metrics["mean_reward"] == metrics["reward"] == metrics["rewards/judge"]
    assert metrics["kl_penalty"] == pytest.approx(0.1 * metrics["kl"])
    assert {"rewards/independent", "rewards/ngram", "rewards/match"} <= metrics.keys()
    assert metrics["mean_advantage"] == pytest.approx(0, abs=1e-6)
    first = trainer.run.metrics()[0]  # type: ignore[union-attr]
    assert abs(first["kl"]) < 1e-9 and first["ratio_min"] == pytest.approx(1, abs=1e-5)
    page, text = ((out / "samples" / f"step-000002.{kind}").read_text() for kind in ("html", "txt"))
    assert text.count("before: ") == text.count("blanks: ") == text.count("after: ") == 3
    assert "class=blank>□<" in page and ("class=right>" in page or "class=wrong>" in page)
    report = json.loads((out / "judge" / "report.json").read_text())
    assert 0 <= report["auc"] <= 1 and len(report["bins"]) == 5


def test_without_a_judge_the_worlds_own_verdict_counts(settings: dict[str, Any]) -> None:
    trainer = GRPOTrainer(GRPOConfig(**settings, steps=1, judge="none"))
    with trainer.scorer:
        metrics = trainer.train()
    assert "rewards/judge" not in metrics
    assert metrics["reward"] == pytest.approx((metrics["rewards/ngram"] + metrics["rewards/match"]) / 2)


def test_a_causal_policy_can_fill_in_too(settings: dict[str, Any]) -> None:
    trainer = GRPOTrainer(GRPOConfig(**settings, steps=1, policy="causal", fill_passes=1))
    assert isinstance(trainer.engine, CausalEngine)
    with trainer.scorer:
        metrics = trainer.train()
    assert metrics["valid"] == 1.0 and "rewards/judge" not in metrics
    with pytest.raises(ConfigError, match="needs a policy that fills in"):
        GRPOTrainer(GRPOConfig(**settings, policy="causal", judge="new")).scorer.prepare()


def test_the_three_steps_as_commands(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = as_options(settings)
    generator, judge, out = (str(tmp_path / name) for name in ("generator", "judge", "out"))
    assert main(["pretrain", "fill", *options, "--out", generator]) == 0
    assert json.loads((tmp_path / "generator/training_stats.json").read_text())["cold_step"] == 10
    assert main(["eval", generator, "--tasks", "4", "--fill-passes", "3", "--json"]) == 0  # by the world's own verdict
    assert "rewards/judge" not in json.loads(capsys.readouterr().out.splitlines()[-1])
    assert main(["train-judge", "fill", *options, f"--generator_checkpoint={generator}", "--out", judge]) == 0
    assert {p.name for p in (tmp_path / "judge").iterdir()} == {
        "judge.safetensors", "judge.json", "report.json", "manifest.json",
    }  # fmt: skip
    told = capsys.readouterr().out
    assert "judge 6/6" in told and "AUC" in told and "cold start" not in told
    seeds = [f"--generator_checkpoint={generator}", f"--judge_checkpoint={judge}", "--kl_beta=0.2", "--temperature=0.7"]
    seeds += ["--group_size=6", "--max_iters=2", f"--out_dir={out}", "--save_interval=1", "--wandb_log=False"]
    assert main(["train", "fill", *options, *seeds, "--sample_interval=1"]) == 0
    told = capsys.readouterr().out
    assert "cold start" not in told and "judge 6/6" not in told and "AUC" in told
    assert "step 1, heldout-" in told and "before: " in told and "blanks: " in told and "after: " in told
    config = read_toml(tmp_path / "out/config.toml")
    assert (config["kl_coef"], config["temperature"], config["group_size"]) == (0.2, 0.7, 6)
    assert (config["steps"], config["save_every"], config["cold_start_steps"]) == (2, 1, 0)
    metrics = RunFolder.open(tmp_path / "out").metrics()
    assert [m["step"] for m in metrics] == [1, 2] and abs(metrics[0]["kl"]) < 1e-9
    assert main(["eval", out, "--tasks", "8", "--json"]) == 0
    assert "rewards/judge" in json.loads(capsys.readouterr().out)
    assert main(["sample", out, "--prompt", "the va□ue", "--num", "2"]) == 0
    assert capsys.readouterr().out.count("# the va□ue: ") == 2
    assert main(["train-judge", "fill", *options, "--out", judge]) == 2
    assert "is already there; choose another --out" in capsys.readouterr().err


def test_pretraining_works_in_any_world(sums_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--width=16", "--depth=1", "--heads=2", "--threads=1", "--cold-start-steps=5"]
    assert main(["pretrain", str(sums_file), *small, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    start = [f"--generator_checkpoint={tmp_path / 'run'}", "--batch_size=2", "--out", str(tmp_path / "next")]
    assert main(["train", str(sums_file), *small[:-1], "--steps=1", *start]) == 0
    assert "cold start" not in capsys.readouterr().out


def test_any_function_can_be_the_judge(settings: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def vowels(texts, tasks):\n    return [sum(c in 'aeiou' for c in t) / len(t) for t in texts]\n")
    said: list[str] = []
    trainer = GRPOTrainer(GRPOConfig(**settings, steps=1, judge=f"{path}:vowels"), say=said.append)
    with trainer.scorer:
        rollouts = trainer.generate_rollouts(trainer.world.tasks("train")[:2])
        [[score, *_], _] = trainer.compute_rewards(rollouts)
    text = rollouts[0].answers[0]
    assert score.total == score.parts["judge"] == sum(c in "aeiou" for c in text) / len(text)
    assert said[0].startswith("judge on ")
    path.write_text("def vowels(texts, tasks):\n    return [1.0, 2.0]\n")
    with pytest.raises(ConfigError, match=r"the judge gave 2 numbers for .* texts, on .* held-out texts"):
        GRPOTrainer(GRPOConfig(**settings, judge=f"{path}:vowels")).scorer.prepare()
    for named, told in ((f"{path}:consonants", "has no function 'consonants'"), ("no.py:f", "there is no file no.py")):
        with pytest.raises(ConfigError, match=told):
            GRPOTrainer(GRPOConfig(**settings, judge=named)).scorer.prepare()
    with pytest.raises(ConfigError, match="will not do: write new, none, a folder with"):
        GRPOTrainer(GRPOConfig(**settings, judge=str(tmp_path))).scorer.prepare()


def test_a_run_stops_when_reward_and_measure_part_and_not_when_it_is_not_guarded(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "liar.py"
    # Praises whatever the other judge does not: the worse the texts match, the better the verdict.
    path.write_text(
        "def liar(texts, tasks):\n"
        "    wrong = lambda text, task: sum(a != b for a, b in zip(text, task.spec['text']))\n"
        "    return [wrong(x, t) / t.prompt.count('□') for x, t in zip(texts, tasks)]\n"
    )
    base = ["train", "fill", *as_options(settings), f"--judge={path}:liar", "--cold_start_steps=150", "--steps=40"]
    base += ["--cold_start_rate=0.01", "--learning_rate=0.01", "--warmup_steps=0", "--sample_every=0"]
    guarded = ["--guard_window=3", "--guard_tolerance=0.02", "--guard=match"]
    assert main([*base, *guarded, "--out", str(tmp_path / "guarded")]) == 0
    told = capsys.readouterr().out
    assert "Stopped after step " in told and "the independent measure fell from" in told
    steps = RunFolder.open(tmp_path / "guarded").metrics()[-1]["step"]
    assert 3 < steps < 40
    assert (tmp_path / f"guarded/checkpoints/step-{int(steps):06d}").is_dir()
    resumed = ["train", "--resume", str(tmp_path / "guarded")]
    assert main(resumed) == 0  # it has stopped, and stays so
    assert RunFolder.open(tmp_path / "guarded").metrics()[-1]["step"] == steps
    assert main([*resumed, "--guard-window", "0"]) == 0
    assert RunFolder.open(tmp_path / "guarded").metrics()[-1]["step"] == 40


def test_kills_leave_the_same_bytes_as_none(settings: dict[str, Any], tmp_path: Path) -> None:
    more: dict[str, Any] = {"steps": 24, "save_every": 3, "fill_passes": 2, "kl_coef": 0.05, "replay_capacity": 8}
    more |= {"cold_start_steps": 40, "judge_steps": 20, "eval_every": 10, "eval_tasks": 4, "sample_every": 5}
    config = GRPOConfig(**{**settings, **more})
    calm, harried = tmp_path / "calm", tmp_path / "harried"
    for path in (calm, harried):
        RunFolder.create(path, write_toml(config))
    assert run_killable(calm, "never") == 0
    for how, when in (("seconds", 0.4), ("_digest", 5), ("seconds", 0.4)):
        assert run_killable(harried, how, when) == -signal.SIGKILL
    assert run_killable(harried, "never") == 0
    assert final_bytes(harried) == final_bytes(calm)
    assert comparable(harried) == comparable(calm)
    for name in ("judge.safetensors", "report.json"):
        assert (harried / "judge" / name).read_bytes() == (calm / "judge" / name).read_bytes()


def test_a_damaged_judge_is_told(settings: dict[str, Any], tmp_path: Path) -> None:
    trainer = GRPOTrainer(GRPOConfig(**settings, steps=1, out=str(tmp_path / "run")), say=lambda _: None)
    with trainer.scorer:
        trainer.train()
        judge = load_judge(tmp_path / "run", trainer)  # the run's folder will do
        assert examine_judge(judge, trainer) is not None
        file = tmp_path / "run/judge/judge.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"!")
        with pytest.raises(ConfigError, match="is damaged: judge"):
            load_judge(tmp_path / "run/judge", trainer)


def test_the_seeds_own_names_are_understood() -> None:
    config = parse_settings(
        {"wandb_log": "True", "wandb_project": "grpo", "wandb_run_name": "mine", "dataset": "book.txt", "n_layer": 2},
        world_fields("fill"),
    )
    assert (config.track, config.track_project, config.track_name, config.depth) == ("wandb", "grpo", "mine", 2)
    assert config.world_options == {"corpus": "book.txt"}


def test_the_arithmetic_of_a_policy_that_fills_in(settings: dict[str, Any]) -> None:
    config = GRPOConfig(**settings)
    world = load_world("fill", config.world_options)
    trainer = GRPOTrainer(config, world=world)
    sizes = Sizes.of(config, world)
    assert (sizes.row_tokens, sizes.answer_tokens) == (33, 16)  # half of 32 at most, after one token that begins
    parameters = sum(p.numel() for p in trainer.engine.model.parameters())  # type: ignore[attr-defined]
    assert count_parameters(sizes.vocabulary, 16, 1, fills=True) == parameters
    assert memory(sizes, 2_048)["cache while sampling"] == 0
    assert "r = the verdict of a frozen judge (auto)" in explain(config, world)
    trainer.scorer.close()
