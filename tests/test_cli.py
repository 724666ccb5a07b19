"""The command line as a person meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coterie import GRPOTrainer
from coterie.aliases import ALIASES
from coterie.cli import main
from coterie.config import ConfigError, GRPOConfig, parse_settings, read_toml, write_toml
from coterie.worlds.load import world_fields

SMALL = ["--width", "16", "--depth", "1", "--heads", "2", "--threads", "1", "--workers", "1", "--cold-start-steps", "3"]


@pytest.fixture(scope="module")
def run(sums_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    assert (
        main(
            ["train", str(sums_file), "--steps", "3", "--prompts_per_step=4", "group_size=4", "--out", str(out), *SMALL]
        )
        == 0
    )
    return out


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one sentence a mistake is answered with."""
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("coterie: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("coterie: ").strip()


def test_mistakes_are_answered_with_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, sums_file: Path, run: Path
) -> None:
    def said(*words: str) -> str:
        return fails(capsys, *words)

    assert (
        said("train", "bricks", "--group_sizes", "4") == "there is no setting 'group_sizes'; did you mean group_size?"
    )
    assert said("train", "bricks", "--group-size", "eight").startswith("group_size = 'eight' will not do: ")
    assert said("train", "bricks", "--group-size", "0").startswith("group_size = '0' will not do: ")
    assert said("train", "bricks", "--max-bricks", "many") == "max_bricks must be a whole number, not 'many'"
    assert "max_bricks is 0; write 1 or more" in said("train", "bricks", "--max-bricks", "0")
    assert said("train", "brick") == "there is no world 'brick'; did you mean 'bricks'?"
    assert said("train") == "name a world, a TOML file or a Python file, as in: coterie train bricks"
    assert said("train", "bricks", "--steps") == "--steps needs a value"
    assert said("train", "bricks", "--width", "50").startswith("width 50 does not divide into 4 heads")
    assert said("train", "bricks", "--device", "cuda:7").startswith("device = 'cuda:7', but torch finds no GPU")
    assert said("train", "bricks", "--track", "mlflow") == "track knows tensorboard and wandb, not 'mlflow'"
    assert said("train", "bricks", "--minibatch-size", "999").startswith("minibatch_size 999 is more than a step's")
    assert said("trian", "bricks").startswith("there is no command 'trian'")
    assert said("eval", str(tmp_path)) == f"{tmp_path} is no run folder: it has no config.toml"
    assert said("eval", str(run), "--tasks", "none") == "--tasks takes a whole number from 1, not 'none'"
    assert said("eval", str(run), "--checkpoint", "step-9") == f"{run} has no checkpoint 'step-9'"
    assert said("eval", str(run), "--color", "red").startswith("coterie eval has no option --color")
    assert "already holds a run" in said("train", str(sums_file), "--out", str(run))
    assert said("sample", str(run), "--prompt", "MAKE").startswith("character 1 of the prompt, 'M'")
    assert said("score", "bricks", str(tmp_path / "none")).endswith("cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ('group_size = "eight"', "group_size = 'eight' will not do"),
        ("group_size = [1]", "group_size = [1] will not do"),
        ("learning_rate = -1.0", "learning_rate = -1.0 will not do"),
        ("gruop_size = 4", "did you mean group_size?"),
        ("[world_options]\nmax_brick = 4", "did you mean max_bricks?"),
        ("group_size = ", "is not TOML"),
        ("world = 3", "world = 3 will not do"),
    ],
)
def test_mistakes_in_a_toml_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, toml: str, told: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(toml)
    assert told in fails(capsys, "train", str(path))


