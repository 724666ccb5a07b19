"""A theory for people: its fields as a table, in Markdown, LaTeX, or as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from PIL import Image, ImageDraw, ImageFont

from coterie.worlds.theory.anomalies import factor_names
from coterie.worlds.theory.theory import TERMS, Term, Theory

INK, PALE = (38, 50, 64), (120, 130, 140)


def rows_of(theory: Theory) -> Iterator[tuple[str, str, str, list[str]]]:
    """(name, kind, generations, a representation or charge for each group)."""

    def cells(reps: Sequence[str], charges: Sequence[int]) -> list[str]:
        names, numbers = iter(reps), iter(charges)
        return [str(theory.charge(next(numbers))) if n == 1 else next(names) for n in theory.groups]

    for i, f in enumerate(theory.fermions, 1):
        kind = "left-handed fermion" if f.left else "right-handed fermion"
        yield f"F{i}", kind, str(f.generations), cells(f.reps, f.charges)
    for i, s in enumerate(theory.scalars, 1):
        kind = "scalar" if s.vev is None else f"scalar, VEV {s.vev:g} GeV"
        yield f"S{i}", kind, "1", cells(s.reps, s.charges)


def fields_of(theory: Theory) -> list[str]:
    """A line for each field: F1 left-handed fermion x3 (3, 2, 1/6)."""
    return [f"{name} {kind} x{count} ({', '.join(cells)})" for name, kind, count, cells in rows_of(theory)]


def say_term(term: Term) -> str:
    kinds, letter = TERMS[term.kind]
    fields = " ".join(f"{kind}{field + 1}" for kind, field in zip(kinds, term.fields, strict=True))
    return f"{term.kind} {fields} {letter}={term.parameter:g}"


def markdown_table(theory: Theory) -> str:
    """The fields, then the interactions."""
    names = factor_names(theory.groups)
    lines = [f"| field | kind | generations | {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
    lines += [f"| {name} | {kind} | {count} | {' | '.join(cells)} |" for name, kind, count, cells in rows_of(theory)]
    lines += ["", "Interactions: " + (", ".join(map(say_term, theory.terms)) or "none")]
    return "\n".join(lines) + "\n"


def latex_table(theory: Theory) -> str:
    """The same as a tabular of a paper; it needs no package."""
    groups = " & ".join(f"${_latex_group(name)}$" for name in factor_names(theory.groups))
    lines = [
        rf"\begin{{tabular}}{{ll{'c' * (1 + len(theory.groups))}}}",
        r"\hline",
        rf"Field & Kind & Generations & {groups} \\",
        r"\hline",
    ]
    for name, kind, count, cells in rows_of(theory):
        inside = " & ".join(f"${_latex_cell(cell, n)}$" for cell, n in zip(cells, theory.groups, strict=True))
        lines.append(rf"${name[0]}_{{{name[1:]}}}$ & {kind} & {count} & {inside} \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def _latex_group(name: str) -> str:
    kind, _, number = name.partition("_")
    base = "U(1)" if kind == "U1" else f"SU({kind[2:]})"
    return f"{base}_{{{number}}}" if number else base


def _latex_cell(cell: str, n: int) -> str:
    if n == 1:
        charge = Fraction(cell)
        size = abs(charge)
        shown = str(size) if size.denominator == 1 else rf"\frac{{{size.numerator}}}{{{size.denominator}}}"
        return f"-{shown}" if charge < 0 else shown
    return rf"\overline{{\mathbf{{{cell[:-3]}}}}}" if cell.endswith("bar") else rf"\mathbf{{{cell}}}"


def draw_table(theory: Theory) -> Image.Image:
    """The table as a picture."""
    rows = [("", "", "gen.", factor_names(theory.groups)), *rows_of(theory)]
    font = ImageFont.load_default(13)
    columns = [[name for name, *_ in rows], [kind for _, kind, _, _ in rows], [count for _, _, count, _ in rows]]
    columns += [[cells[i] for *_, cells in rows] for i in range(len(theory.groups))]
    widths = [max(font.getlength(text) for text in column) + 18 for column in columns]
    image = Image.new("RGB", (round(sum(widths)) + 16, 22 * len(rows) + 16), "white")
    draw = ImageDraw.Draw(image)
    x = 8.0
    for column, width in zip(columns, widths, strict=True):
        for line, text in enumerate(column):
            draw.text((x + 6, 8 + 22 * line), text, PALE if line == 0 else INK, font)
        x += width
    draw.line((8, 28, image.width - 8, 28), PALE)
    return image
