"""Programs of several steps in a manifest: their rows, steps, roles, resumes and messages."""

import json

import polars as pl
import pytest

from tests.cli.chat_server import ChatServer

PROGRAM = '''
from typing import Literal

from mbt_cli.core.chat import Message
from mbt_cli.core.programs import Ask, read_reply
from mbt_cli.interfaces import Program


def _grade(text):
    return int(text.rpartition("grade")[2]) if "grade" in text else None


class Checked(Program):
    """Draft, have every draft graded, and answer with the best one in other words."""

    kind: Literal["checked"] = "checked"
    drafts: int = 2
    check_prompt: str = "check.md"

    prompts = {"check_prompt": frozenset({"draft"})}
    roles = {"verifier": "grades a draft"}

    def expected_requests(self):
        return self.drafts * 3 + 1

    def run(self, problem):
        drafts = yield [Ask("draft", problem.messages) for _ in range(self.drafts)]
        graded = yield [self.graded(problem, draft) for draft in drafts]
        best = max(range(len(drafts)), key=lambda n: graded[n] or 0)
        turn = Message(role="user", content="Say it again: " + (drafts[best].text or ""))
        (reply,) = yield [Ask("final", (turn,), built_on=[drafts[best]])]
        return reply

    def graded(self, problem, draft):
        messages = problem.filled("check_prompt", draft=draft.text or "")
        ask = Ask("grade", messages, role="verifier", built_on=[draft], reads=_grade,
                  trainable=False)
        _, grade = yield from read_reply(ask)
        return grade
'''
CHECK = """=== user ===
{{ question }} Is this right: {{ draft }}
"""

STUDY = """
[study]
name = "small"
seed = 1
plugins = ["checked.py"]

[models.parrot]
backend = { kind = "canned", replies = ["It is <answer>Oslo</answer>"] }
sampling = { temperature = 0, max_tokens = 32 }

[models.grader]
backend = { kind = "canned", replies = ["grade 7"] }
sampling = { temperature = 0, max_tokens = 8 }

[models.mute]
backend = { kind = "canned", replies = ["who knows"] }
sampling = { temperature = 0, max_tokens = 8 }

[benchmarks.tiny]
kind = "tinyhop"
limit = 3

[programs.three]
kind = "checked"
drafts = 3

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = "tiny", split = "validation", model = "parrot", program = ["single", "checked", "three"] }
prompt = "answer"
roles = { verifier = "grader" }
samples = 2
"""  # noqa: E501  TOML keeps an inline table on one line
BASE = "runs/small/base/benchmark=tiny/split=validation/model=parrot"


@pytest.fixture
def study(workplace):
    """Writes the study there with other words in it, beside its program and prompt."""
    (workplace / "checked.py").write_text(PROGRAM)
    (workplace / "check.md").write_text(CHECK)

    def write(*changes, text=STUDY):
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (workplace / "study.toml").write_text(text)

    write()
    return write


def test_a_rollout_is_one_row_and_every_request_is_a_row_of_its_steps(mbt, study, workplace):
    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    rows = pl.read_parquet(workplace / BASE / "program=checked/rows.parquet")
    steps = pl.read_parquet(workplace / BASE / "program=checked/files/steps.parquet")
    assert rows["steps"].to_list() == [5] * 6
    assert rows["unread_steps"].to_list() == rows["failed_steps"].to_list() == [0] * 6
    assert rows["reply"].unique().to_list() == ["It is <answer>Oslo</answer>"]
    first = steps.head(5)
    assert first["name"].to_list() == ["draft", "draft", "grade", "grade", "final"]
    assert first["path"].to_list() == ["0.0", "0.1", "1.0.0.0", "1.1.0.0", "2.0"]
    assert first["role"].to_list() == ["", "", "verifier", "verifier", ""]
    assert first["model"].to_list() == ["parrot"] * 2 + ["grader"] * 2 + ["parrot"]
    assert first["parents"].to_list() == [[], [], [0], [1], [0]]
    assert first["trainable"].to_list() == [True, True, False, False, True]
    assert first["read"].to_list() == [None, None, "7", "7", None]
    assert first["is_answer"].to_list() == [False] * 4 + [True]
    totals = steps.group_by("question_id", "sample", maintain_order=True).agg(
        pl.col("completion_tokens").sum(), pl.col("prompt_tokens").sum()
    )
    assert totals["completion_tokens"].to_list() == rows["total_completion_tokens"].to_list()
    assert totals["prompt_tokens"].to_list() == rows["total_prompt_tokens"].to_list()
    assert rows["question_id"].to_list() == totals["question_id"].to_list()
    lineage = json.loads((workplace / BASE / "program=checked/lineage.json").read_text())
    assert lineage["tokens"]["completion"] == totals["completion_tokens"].sum()
    assert lineage["notes"]["roles"] == {"verifier": "grader"}
    assert lineage["spec"]["program"]["file_sha256"]
    assert lineage["requests"]["sent"] == steps.height == 30