def test_no_traceback_reaches_a_user(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coterie.cli", "train", "bricks", "--group_sizes", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error(run: Path) -> None:
    command = f"{sys.executable} -m coterie.cli sample {run} --num 200 | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_alias_means_a_setting() -> None:
    assert set(ALIASES.values()) <= set(GRPOConfig.model_fields)
    assert not set(ALIASES) & set(GRPOConfig.model_fields)
    config = parse_settings({"num_generations": 4, "beta": 0.1, "clip_ratio": 0.3, "max-steps": "7"}, {})
    assert (config.group_size, config.kl_coef, config.clip_low, config.clip_high, config.steps) == (4, 0.1, 0.3, 0.3, 7)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"loss_type": "dr_grpo", "max_completion_length": 64}, {"aggregation": "constant_length", "max_tokens": 64}),
        ({"loss_type": "dapo", "epsilon_high": 0.28}, {"aggregation": "token_mean", "clip_high": 0.28}),
        ({"scale_rewards": "none"}, {"advantage": "centered"}),
        ({"scale_rewards": False}, {"advantage": "centered"}),
        ({"importance_sampling_level": "sequence"}, {"loss": "gspo"}),
        ({"mask_truncated_completions": "true"}, {"overlong": "mask"}),
        ({"ref_model_mixup_alpha": 0.6, "sync_ref_model": True}, {"reference": "ema", "reference_old_share": 0.4}),
        ({"report_to": "none"}, {"track": ""}),
        ({"report_to": ["wandb", "tensorboard"]}, {"track": "wandb,tensorboard"}),
        ({"num_epochs": 3, "rollout_batch_size": 4}, {"passes": 3, "prompts_per_step": 4}),
        ({"top_k": 50}, {"top_k": 50}),
    ],
    ids=str,
)
def test_settings_of_other_trainers_are_understood(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    config = parse_settings(theirs, {})
    assert {name: getattr(config, name) for name in ours} == ours


def test_what_has_no_counterpart_says_what_to_write() -> None:
    for theirs, told in (
        ({"loss_type": "sapo"}, "write one of grpo"),
        ({"resume_from_checkpoint": "x"}, "--resume RUN"),
        ({"num_epochs": 2, "steps": 5}, "write one of them"),
    ):
        with pytest.raises(ConfigError, match=told):
            parse_settings(theirs, {})


def test_passes_are_counted_in_steps(sums_file: Path, small: dict[str, Any]) -> None:
    # 31 training tasks, 4 a step: 2 passes are 15.5 steps.
    trainer = GRPOTrainer(GRPOConfig(world=str(sums_file), passes=2, prompts_per_step=4, **small))
    assert trainer.config.steps == -(-2 * len(trainer.world.tasks("train")) // 4)


def test_a_configuration_survives_its_file(tmp_path: Path) -> None:
    config = GRPOConfig(
        world="bricks", world_options={"max_bricks": 9, "care": 0.25, "legality": "format"}, out='o "q" ü', top_p=0.9
    )
    path = tmp_path / "config.toml"
    path.write_text(write_toml(config))
    assert parse_settings(read_toml(path), world_fields("bricks")) == config


def test_help_names_every_setting_and_alias(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "bricks", "--help"]) == 0
    text = capsys.readouterr().out
    for name in (*GRPOConfig.model_fields, *world_fields("bricks")):
        assert f"--{name.replace('_', '-')}" in text
    assert all(alias in text for alias in ALIASES)
    for command in ("eval", "sample", "score", "check", "plot", "demo", "export", "explain", "tune"):
        assert main([command, "--help"]) == 0
        assert f"coterie {command}" in capsys.readouterr().out


def test_eval_sample_and_plot_use_a_run(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["eval", str(run), "--tasks", "8", "--samples", "16", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert {"pass@1", "pass@16", "reward", "rewards/near"} <= metrics.keys()
    assert main(["eval", str(run), "--tasks", "3", "--checkpoint", "best"]) == 0
    assert "pass@1" in capsys.readouterr().out
    assert main(["sample", str(run), "--prompt", "make 13", "--num", "3"]) == 0
    assert capsys.readouterr().out.count("# make 13:") == 3
    assert main(["plot", str(run)]) == 0
    assert (run / "curves.png").stat().st_size > 10_000


def test_a_resumed_run_can_be_made_longer(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(run), "--steps", "5"]) == 0
    assert "going on after step 3" in capsys.readouterr().out
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3, 4, 5]


def test_without_a_terminal_a_line_every_log_interval(
    sums_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps", "4", "--prompts-per-step", "2", *SMALL]
    assert main(["train", str(sums_file), "--log-every", "2", "--out", str(tmp_path / "a"), *options]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("train ")]
    assert [line.split()[1] for line in lines] == ["2/4", "4/4"]
    assert all(word in lines[0] for word in ("reward", "success", "loss", "kl", "tok/s", "left"))
    assert main(["train", str(sums_file), "--quiet", "--out", str(tmp_path / "b"), *options]) == 0
    assert capsys.readouterr().out == ""


def start_endless_run(world: Path, out: Path) -> subprocess.Popen[str]:
    """A run in a process of its own that has done at least one step."""
    command = [sys.executable, "-m", "coterie.cli", "train", str(world), "--steps", "100000", "--out", str(out), *SMALL]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return process


def test_interrupting_saves_and_says_how_to_go_on(sums_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start_endless_run(sums_file, out)
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"To go on: coterie train --resume {out}" in said
    assert "finishing this step and saving" in complained
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert json.loads((out / "checkpoints/last/progress.json").read_text())["step"] == last


def test_score_prints_one_object_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {
        "good.txt": "2x4 (0,0,0)\n2x4 (0,0,1)\n",
        "floating.txt": "2x4 (0,0,0)\n1x1 (9,9,3)\n",
        "wrong.txt": "2x4 (0,0,0)\n2x5 (0,0,1)\n",
        "bytes.txt": "\udcff\x00",
    }
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    assert main(["score", "bricks", *(str(tmp_path / name) for name in texts), "--json"]) == 0
    good, floating, wrong, garbage = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert list(good) == ["file", "total", "parts", "valid", "success", "note", "seconds"]
    assert (good["valid"], good["parts"]["stable"], good["parts"]["load_factor"]) == (True, 1.0, 10.0)
    assert (floating["parts"]["stable"], floating["parts"]["load_factor"]) == (0.0, 0.0)
    assert floating["note"].startswith("brick 2, 1x1 (9,9,3), floats")
    assert (wrong["valid"], wrong["note"].split(";")[0]) == (False, "line 2: there is no 2x5 brick")
    assert garbage["note"].startswith("line 1")
    assert (
        main(["score", "bricks", str(tmp_path / "good.txt"), "--prompt", "a tower 2 wide 4 deep 4 tall", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["parts"]["faithfulness"] == 0.5


def test_check_passes_a_good_world_and_names_what_is_broken(
    sums_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(sums_file)]) == 0
    assert "all is well" in capsys.readouterr().out
    broken = tmp_path / "broken.py"
    broken.write_text(sums_file.read_text().replace("total=1.0", "total=0.5"))
    assert main(["check", str(broken)]) == 1
    told = capsys.readouterr().out
    assert "BROKEN  Its examples that tell their score get it" in told
    assert "1 rules broken" in told


def test_trackers_are_fed_the_same_metrics(
    sums_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    out = tmp_path / "run"
    words = ["train", str(sums_file), "--steps", "2", "--track", "tensorboard,wandb", "--out", str(out), *SMALL]
    assert main(words) == 0
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    logged = [json.loads(line)["reward"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [event.value for event in events.Scalars("train/reward")] == pytest.approx(logged)
    [folder] = (out / "wandb").glob("offline-run-*")
    assert any(path.suffix == ".wandb" and path.stat().st_size for path in folder.iterdir())


def test_a_missing_extra_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert fails(capsys, "plot", str(run)) == "matplotlib is not installed; run: pip install 'coterie[plot]'"


def test_workers_die_with_a_killed_trainer(sums_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start_endless_run(sums_file, out)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    threads = [
        Path(f"/proc/{process.pid}/task/{thread}/children") for thread in os.listdir(f"/proc/{process.pid}/task")
    ]
    workers = {int(pid) for path in (children, *threads) for pid in path.read_text().split()}
    assert workers
    process.kill()
    process.communicate()
    time.sleep(0.5)
    assert not any(
        Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2] for pid in workers
    )
