"""What the documents say is so."""

from __future__ import annotations

import re
from pathlib import Path

import coterie

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_readmes_example_runs(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    smaller = code.replace("steps=100", "steps=1, cold_start_steps=1, width=16, heads=2, prompts_per_step=2, workers=1")
    smaller = smaller.replace("runs/first", str(tmp_path / "first")).replace("num_tasks=100", "num_tasks=2")
    assert "cold_start_steps=1," in smaller
    assert "num_tasks=2," in smaller
    names: dict[str, object] = {}
    exec(smaller, names)
    trainer = names["trainer"]
    assert isinstance(trainer, coterie.GRPOTrainer)
    trainer.scorer.close()
    assert trainer.progress.step == 1


def test_the_readmes_tree_names_every_file() -> None:
    source = Path(coterie.__file__).parent
    for path in source.rglob("*.py"):
        shown = path.parent.name if path.parent.name == "stability" else path.name
        assert path.name == "__init__.py" or re.search(rf"^ +{shown}\b", README, re.MULTILINE), path


def test_links_between_documents_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