def test_the_settings_of_a_table_hold_and_single_has_no_steps(mbt, study, workplace):
    mbt("run", "study.toml")

    three = pl.read_parquet(workplace / BASE / "program=three/rows.parquet")
    single = pl.read_parquet(workplace / BASE / "program=single/rows.parquet")
    assert three["steps"].to_list() == [7] * 6
    assert single["steps"].to_list() == [1] * 6
    assert single["total_completion_tokens"].to_list() == single["completion_tokens"].to_list()
    assert not (workplace / BASE / "program=single/files").exists() or not list(
        (workplace / BASE / "program=single/files").iterdir()
    )


def test_what_cannot_be_read_is_asked_twice_and_counted(mbt, study, workplace):
    study(('"grader" }', '"mute" }'))

    ran = mbt("run", "study.toml", "--only", "base/program=checked")

    assert ran.code == 0, ran.err
    rows = pl.read_parquet(workplace / BASE / "program=checked/rows.parquet")
    steps = pl.read_parquet(workplace / BASE / "program=checked/files/steps.parquet")
    assert rows["steps"].to_list() == [7] * 6
    assert rows["unread_steps"].to_list() == [4] * 6
    assert rows["failure"].null_count() == 6
    assert steps.filter("is_unread")["name"].unique().to_list() == ["grade"]
    assert steps.head(7)["seed"].n_unique() == 7


def test_single_said_has_the_fingerprint_of_a_stage_without_a_program(mbt, study, workplace):
    study(
        (', program = ["single", "checked", "three"]', ""), ('roles = { verifier = "grader" }', "")
    )
    mbt("run", "study.toml")

    study(
        (', program = ["single", "checked", "three"]', ""),
        ('roles = { verifier = "grader" }', 'program = "single"'),
    )
    again = mbt("run", "study.toml")

    assert again.code == 0, again.err
    assert "done" in again.out + again.err
    lineage = json.loads((workplace / BASE / "lineage.json").read_text())
    assert "program" not in lineage["spec"]
    assert mbt("status", "study.toml", "--json").out.count('"stale"') == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("drafts = 3", "drafts = 4"), "program.drafts"),
        (('verifier = "grader"', 'verifier = "mute"'), "mute"),
    ],
)
def test_settings_of_a_program_and_its_roles_make_a_cell_stale(mbt, study, change, said):
    mbt("run", "study.toml", "--only", "base/program=three")
    study(change)

    ran = mbt("run", "study.toml", "--only", "base/program=three")

    assert ran.code == 1
    assert said in ran.err


def test_the_text_of_a_program_and_of_its_prompts_makes_a_cell_stale(mbt, study, workplace):
    mbt("run", "study.toml", "--only", "base/program=checked")
    (workplace / "check.md").write_text(CHECK.replace("right", "true"))
    other_prompt = mbt("run", "study.toml", "--only", "base/program=checked")
    (workplace / "check.md").write_text(CHECK)
    (workplace / "checked.py").write_text(PROGRAM + "\n# changed\n")
    other_code = mbt("run", "study.toml", "--only", "base/program=checked")

    assert (other_prompt.code, other_code.code) == (1, 1)
    assert "check_prompt" in other_prompt.err
    assert "file_sha256" in other_code.err


