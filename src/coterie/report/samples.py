"""Texts for a person to read, as plain words and as a page with colors."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

Pieces = Sequence[tuple[str, str]]  # text, kind

STYLE = """\
body { font: 15px/1.5 ui-monospace, monospace; max-width: 60em; margin: 2em auto; padding: 0 1em; }
p { white-space: pre-wrap; margin: .2em 0 .2em 5em; text-indent: -5em; }
b { display: inline-block; width: 5em; text-indent: 0; color: gray; font-weight: normal; }
.blank { color: #b8860b; } .right { background: #c8f0c8; } .wrong { background: #f8c8c8; }
"""


def write_samples(samples: Sequence[tuple[str, Sequence[tuple[str, Pieces]]]], stem: Path) -> None:
    """(heading, [(title, pieces)]) for each sample, into stem.txt and stem.html."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    lines, page = [], [f"<!doctype html><meta charset=utf-8><title>{stem.name}</title><style>{STYLE}</style>"]
    for heading, passages in samples:
        lines.append(f"# {heading}")
        page.append(f"<h4>{html.escape(heading)}</h4>")
        for title, pieces in passages:
            lines.append(f"{title:>7}: " + "".join(text for text, _ in pieces).replace("\n", "\\n"))
            marked = "".join(f"<span class={kind}>{html.escape(text)}</span>" for text, kind in pieces)
            page.append(f"<p><b>{html.escape(title)}</b>{marked}</p>")
        lines.append("")
    stem.with_suffix(".txt").write_text("\n".join(lines), encoding="utf-8")
    stem.with_suffix(".html").write_text("\n".join(page) + "\n", encoding="utf-8")
