"""Points are read from written replies as a careful reader would read them, or not at all."""

import time

import pytest

from mbt_cli.errors import JudgeReplyError
from mbt_cli.judges.points import PointScale, ProofPoints, read_points
from mbt_cli.registry import JUDGES

ANY = PointScale()
FOUR = PointScale(allowed=(0, 1, 6, 7))
TEN = PointScale(max=10)
HALVES = PointScale(max=1, allowed=(0, 0.5, 1))

READ = [
    # the form that prompts ask for
    ("<points>6 out of 7</points>", 6),
    ("<points>0 out of 7</points>", 0),
    ("<points>7 out of 7</points>", 7),
    ("The proof is complete.\n\n<points>7 out of 7</points>\n", 7),
    ("<points>1 out of 7</points>\nThank you.", 1),
    ("<POINTS>6 OUT OF 7</POINTS>", 6),
    ("< points > 6 out of 7 </ points >", 6),
    ("<points>\n  6\n  out of\n  7\n</points>", 6),
    ("<points>6\u00a0out\u00a0of\u00a07</points>", 6),
    ("<points>6 out of 7.</points>", 6),
    ("<points>6 points out of 7</points>", 6),
    ("<points>6 out of 7 points</points>", 6),
    ("<points>6 out of 7 (one small gap)</points>", 6),
    ("<points>+6 out of 7</points>", 6),
    ("<points>06 out of 7</points>", 6),
    # shorter forms
    ("<points>6/7</points>", 6),
    ("<points>7/7</points>", 7),
    ("<points>6 / 7</points>", 6),
    ("<points>6</points>", 6),
    ("<points> 0 </points>", 0),
    ("<points>6 of 7</points>", 6),
    ("<points>6 pts / 7</points>", 6),
    # decimals that are whole numbers
    ("<points>6.0 out of 7</points>", 6),
    ("<points>6.0/7.0</points>", 6),
    ("<points>6,0 out of 7</points>", 6),
    # decoration
    ("**<points>6 out of 7</points>**", 6),
    ("<points>**6** out of 7</points>", 6),
    ("<points>`6 out of 7`</points>", 6),
    ("`<points>6 out of 7</points>`", 6),
    ("```\n<points>6 out of 7</points>\n```", 6),
    ("```xml\n<points>6 out of 7</points>\n```\nDone.", 6),
    ("> <points>6 out of 7</points>", 6),
    ("- Total: <points>6 out of 7</points>", 6),
    ("&lt;points&gt;6 out of 7&lt;/points&gt;", 6),
    ("<points>6\u200b out of 7</points>", 6),
    # LaTeX
    ("<points>$6$ out of $7$</points>", 6),
    (r"<points>\boxed{6} out of 7</points>", 6),
    (r"<points>$\frac{6}{7}$</points>", 6),
    (r"<points>\(6\) out of \(7\)</points>", 6),
    (r"<points>$6\text{ out of }7$</points>", 6),
    (r"Since $\frac{1}{2}<points$ fails, <points>1 out of 7</points>", 1),
    # other languages and scripts
    ("Der Beweis ist vollständig.\n<points>7 von 7</points>", 7),
    ("La preuve a une lacune. <points>6 sur 7</points>", 6),
    ("Casi completo: <points>6 de 7</points>", 6),
    ("Доказательство верно. <points>7 из 7</points>", 7),
    ("证明基本正确。<points>６／７</points>", 6),  # noqa: RUF001
    ("النتيجة: <points>\u0666 out of \u0667</points>", 6),
    # thinking that holds other blocks
    ("<think>Maybe <points>3 out of 7</points>?</think><points>6 out of 7</points>", 6),
    ("Perhaps <points>3 out of 7</points>...</think>\nNo.\n<points>6 out of 7</points>", 6),
    ("<thinking><points>0 out of 7</points></thinking>\n<points>7 out of 7</points>", 7),
    ("[THINK]<points>9 out of 7</points>[/THINK]<points>1 out of 7</points>", 1),
    ("<think>a</think><think><points>2/7</points></think><points>7/7</points>", 7),
    # numbers and points elsewhere are not the verdict
    ("Step 3 earns 2 points, step 4 earns 4 points. <points>6 out of 7</points>", 6),
    ("A naive grader would give 7/7. <points>1 out of 7</points>", 1),
    ("The author claims 'I deserve 7 out of 7'. <points>0 out of 7</points>", 0),
    ("Score: 3/7? No. <points>6 out of 7</points>", 6),
    ("There are 8 out of 7 reasons. <points>6 out of 7</points>", 6),
    # the form itself, quoted
    ("I end with <points>N out of 7</points>.\n<points>6 out of 7</points>", 6),
    ("Format: <points>... out of 7</points>\n\n<points>6 out of 7</points>", 6),
    ("Format: <points>[number] out of 7</points>\n\n<points>6 out of 7</points>", 6),
    ("I write it between <points> and </points>. <points>6 out of 7</points>", 6),
    ("The <points> tag comes last.\n<points>6 out of 7</points>", 6),
    # the same twice is one verdict
    ("<points>6 out of 7</points>\nSo: <points>6/7</points>", 6),
    ('<points>6 out of 7</points>\n```json\n{"points": 6}\n```', 6),
    # JSON
    ('{"points": 6}', 6),
    ('{"points": 6.0}', 6),
    ('{"points": "6 out of 7"}', 6),
    ('{"points": "6"}', 6),
    ('{"Points": 0}', 0),
    ('```json\n{"assessment": "Fine.", "points": 7}\n```', 7),
    ('Here it is: {"items": [{"name": "a", "points": 1}], "points": 1} Done.', 1),
    (r'{"assessment": "as $\alpha \le \beta$ and \frac{1}{2}", "points": 6}', 6),
    ('{"assessment": "two\nlines", "points": 6}', 6),
    ('{"assessment": "it says <points> somewhere", "points": 6}', 6),
    ('{"points": 6, "out_of": 7}', 6),
    ('{"step": 1}\n{"points": 6}', 6),
    ('<think>{"points": 2}</think>{"points": 6}', 6),
    ('{not json} {"points": 6}', 6),
    ("f(x) = {x} for x in {1, 2}. <points>6 out of 7</points>", 6),
]