def test_more_samples_of_a_program_reuse_all_of_its_steps(mbt, study, workplace):
    mbt("run", "study.toml", "--only", "base/program=checked")
    study(("samples = 2", "samples = 3"))

    dry = mbt("run", "study.toml", "--only", "base/program=checked", "--dry-run")
    ran = mbt("run", "study.toml", "--only", "base/program=checked")

    assert ran.code == 0, ran.err
    lineage = json.loads((workplace / BASE / "program=checked/lineage.json").read_text())
    assert (lineage["requests"]["sent"], lineage["requests"]["reused"]) == (15, 30)
    assert "6 requests new, 30 reused" in dry.out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('"three"]', '"thre"]'), "no program `thre`; did you mean `three`?"),
        (("roles = { verifier", "roles = { verifyer"), "did you mean `verifier`?"),
        (('{ verifier = "grader" }', '{ verifier = "grade" }'), "no model `grade`"),
        (('kind = "checked"\n', 'kind = "chekced"\n'), "no kind of program `chekced`"),
        (("drafts = 3", "draft = 3"), "programs.three.draft"),
        (
            (', program = ["single", "checked", "three"]', ""),
            "this stage has no program, so no roles",
        ),
        (("samples = 2", 'samples = 2\nsource = "rows.parquet"'), "has no meaning beside `source`"),
    ],
)
def test_check_refuses_a_wrong_program_or_role(mbt, study, workplace, change, said):
    (workplace / "rows.parquet").write_bytes(b"")
    study(change)

    ran = mbt("check", "study.toml")

    assert ran.code == 2
    assert said in " ".join(ran.err.split())


def test_a_program_in_another_kind_of_stage_is_refused(mbt, study):
    text = (
        STUDY
        + """
[[stage]]
kind = "judge"
rollouts = "base"
matrix = { judge = "verifier" }
program = "checked"
"""
    )
    study(text=text)

    ran = mbt("check", "study.toml")

    assert ran.code == 2
    assert "stage.judge.program" in ran.err


def test_roles_ask_two_endpoints_side_by_side_each_with_its_sampling(mbt, study, workplace):
    with ChatServer("It is <answer>Oslo</answer>") as own, ChatServer("grade 5") as other:
        endpoint = '{{ kind = "openai", base_url = "{}", id = "m" }}'
        study(
            (
                '{ kind = "canned", replies = ["It is <answer>Oslo</answer>"] }',
                endpoint.format(own.base_url),
            ),
            ('{ kind = "canned", replies = ["grade 7"] }', endpoint.format(other.base_url)),
        )
        ran = mbt("run", "study.toml", "--only", "base/program=checked")

    assert ran.code == 0, ran.err
    assert (own.answered.total(), other.answered.total()) == (6 * 3, 6 * 2)
    assert {body["max_tokens"] for body in own.bodies} == {32}
    assert {body["max_tokens"] for body in other.bodies} == {8}
    lineage = json.loads((workplace / BASE / "program=checked/lineage.json").read_text())
    assert lineage["server"]["origin"]["addresses"] == [own.base_url]
    servers = lineage["notes"]["other_servers"]
    assert servers["grader"]["origin"]["addresses"] == [other.base_url]


def test_a_begun_cell_whose_role_has_moved_is_refused_before_anything_is_asked(mbt, study):
    only = ("--only", "base/program=checked")
    own_reply = '{ kind = "canned", replies = ["It is <answer>Oslo</answer>"] }'
    endpoint = '{{ kind = "openai", base_url = "{}", id = "m" }}'
    with ChatServer("It is <answer>Oslo</answer>") as own, ChatServer("grade 5") as moved:
        with ChatServer("grade 5") as other:
            own.answers = 8

            def at(server):
                study(
                    (own_reply, endpoint.format(own.base_url)),
                    (
                        '{ kind = "canned", replies = ["grade 7"] }',
                        endpoint.format(server.base_url),
                    ),
                )

            at(other)
            begun = mbt("run", "study.toml", *only, "--set", "run.max_attempts=1")
            asked = own.answered.total()
        at(moved)
        shown = mbt("run", "study.toml", *only, "--dry-run")
        ran = mbt("run", "study.toml", *only)

        assert begun.code == 1
        assert (shown.code, ran.code) == (1, 1)
        for refused in (shown, ran):
            assert f"its model is now at `{moved.base_url}`" in refused.err
        assert (own.answered.total(), moved.answered.total()) == (asked, 0)


