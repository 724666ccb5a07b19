"""Prompts from files, and rewards by name."""

from __future__ import annotations

import json
import pickle
import sys
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import Task, load_world
from coterie.cli import main
from coterie.config import ConfigError, parse_settings, write_toml
from coterie.worlds.base import read_messages
from coterie.worlds.check import check_world
from coterie.worlds.load import WorldError, world_fields
from coterie.worlds.prompts.builtin import Diversity, Exact, Json, Length, Numeric, Regex, Repetition, Schema, Xml
from coterie.worlds.prompts.finding import FORMAT, fenced, final_answer, last_number
from coterie.worlds.prompts.gym import Gym
from coterie.worlds.prompts.mixture import Mixture, read_rewards
from coterie.worlds.prompts.reading import held_out, prompt_text, read_rows
from coterie.worlds.prompts.world import PromptsWorld
from coterie.worlds.scoring import Scorer

ROOT = Path(__file__).parent.parent
ROWS = [{"prompt": f"double {n}", "answer": str(2 * n), "size": n} for n in range(20)]


def values(reward: Any, task: Task, answers: list[str]) -> list[float | None]:
    return [verdict.value for verdict in reward.judge(task, answers)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows in the format that the name says."""
    if path.suffix == ".json":
        path.write_text(json.dumps({"prompts": rows}))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def doubles(tmp_path: Path) -> Path:
    return write(tmp_path / "doubles.jsonl", ROWS)


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv", "parquet"])
def test_all_formats_give_the_same_tasks(tmp_path: Path, ending: str) -> None:
    world = PromptsWorld(data=str(write(tmp_path / f"doubles.{ending}", ROWS)))
    tasks = {task.id: task for split in ("train", "heldout") for task in world.tasks(split)}
    assert len(tasks) == 20
    assert tasks["doubles-4"].prompt == "double 3"
    assert tasks["doubles-4"].tags == {"size": 3}
    assert [score.success for score in world.score(tasks["doubles-4"], ["It is 6", "It is 7"])] == [True, False]


def test_a_plain_list_of_prompts_will_do(tmp_path: Path) -> None:
    path = tmp_path / "plain.json"
    path.write_text('{"prompts": ["Say yes", "Say no"]}')
    assert [row["prompt"] for row in read_rows(path, "prompt")] == ["Say yes", "Say no"]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.json", "{", "is not JSON"),
        ("a.json", '{"questions": []}', 'write {"prompts": [...]}'),
        ("a.json", '{"prompts": []}', "holds no prompts"),
        ("a.jsonl", '{"prompt": "a"}\n{"question": "b"}', "row 2: there is no column 'prompt'; set prompt_column to"),
        ("a.jsonl", '{"prompt": "a"}\nnonsense', "line 2 is not JSON"),
        ("a.jsonl", '{"prompt": [{"role": "king", "content": "a"}]}', "row 1: prompt must be a text or a list"),
        ("a.csv", "prompt,answer\na\n", "another number of fields"),
        ("a.txt", "hello", "does not say its format"),
    ],
)
def test_a_bad_file_is_answered_with_where_and_why(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(WorldError) as refusal:
        load_world("prompts", {"data": str(tmp_path / name)})
    assert told in str(refusal.value)


def test_the_splits_share_no_prompt_and_stay_the_same() -> None:
    prompts = [f"p{n % 50}" for n in range(200)]
    apart = held_out(prompts, 0.1)
    assert len(apart) == 5
    assert apart == held_out(list(reversed(prompts)), 0.1)
    assert len(held_out(["a", "b"], 0.001)) == len(held_out(["a", "b"], 0.999)) == 1


def test_a_file_of_its_own_may_be_held_out(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.jsonl", ROWS[:15]), write(tmp_path / "b.jsonl", ROWS[15:])
    world = PromptsWorld(data=str(first), heldout_data=str(second))
    assert (len(world.tasks("train")), len(world.tasks("heldout"))) == (15, 5)
    with pytest.raises(ValueError, match=r"15 prompts of .* are in .* as well"):
        PromptsWorld(data=str(first), heldout_data=str(first))


def test_what_looks_like_a_number_stays_what_was_written(tmp_path: Path) -> None:
    rows = [{"prompt": "007", "answer": "1.50", "level": "2"}, {"prompt": "8", "answer": "x", "level": "3"}]
    world = PromptsWorld(data=str(write(tmp_path / "a.csv", rows)), rewards="exact")
    tasks = {t.prompt: t for s in ("train", "heldout") for t in world.tasks(s)}
    assert tasks["007"].tags == {"level": 2.0}
    assert [s.total for s in world.score(tasks["007"], ["1.50", "1.5"])] == [1, 0]


def test_messages_come_through_as_json(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "2+2?"}]
    assert read_messages(prompt_text(messages, "")) == messages
    assert read_messages(prompt_text("2+2?", "Be brief.")) == [{"role": "system", "content": "Be brief."}, *messages]
    assert prompt_text("2+2?", "") == "2+2?"
    assert read_messages("[{ not messages") is None
    path = write(tmp_path / "chat.jsonl", [{"prompt": messages, "answer": "4"}, {"prompt": "3+3?", "answer": "6"}])
    prompts = {t.prompt for s in ("train", "heldout") for t in PromptsWorld(data=str(path)).tasks(s)}
    assert prompts == {json.dumps(messages), "3+3?"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<answer>1</answer> no: <answer> 2 </answer>", "2"),
        (r"so \boxed{x+1}", "x+1"),
        ("work\n#### 72", "72"),
        (" plain ", "plain"),
    ],
)
def test_the_final_answer_is_the_last_one_marked(text: str, found: str) -> None:
    assert final_answer(text) == found


def test_the_final_answer_may_be_found_by_a_pattern() -> None:
    assert final_answer("A: 1, A: 2", r"A: (\d)") == "2"
    assert final_answer("none", r"A: (\d)") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7 + 5 = 12", Fraction(12)),
        ("1,234.5 kg", Fraction(2469, 2)),
        ("it is -3", Fraction(-3)),
        ("12-5", Fraction(5)),
        ("3/4", Fraction(3, 4)),
        ("1/0", None),
        ("2e3", Fraction(2000)),
        ("9" * 5000, None),
        ("none", None),
    ],
)
def test_the_last_number_is_read(text: str, number: Fraction | None) -> None:
    assert last_number(text) == number


@settings(deadline=None)
@given(st.text())
def test_whatever_is_written_can_be_judged(text: str) -> None:
    task = Task("t", "", {"answer": "12", "schema": {"type": "object"}})
    for reward in (Exact(), Numeric(), Regex(), Json(), Schema(), Xml(), Length(), Repetition()):
        [value] = values(reward, task, [text])
        assert value is not None and 0 <= value <= 1


def test_exact_takes_any_of_a_list_and_minds_case_unless_told() -> None:
    task = Task("t", "", {"answer": ["Paris", "the  city of Paris"]})
    answers = ["Paris", "<answer>the city of\nParis</answer>", "paris", "Rome"]
    assert values(Exact(), task, answers) == [1, 1, 0, 0]
    assert values(Exact(ignore_case=True), task, answers) == [1, 1, 1, 0]


def test_numbers_are_compared_as_numbers() -> None:
    task = Task("t", "", {"answer": "blah #### 1,200"})
    assert values(Numeric(), task, ["1200.0", "1,200", "It is 12 hundred", "1201"]) == [1, 1, 0, 0]
    assert values(Numeric(tolerance=0.01), task, ["1201"]) == [1]
    assert values(Numeric(), Task("t", "", {"answer": "no number"}), ["1"]) == [None]


def test_the_format_asks_for_one_answer_at_the_end() -> None:
    answers = ["I think. <answer>4</answer>", "<answer>4</answer> or so", "<answer></answer>", "4"]
    assert values(Regex(FORMAT), Task("t", ""), answers) == [1, 0, 0, 0]


def test_json_and_its_schema() -> None:
    answers = ['{"n": 1}', 'Here:\n```json\n{"n": "x"}\n```', "{n: 1}", "[NaN]", "[" * 100_000]
    assert values(Json(), Task("t", ""), answers) == [1, 1, 0, 0, 0]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    verdicts = Schema(schema=schema).judge(Task("t", ""), answers)
    assert [verdict.value for verdict in verdicts] == [1, 0, 0, 0, 0]
    assert verdicts[1].note == "at $.n: 'x' is not of type 'integer'"
    assert values(Schema(), Task("t", "", {"schema": json.dumps(schema)}), answers[:2]) == [1, 0]
    assert values(Schema(), Task("t", ""), answers[:1]) == [None]


def test_xml_takes_elements_and_no_declarations() -> None:
    answers = [
        "<think>a</think><answer>b</answer>",
        "<answer>b</answer>",
        "<a>",
        "text",
        "<!DOCTYPE a [<!ENTITY b 'c'>]>",
    ]
    assert values(Xml(), Task("t", ""), answers) == [1, 1, 0, 0, 0]
    assert values(Xml(tags=["think", "answer"]), Task("t", ""), answers[:2]) == [1, 0]


def test_length_repetition_and_diversity_by_hand() -> None:
    task = Task("t", "")
    assert values(Length(least=2, most=4), task, ["a", "a b", "a b c d", "a b c d e", "a " * 8]) == [0.5, 1, 1, 0.75, 0]
    # "a b a b a" has the pairs ab ba ab ba: two of four are new.
    assert values(Repetition(words=2), task, ["a b a b a", "a b c", "a", ""]) == [0.5, 1, 1, 0]
    # Pairs {ab bc} {ab bc} {ab bd}: overlaps 1 and 1/3, 1 and 1/3, 1/3 twice.
    given = values(Diversity(), task, ["a b c", "a b c", "a b d"])
    assert given == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    assert values(Diversity(), task, ["alone"]) == [None]


def test_the_last_block_of_the_right_kind_is_taken() -> None:
    text = "```python\na = 1\n```\nor\n```python\na = 2\n```\n```text\nb\n```"
    assert fenced(text, ("python",)) == "a = 2\n"
    assert fenced("a = 3", ("python",)) == "a = 3"


def mix(rewards: str | list[dict[str, Any]], **tables: dict[str, Any]) -> Mixture:
    return read_rewards(rewards, tables, {})


def test_a_gate_that_is_shut_leaves_nothing_of_what_needs_it() -> None:
    mixture = mix("format:0.25, numeric:0.75:format")
    task = Task("t", "", {"answer": "4"})
    good, wrong, bare = mixture.score(task, ["<answer>4</answer>", "<answer>5</answer>", "4"])
    assert (good.total, good.valid, good.success) == (1.0, True, True)
    assert (wrong.total, wrong.valid, wrong.success) == (0.25, True, False)
    assert (bare.total, bare.valid, bare.success) == (0.0, False, False)
    assert bare.parts == {"format": 0.0, "numeric": 0.0}
    assert wrong.note == "numeric: 5 is not 4"


def test_none_is_left_out_of_the_mean_and_of_the_parts() -> None:
    mixture = mix("numeric:1, length:3")
    [score] = mixture.score(Task("t", ""), ["word"])
    assert (score.total, score.parts) == (1.0, {"length": 1.0})
    [none] = mix("numeric").score(Task("t", ""), ["word"])
    assert (none.total, none.success, none.note) == (0.0, False, "no reward applies to this task")


def test_a_list_of_tables_and_tables_by_name_say_the_same() -> None:
    task = Task("t", "")
    asked = [
        {"name": "shape", "kind": "regex", "pattern": "^a", "weight": 1},
        {"name": "length", "most": 2, "weight": 3},
    ]
    by_name = mix("shape:1, length:3", shape={"kind": "regex", "pattern": "^a"}, length={"most": 2})
    alone = mix("", shape={"kind": "regex", "pattern": "^a", "weight": 1}, length={"most": 2, "weight": 3})
    for answer, total in (("a b c", 0.625), ("b", 0.75)):
        assert [m.score(task, [answer])[0].total for m in (mix(asked), by_name, alone)] == [total] * 3


@pytest.mark.parametrize(
    ("rewards", "told"),
    [
        ("numerc:1", "did you mean 'numeric'?"),
        ("numeric:one:two:three", "is not understood"),
        ("numeric:1:format", "needs 'format', which is not among"),
        ("numeric, numeric", "two rewards 'numeric'"),
        ("numeric:0", "no reward weighs anything"),
        ([{"name": "a", "kind": "json", "needs": "b"}, {"name": "b", "kind": "json", "needs": "a"}], "need each other"),
        ([{"name": "regex", "pattern": "("}], "is no regular expression"),
        ([{"name": "numeric", "tolerence": 1}], "no option 'tolerence'; it has column, extract, tolerance"),
        ([{"kind": "json"}], "has no name"),
        ([{"name": "json", "weight": -1}], "write 0 or more"),
        ("nowhere.py:f:1", "there is no file nowhere.py"),
        ([{"name": "json", "gate": "xml"}], "the reward 'json' has no option 'gate'; write needs"),
        ([{"name": "f", "kind": "function", "file": "a.py"}], "the reward 'f' has no option 'file'; write function"),
        ([{"name": "f", "kind": "function"}], "the reward 'f' needs function; write it in its table"),
        ([{"name": "numeric", "adapter": "trl"}], "it has column, extract, tolerance"),
        ("best:examples/rewards.py:f", "is not understood"),
    ],
)
def test_a_mistake_in_the_rewards_is_told(rewards: Any, told: str) -> None:
    with pytest.raises(WorldError) as refusal:
        load_world("prompts", {"rewards": rewards})
    assert told in str(refusal.value)


def test_a_runs_configuration_keeps_the_reward_tables() -> None:
    text = 'world = "prompts"\nrewards = "numeric:1:shape"\n[reward_tables.shape]\nkind = "xml"\ntags = ["a", "b"]\n'
    config = parse_settings(tomllib.loads(text), world_fields("prompts"))
    again = parse_settings(tomllib.loads(write_toml(config)), world_fields("prompts"))
    assert again.world_options == config.world_options
    mixture = PromptsWorld(**again.world_options).mixture
    assert [(part.name, part.needs) for part in mixture.parts] == [("numeric", "shape"), ("shape", "")]


LISTED = """
world = "prompts"

[[rewards]]
name = "shape"
kind = "regex"
pattern = '"q": \\d+'
weight = 0.2

[[rewards]]
name = "numeric"
needs = "shape"
"""


def test_rewards_may_be_a_list_of_tables_and_come_back_from_a_runs_folder() -> None:
    fields = world_fields("prompts")
    config = parse_settings(tomllib.loads(LISTED), fields)
    written = write_toml(config)
    assert written.count("[[world_options.rewards]]") == 2
    assert parse_settings(tomllib.loads(written), fields) == config
    parts = PromptsWorld(**config.world_options).mixture.parts
    assert [(part.name, part.weight, part.needs) for part in parts] == [("shape", 0.2, ""), ("numeric", 1.0, "shape")]
    assert parts[0].reward == Regex('"q": \\d+')
    with pytest.raises(ConfigError, match=r"largest must be a whole number, not \[{'a': 1}\]"):
        parse_settings({"world": "prompts", "largest": [{"a": 1}]}, fields)


def test_sums_are_of_the_kinds_and_sizes_asked_for() -> None:
    world = PromptsWorld(sums="minus", largest=3)
    found = {
        task.prompt.split("?")[0]: task.spec["answer"] for split in ("train", "heldout") for task in world.tasks(split)
    }
    assert found == {
        "What is 1 minus 1": "0",
        "What is 2 minus 1": "1",
        "What is 2 minus 2": "0",
        "What is 3 minus 1": "2",
        "What is 3 minus 2": "1",
        "What is 3 minus 3": "0",
    }
    with pytest.raises(ValueError, match="sums is 'divided'; write some of plus, minus, times"):
        PromptsWorld(sums="divided")


def test_siblings_are_compared_even_if_they_are_equal() -> None:
    world = PromptsWorld(rewards="diversity")
    task = world.tasks("train")[0]
    with Scorer(world, 1, 20.0) as scorer:
        assert [s.total for s in scorer.score(task, ["a b", "a b", "c d"])] == [0.5, 0.5, 1.0]
        assert [s.total for s in scorer.score(task, ["a b", "c d"])] == [1.0, 1.0]
    assert not PromptsWorld().compares_siblings


def test_a_worker_that_is_not_forked_gets_the_settings_alone(doubles: Path) -> None:
    world = PromptsWorld(data=str(doubles), rewards=f"{ROOT}/examples/rewards.py:shows_work:1, numeric:1")
    again = pickle.loads(pickle.dumps(world))
    assert again == world
    assert [t.id for t in again.tasks("heldout")] == [t.id for t in world.tasks("heldout")]


def test_without_answers_rewards_must_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "free.jsonl", [{"prompt": "sing"}, {"prompt": "dance"}])
    with pytest.raises(WorldError, match="name rewards, as in: --rewards json:1"):
        load_world("prompts", {"data": str(path)})
    assert [f.problem for f in check_world(PromptsWorld(data=str(path), rewards="json")) if f.problem] == []


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is for Linux")
def test_a_world_of_programs_keeps_the_contract(tmp_path: Path) -> None:
    rows = [{"prompt": f"print {n}", "cases": [{"output": n}], "solution": f"print({n})"} for n in range(4)]
    world = PromptsWorld(data=str(write(tmp_path / "print.jsonl", rows)), rewards="code:1, length:0.1")
    assert [finding.problem for finding in check_world(world) if finding.problem] == []
    task = world.tasks("train")[0]
    right, wrong = world.score(task, [str(world.solution(task)), "print('no')"])
    assert (right.total, right.success, wrong.success) == (1.0, True, False)
    assert wrong.note == "code: it printed 'no'"
    with pytest.raises(ValueError, match="memory_mb is 8; Python takes 64"):
        PromptsWorld(rewards=[{"name": "code", "memory_mb": 8}])


def test_reasoning_gyms_tasks_come_with_its_checkers() -> None:
    pytest.importorskip("reasoning_gym")
    world = PromptsWorld(reasoning_gym="chain_sum, leg_counting", gym_size=20)
    assert [finding.problem for finding in check_world(world) if finding.problem] == []
    task = next(t for t in world.tasks("train") if t.spec["gym"] == "chain_sum")
    assert float(task.tags["num_terms"]) >= 2
    right, wrong = world.score(task, [f"<answer>{task.spec['answer']}</answer>", "<answer>x</answer>"])
    assert (right.total, right.success, wrong.success) == (1.0, True, False)
    with pytest.raises(ValueError, match="has no dataset 'chain_sun'; it has chain_sum"):
        PromptsWorld(reasoning_gym="chain_sun")
    with pytest.raises(ValueError, match="refuses gym_options"):
        PromptsWorld(reasoning_gym="chain_sum", gym_options={"wrong": 1})


def test_a_checker_of_reasoning_gym_that_raises_gives_nothing_and_says_so() -> None:
    pytest.importorskip("reasoning_gym")
    world = PromptsWorld(reasoning_gym="chain_sum", gym_size=4)
    [part] = world.mixture.parts
    broken = Task("t", "", {"gym": "chain_sum", "entry": {}})
    assert isinstance(part.reward, Gym)
    [verdict] = part.reward.judge(broken, ["1"])
    assert (verdict.value, verdict.note) == (0.0, "its checker raised KeyError: 'answer'")


def test_check_and_score_by_command(doubles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "prompts", "--data", str(doubles)]) == 0
    (tmp_path / "answer.txt").write_text("I say <answer>6</answer>")
    capsys.readouterr()
    command = ["score", "prompts", str(tmp_path / "answer.txt"), "--data", str(doubles), "--prompt", "double 3"]
    assert main([*command, "--rewards", "format:0.2, numeric:1:format", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["parts"] == {"format": 1.0, "numeric": 1.0}
    assert (told["total"], told["success"]) == (1.0, True)
