"""A language model becomes right more often, as benchmarks/accuracy.py measures it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from small_lm import WORDS, make_model, word_tokens

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "accuracy.py"
FORMS = (
    "say {}",
    "{} please",
    "now say a {}",
    "say a word {} now",
    "please say {} now",
    "a {} word",
    "{} now",
    "now {}",
)


def test_accuracy_on_held_out_questions_rises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of random weights learns to repeat the one word that is not always there."""
    model = make_model(tmp_path / "model", word_tokens())
    rows = [{"prompt": form.format(word), "answer": word} for form in FORMS for word in WORDS[5:11]]
    (tmp_path / "words.json").write_text(json.dumps({"prompts": rows}))
    (tmp_path / "words.toml").write_text(
        f'world = "prompts"\nmodel = "{model}"\nlora_rank = 0\nlearning_rate = 3e-3\nschedule = "constant"\n'
        "prompts_per_step = 16\ngroup_size = 16\nmax_tokens = 1\nsteps = 40\neval_every = 20\neval_tasks = 12\n"
        f'eval_temperature = 0.0\ndevice = "cpu"\nthreads = 1\nworkers = 1\ndata = "{tmp_path / "words.json"}"\n'
        'heldout_share = 0.25\n[[rewards]]\nname = "repeats"\nkind = "exact"\n'
    )
    spec = importlib.util.spec_from_file_location("accuracy", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    out = tmp_path / "out"
    monkeypatch.setattr(
        sys, "argv", ["accuracy", "--config", str(tmp_path / "words.toml"), "--out", str(out), "log_every=10"]
    )
    script.main()
    points = json.loads((out / "curve.json").read_text())["points"]
    assert [point["step"] for point in points] == [0, 20, 40]
    assert points[-1]["right"] >= points[0]["right"] + 0.4
    table = (out / "table.md").read_text()
    assert table in capsys.readouterr().out and f"| {points[-1]['right']:.1%} |" in table