def test_the_unknown_context_of_a_role_is_one_refusal_of_check(mbt, study):
    study(
        (
            'replies = ["grade 7"] }\nsampling = { temperature = 0, max_tokens = 8 }',
            'replies = ["grade 7"] }\nsampling = { temperature = 0, max_tokens = "inferred" }',
        )
    )

    checked = mbt("check", "study.toml")

    assert checked.code == 2
    assert checked.err.count("context of this model is not known") == 1
    assert "models.grader.sampling.max_tokens" in checked.err


def test_an_endpoint_and_a_model_in_process_play_together(mbt, study, workplace):
    with ChatServer("It is <answer>Oslo</answer>") as own:
        study(
            (
                '{ kind = "canned", replies = ["It is <answer>Oslo</answer>"] }',
                f'{{ kind = "openai", base_url = "{own.base_url}", id = "m" }}',
            ),
        )
        ran = mbt("run", "study.toml", "--only", "base/program=checked")

    assert ran.code == 0, ran.err
    assert own.answered.total() == 6 * 3
    rows = pl.read_parquet(workplace / BASE / "program=checked/rows.parquet")
    assert rows["steps"].to_list() == [5] * 6


def test_a_role_may_have_a_sampling_of_its_own(mbt, study):
    with ChatServer("grade 5") as server:
        study(
            (
                '{ kind = "canned", replies = ["It is <answer>Oslo</answer>"] }',
                f'{{ kind = "openai", base_url = "{server.base_url}", id = "m" }}',
            ),
            (
                '{ verifier = "grader" }',
                '{ verifier = { model = "parrot", sampling = { temperature = 0, max_tokens = 5 }}}',
            ),
        )
        ran = mbt("run", "study.toml", "--only", "base/program=checked")

    assert ran.code == 0, ran.err
    limits = sorted(body["max_tokens"] for body in server.bodies)
    assert limits == [5] * 12 + [32] * 18


def test_a_failed_step_is_answered_to_the_program_and_counted(mbt, study, workplace):
    (workplace / "replies.jsonl").write_text("")
    study(
        (
            '{ kind = "canned", replies = ["grade 7"] }',
            '{ kind = "recorded", file = "replies.jsonl" }',
        )
    )

    ran = mbt("run", "study.toml", "--only", "base/program=checked")

    assert ran.code == 0, ran.err
    rows = pl.read_parquet(workplace / BASE / "program=checked/rows.parquet")
    assert rows["failed_steps"].to_list() == [4] * 6
    assert rows["failure"].null_count() == 6


def test_a_rollout_whose_answer_failed_has_failed(mbt, study, workplace):
    (workplace / "replies.jsonl").write_text("")
    study(
        (
            '{ kind = "canned", replies = ["It is <answer>Oslo</answer>"] }',
            '{ kind = "recorded", file = "replies.jsonl" }',
        )
    )

    ran = mbt("run", "study.toml", "--only", "base/program=checked")

    assert ran.code == 1
    assert "6 of 6 rows failed" in ran.err


def test_shards_are_merged_only_when_every_step_is_known(mbt, study, workplace):
    mbt("run", "study.toml", "--only", "questions")
    for number in (1, 2):
        ran = mbt("run", "study.toml", "--only", "base/program=checked", "--shard", f"{number}/2")
        assert ran.code == 0, ran.err
    (last,) = (workplace / BASE / "program=checked/journal").glob("replies-2-of-2.jsonl")
    lines = last.read_bytes().splitlines(keepends=True)
    last.write_bytes(b"".join(lines[:-1]))

    refused = mbt("merge", "study.toml", "--only", "base/program=checked")
    last.write_bytes(b"".join(lines))
    merged = mbt("merge", "study.toml", "--only", "base/program=checked")

    assert refused.code == 1
    assert "1 of 30 requests have no reply yet" in refused.err
    assert merged.code == 0, merged.err
    assert pl.read_parquet(workplace / BASE / "program=checked/rows.parquet").height == 6