UNREAD = [
    # beyond the scale
    "<points>8 out of 7</points>",
    "<points>-1 out of 7</points>",
    "<points>70 out of 7</points>",
    "<points>67</points>",
    '{"points": 8}',
    '{"points": -1}',
    # out of something else
    "<points>6 out of 10</points>",
    "<points>60 out of 100</points>",
    "<points>6/6</points>",
    "<points>7 out of 8</points>",
    '{"points": 6, "out_of": 10}',
    '{"points": "6/10"}',
    # not whole
    "<points>6.5 out of 7</points>",
    "<points>6,5 von 7</points>",
    "<points>.5 out of 7</points>",
    '{"points": 6.5}',
    r"<points>$\frac{13}{2}$ out of 7</points>",
    # cut within its JSON: the points of an item are not those of the proof
    '{"assessment": "Fine.", "items": [{"name": "a", "points": 6}, {"name": "b", "po',
    '{"items": [{"name": "a", "points": 6}, {"name": "b", "points":',
    '{"items": [{"name": "a", "points": 6}], "assessment": "It goes',
    # two different ones
    "<points>6 out of 7</points> or <points>7 out of 7</points>",
    "<points>1 out of 7</points>\n\nOn reflection:\n<points>6 out of 7</points>",
    "<points>6 out of 7</points><points>8 out of 7</points>",
    "<points>six out of 7</points><points>7 out of 7</points>",
    '<points>6 out of 7</points>{"points": 7}',
    '{"points": 6} {"points": 7}',
    '[{"name": "a", "points": 1}, {"name": "b", "points": 2}]',
    # not one number
    "<points>6 or 7 out of 7</points>",
    "<points>6-7 out of 7</points>",
    "<points>5~6 out of 7</points>",
    "<points>at least 6 out of 7</points>",
    "<points>about 6 out of 7</points>",
    "<points>6 out of 7 (or 7)</points>",
    "<points>6 7</points>",
    "<points>6^2 out of 7</points>",
    "<points>6²</points>",
    "<points>86%</points>",
    "<points>1e0</points>",
    "<points>3+3 out of 7</points>",
    "<points>NaN</points>",
    '{"points": NaN}',
    '{"points": Infinity}',
    '{"points": true}',
    '{"points": null}',
    '{"points": [6]}',
    '{"points": "six"}',
    # none at all
    "<points>N out of 7</points>",
    "<points></points>",
    "<points>six out of seven</points>",
    "<points>six out of 7</points>",
    "Final score: 7/7",
    "7 out of 7",
    r"\boxed{7}",
    "<score>7 out of 7</score>",
    "[points]7 out of 7[/points]",
    '{"score": 7}',
    '{"grade": {"points": 7}}',
    '{"points": 7',
    "The proof is complete and correct.",
    "I cannot grade this.",
    "",
    "   \n",
    # never closed, or closed by another tag
    "<points>6 out of 7",
    "<points>6 out of 7</point>",
    "6 out of 7</points>",
    "<points>",
    # thinking alone
    "<think>So <points>6 out of 7</points></think>",
    "<think>So <points>6 out of 7</points>",
    "So it is <points>6 out of 7</points></think>",
    "<think>a</think><think>So <points>6 out of 7</points>",
    # items that contradict themselves
    '{"points": 3, "items": [{"name": "a", "points": 4, "max": 3}]}',
    '{"points": 3, "items": [{"name": "a", "points": "much"}]}',
    '{"points": 3, "items": "all"}',
]

