"""The judge of mutual predictability: every axis on answers by hand."""

import json
from functools import partial

import pytest

from mbt_cli.core.answered import Answered, Others
from mbt_cli.core.random_draws import Draws
from mbt_cli.core.templates import parse_template
from mbt_cli.judges.predictability import Predictability

TEMPLATE = parse_template(
    "predictability",
    "=== user ===\n{{ behavior }}|{{ context }}|{{ question }}|{{ answer }}",
    known=Predictability.placeholders,
)


def answer(policy, number, text=None):
    said = f"{policy} on {number}" if text is None else text
    return Answered(f"q{number}", policy, f"Question {number}?", said, f"So: {said}")


OWN = [answer("judged", number) for number in range(6)]
PEERS = [answer(policy, number) for policy in ("peer", "predictor") for number in range(6)]


def views(others=None, **settings):
    """The views of the rollout on question 0."""
    others = others or Others(OWN, PEERS, "predictor", partial(Draws, 1))
    judge = Predictability(trials=20, **settings)
    row = {"question_id": "q0", "sample": 0, "question": "Question 0?", "answer": "judged on 0"}
    found = judge.views({**row, "reply": "So: judged on 0", "others": others})
    return judge, found


def test_uplift_scores_the_answer_with_other_answers_and_without():
    judge, found = views()

    assert len(found) == 40
    assert [view["step"] for view in found] == list(range(40))
    for given, bare in zip(found[::2], found[1::2], strict=True):
        assert (given["sign"], bare["sign"], given["trial"]) == (1, -1, bare["trial"])
        assert given["scored"] == bare["scored"] == "judged on 0"
        names = [one.question_id for one in given["context"]]
        assert len(set(names)) == 3
        assert "q0" not in names
        assert {one.policy for one in given["context"]} == {"judged"}
        assert bare["context"] == ()
    # trials draw different contexts, and the same ones in every run
    assert len({tuple(one.question_id for one in view["context"]) for view in found[::2]}) > 5
    assert views()[1] == found
    first, last = judge.prompt(found[0], TEMPLATE)
    assert last == {"role": "assistant", "content": "judged on 0"}
    assert "Answer: judged on" in first["content"]
    bare = judge.prompt(found[1], TEMPLATE)[0]["content"]
    assert bare == "||Question 0?|judged on 0"
    assert all("others" not in view for view in found)


@pytest.mark.parametrize(
    ("predicted", "policies"),
    [
        ("evaluated", {"judged"}),
        ("random_other", {"peer"}),  # never the predictor itself
        ("random_any", {"judged", "peer"}),
    ],
)
def test_whose_answer_is_predicted(predicted, policies):
    _, found = views(predicted=predicted)

    assert {view["target"].policy for view in found} == policies


@pytest.mark.parametrize(
    ("target_question", "has_own", "has_others"),
    [("evaluated", True, False), ("random_other", False, True), ("random_any", True, True)],
)
def test_which_question_is_predicted(target_question, has_own, has_others):
    _, found = views(target_question=target_question)

    names = {view["target"].question_id for view in found}
    assert ("q0" in names, len(names - {"q0"}) > 0) == (has_own, has_others)
    for view in found:
        # neither the target's question nor the rollout's own is in the context
        shown = {one.question_id for one in view["context"]}
        assert not shown & {view["target"].question_id, "q0"}


def test_the_same_question_across_policies_skips_equal_answers():
    same = {"predicted": "random_other", "context_questions": "evaluated"}

    _, found = views(**same)
    copies = [answer("peer", number, f"judged on {number}") for number in range(6)]
    _, skipped = views(Others(OWN, copies, "predictor", partial(Draws, 1)), **same)

    assert {view["target"].policy for view in found} == {"peer"}
    assert {one.question_id for one in found[0]["context"]} == {"q0"}
    assert skipped == []
    assert views(context_questions="evaluated")[1] == []  # it would predict itself


def test_examples_are_shown_with_and_without_the_context():
    _, found = views(predicted="random_other", behavior_examples=2)

    for given, bare in zip(found[::2], found[1::2], strict=True):
        assert given["examples"] == bare["examples"]
        assert {one.policy for one in given["examples"]} == {"peer"}
        shown = {one.question_id for one in given["examples"]}
        assert len(shown) == 2
        assert not shown & {"q0", *(one.question_id for one in given["context"])}


def test_other_scorings_and_whole_replies():
    _, given = views(scoring="conditional_only", text="reply")
    consistency, asked = views(scoring="judge_consistency")

    assert {(view["sign"], view["texts"], view["scored"]) for view in given} == {
        (1, 1, "So: judged on 0")
    }
    assert [(view["sign"], view["scored"]) for view in asked[:2]] == [(1, "Yes"), (-1, "No")]
    assert all(view["context"] for view in asked)
    assert consistency.template == "predictability_consistency"


def test_a_verdict_has_the_sum_over_the_tokens():
    judge, found = views()
    scores = json.dumps({"tokens": ["judged", " on", " 0"], "logprobs": [-1.0, -2.5, -0.5]})

    verdict = judge.parse(scores, found[1])

    assert (verdict["logprob"], verdict["tokens"]) == (-4.0, 3)
    assert (verdict["sign"], verdict["trial"], verdict["step"]) == (-1, 0, 1)
    assert (verdict["target_question"], verdict["target_policy"]) == ("q0", "judged")


def test_nothing_to_go_by_is_no_trial():
    _, alone = views(Others(OWN[:1], [], "predictor", partial(Draws, 1)))

    assert alone == []