def test_a_dry_run_counts_first_requests(mbt, study):
    ran = mbt("run", "study.toml", "--dry-run")

    assert ran.code == 0
    lines = ran.out.splitlines()
    of_checked = lines[next(n for n, x in enumerate(lines) if "program=checked" in x) + 1]
    of_single = lines[next(n for n, x in enumerate(lines) if "program=single" in x) + 1]
    assert "12 requests new, 0 reused (first requests" in of_checked
    assert of_single == "  6 requests new, 0 reused"


def test_show_goes_to_any_step(mbt, study, workplace):
    mbt("run", "study.toml", "--only", "base/program=checked")
    cell = f"{BASE}/program=checked"
    question = pl.read_parquet(workplace / cell / "rows.parquet")["question_id"][0]

    answer = mbt("show", cell, "--prompt", question)
    graded = mbt("show", cell, "--prompt", question, "--step", "2")
    beyond = mbt("show", cell, "--prompt", question, "--step", "9")
    without = mbt("show", cell, "--step", "2")

    assert "0 draft, 1 draft, 2 grade, 3 grade, 4 final" in answer.out
    assert "step 2: grade by grader as verifier" in graded.out
    assert "Is this right: It is <answer>Oslo</answer>" in graded.out
    assert "read: 7" in graded.out
    assert (beyond.code, without.code) == (2, 2)
    assert "its steps are 0 to 4" in beyond.err


def test_show_takes_step_0_of_a_rollout_of_one_request(mbt, study, workplace):
    mbt("run", "study.toml", "--only", "base/program=single")
    cell = f"{BASE}/program=single"
    question = pl.read_parquet(workplace / cell / "rows.parquet")["question_id"][0]

    assert mbt("show", cell, "--prompt", question, "--step", "0").code == 0
    assert mbt("show", cell, "--prompt", question, "--step", "1").code == 2


def test_a_plan_counts_every_request_that_a_program_may_make(mbt, study):
    plan = json.loads(mbt("plan", "study.toml", "--json").out)

    cells = {cell["address"].rpartition("=")[2]: cell for cell in plan["cells"]}
    assert cells["single"]["requests"] == 6
    assert cells["three"]["requests"] == 6 * 10
    assert cells["three"]["most_tokens"] == 6 * 10 * 32
    assert cells["three"]["tokens"] == 6 * 10 * 32  # the usual length is longer than the limit


def test_tokens_count_all_steps_and_a_metric_counts_requests(mbt, study, workplace):
    scores = """
[[stage]]
kind = "score"
rollouts = "base"
metrics = ["tokens", "answer_tokens", "steps", { kind = "aes", accuracy = "exact_match" }]
baseline = { program = "single" }
"""
    study(text=STUDY + scores)

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    folder = "runs/small/score/benchmark=tiny/split=validation/model=parrot"
    found = pl.read_parquet(workplace / folder / "program=checked/files/summary.parquet")
    values = dict(found.filter(pl.col("by").is_null()).select("metric", "value").iter_rows())
    rows = pl.read_parquet(workplace / BASE / "program=checked/rows.parquet")
    assert values["tokens"] == rows["total_completion_tokens"].mean() > values["answer_tokens"]
    assert (values["steps"], values["steps_unread"], values["steps_failed"]) == (5, 0, 0)
    single = pl.read_parquet(workplace / folder / "program=single/files/summary.parquet")
    assert single.filter(pl.col("metric") == "steps")["value"][0] == 1


def test_a_mistake_in_ones_own_program_is_named_with_its_line(mbt, study, workplace):
    (workplace / "checked.py").write_text(PROGRAM.replace("best = max(", "best = min(1, "))

    ran = mbt("run", "study.toml", "--only", "base/program=checked")

    assert ran.code == 1
    assert "the program `checked` failed in line 29 of its file: TypeError" in ran.err
    assert "Traceback" not in ran.err