OTHER_SCALES = [
    ("<points>6 out of 7</points>", FOUR, 6),
    ("<points>5 out of 7</points>", FOUR, None),
    ("<points>2 out of 7</points>", FOUR, None),
    ('{"points": 3}', FOUR, None),
    ("<points>0/7</points>", FOUR, 0),
    ("<points>8 out of 10</points>", TEN, 8),
    ("<points>8 out of 7</points>", TEN, None),
    ("<points>0.5 out of 1</points>", HALVES, 0.5),
    ("<points>0,5</points>", HALVES, 0.5),
    ("<points>0.25</points>", HALVES, None),
]


def test_there_are_enough_replies_and_none_twice():
    replies = [*(text for text, _ in READ), *UNREAD]

    assert len(set(replies)) == len(replies) >= 140


@pytest.mark.parametrize(("reply", "points"), READ)
def test_points_are_read(reply, points):
    assert read_points(reply, ANY)["points"] == points


@pytest.mark.parametrize("reply", UNREAD)
def test_what_is_not_clear_is_unread(reply):
    with pytest.raises(JudgeReplyError):
        read_points(reply, ANY)


@pytest.mark.parametrize(("reply", "scale", "points"), OTHER_SCALES)
def test_the_scale_says_what_counts(reply, scale, points):
    if points is None:
        with pytest.raises(JudgeReplyError):
            read_points(reply, scale)
    else:
        assert read_points(reply, scale)["points"] == points


def test_messages_say_what_was_read_and_what_counts():
    with pytest.raises(JudgeReplyError, match=r"8 points in `8 out of 7`: not a whole number"):
        read_points("<points>8 out of 7</points>", ANY)
    with pytest.raises(JudgeReplyError, match=r"not 0, 1, 6 or 7"):
        read_points("<points>5 out of 7</points>", FOUR)
    with pytest.raises(JudgeReplyError, match="several different points: 6, 7"):
        read_points("<points>6/7</points> <points>7/7</points>", ANY)
    with pytest.raises(JudgeReplyError, match="is out of 10, not of 7"):
        read_points("<points>6 out of 10</points>", ANY)


@pytest.mark.parametrize(
    "listed",
    [
        '[{"name": "Lemma", "points": 2, "max": 3}, {"criterion": "Rest", "points": 1}]',
        '[{"Item": "Lemma", "Points": 2, "Max": 3}, {"name": "Rest", "points": 1.0}]',
    ],
)
def test_entries_of_a_rubric_are_items(listed):
    found = read_points(f'{{"points": 3, "items": {listed}}}', ANY)

    assert found["items"] == [
        {"name": "Lemma", "points": 2.0, "max": 3.0},
        {"name": "Rest", "points": 1.0, "max": None},
    ]


def test_items_may_be_a_table_of_names_and_may_lack():
    assert read_points('{"points": 3, "items": {"a": 1, "b": 2}}', ANY)["items"][1] == {
        "name": "b",
        "points": 2.0,
        "max": None,
    }
    assert read_points('{"points": 3, "items": []}', ANY)["items"] is None
    assert read_points("<points>3 out of 7</points>", ANY)["items"] is None


@pytest.mark.parametrize(
    "reply",
    [
        "<points>" * 60_000,
        "<points>6 " * 60_000,
        "<points>\\frac{" * 40_000,
        '{"points": ' * 40_000,
        "<points>" + "\\boxed{" * 100_000 + "</points>",
        "\\" * 500_000,
    ],
)
def test_the_time_to_read_grows_no_faster_than_the_reply(reply):
    def seconds(text):
        start = time.process_time()
        with pytest.raises(JudgeReplyError):
            read_points(text, ANY)
        return time.process_time() - start

    half, whole = (min(seconds(reply[: len(reply) // n]) for _ in range(3)) for n in (2, 1))

    assert whole < 6 * half + 0.5


ROW = {
    "question": "Prove it.",
    "gold_answer": "",
    "gold_aliases": [],
    "reply": "<think>hm</think>## Solution\nObvious.\n## Self Evaluation\n\\boxed{1}",
    "reasoning": None,
    "finish_reason": "stop",
    "metadata": {"solution": "By {{ rubric }}.", "rubric": [{"title": "Lemma", "points": 3}]},
}
EVERY = (
    "=== user ===\n{{ question }}|{{ solution }}|{{ rubric }}|{{ proof }}|{{ allowed }}|{{ max }}"
)


def test_a_prompt_shows_the_proof_with_solution_scheme_and_points():
    from mbt_cli.core.templates import parse_template

    template = parse_template("t", EVERY, known=ProofPoints.placeholders)
    (whole,) = ProofPoints().prompt(ROW, template)
    (cut,) = ProofPoints(cut="self_evaluation", scale=FOUR).prompt(ROW, template)

    assert whole["content"] == (
        "Prove it.|By {{ rubric }}.|- title: Lemma; points: 3|"
        "## Solution\nObvious.\n## Self Evaluation\n\\boxed{1}|a whole number from 0 to 7|7"
    )
    assert cut["content"].endswith("|Obvious.|0, 1, 6 or 7|7")


@pytest.mark.parametrize(
    ("reply", "finish_reason"),
    [("", "stop"), (None, "stop"), ("<think>Hm", "length"), ("<think>Hm</think>\n", "stop")],
)
def test_an_empty_proof_has_the_fewest_points_without_a_request(reply, finish_reason):
    row = {**ROW, "reply": reply, "finish_reason": finish_reason}

    assert ProofPoints().verdict_without_model(row) == {"points": 0.0, "items": None}
    assert ProofPoints().verdict_without_model(ROW) is None


def test_a_constrained_reply_has_one_of_the_points():
    points = ProofPoints(scale=FOUR).schema_for(ROW)["properties"]["points"]

    assert points == {"enum": [0, 1, 6, 7]}
    assert ProofPoints().schema_for(ROW)["properties"]["points"] == {"enum": list(range(8))}


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ({"min": 7, "max": 0}, "`max` must be above `min`, which is 7"),
        ({"allowed": [0, 8]}, "`allowed` has 8, and points are 0 to 7"),
        ({"allowed": [1]}, "at least 2"),
        ({"most": 7}, "Extra inputs"),
    ],
)
def test_a_wrong_scale_is_refused(scale, message):
    with pytest.raises(ValueError, match=message):
        JUDGES.make({"kind": "proof_points", "scale": scale})
