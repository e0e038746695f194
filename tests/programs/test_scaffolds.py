"""Each scaffold against a trace by hand: what it asks, quotes, selects and returns."""

import json

import pytest
from pydantic import ValidationError

from mbt_cli.core.chat import Message, Reply
from mbt_cli.core.proof_text import proof_of
from mbt_cli.core.random_draws import Draws
from mbt_cli.programs.critique import Critique
from mbt_cli.programs.debate import Debate
from mbt_cli.programs.dialogue import Dialogue
from mbt_cli.programs.interview import Interview
from mbt_cli.programs.length_control import LengthControl
from mbt_cli.programs.planner import Planner
from mbt_cli.programs.reasoning_cache import ReasoningCache
from mbt_cli.programs.refine import Refine
from mbt_cli.programs.rsa import RSA
from mbt_cli.programs.selfcheck import SelfCheck
from mbt_cli.programs.static import Static
from mbt_cli.programs.tools import Tools
from mbt_cli.programs.tournament import Tournament
from tests.programs.player import MESSAGES, TASK, play, scripted

# Critique


def test_critique_quotes_the_answer_and_then_the_critique():
    played = play(Critique(), scripted(answer="three", criticise="2 3 5 7", revise="four"))

    assert played.names == ["answer", "criticise", "revise"]
    assert played.asks[0].messages == MESSAGES
    assert TASK in played.prompt(1)
    assert "three" in played.prompt(1)
    assert all(text in played.prompt(2) for text in (TASK, "three", "2 3 5 7"))
    assert [ask.role for ask in played.asks] == ["", "critic", ""]
    assert [ask.trainable for ask in played.asks] == [True, False, True]
    assert played.answer is played.replies[2]


def test_an_unread_critique_is_asked_for_twice_and_the_answer_stands():
    played = play(Critique(rounds=3), scripted(answer="three", criticise=None))

    assert played.names == ["answer", "criticise", "criticise"]
    assert played.answer is played.replies[0]


def test_thinking_is_not_quoted():
    replies = scripted(answer="<think>secret</think>three", criticise="no", revise="four")
    played = play(Critique(), replies)

    assert "secret" not in played.prompt(1) + played.prompt(2)


# Self-check


def test_selfcheck_ends_at_the_acceptances_in_a_row():
    yes, no = "<verdict>yes</verdict>", "<verdict>No</verdict>"
    played = play(
        SelfCheck(correct_count=2),
        scripted(
            solve="s1",
            improve="s2",
            verify=["r1", "r2", "r3", "r4"],
            classify=[yes, no, yes, yes],
            correct=["s3"],
        ),
    )

    check = ["verify", "classify"]
    assert played.names == ["solve", "improve", *check, *check, "correct", *check, *check]
    assert played.asks[1].messages[:2] == (*MESSAGES, Message(role="assistant", content="s1"))
    assert "r1" in played.prompt(3)
    assert all(text in played.said("correct")[0] for text in ("s2", "r2", TASK))
    assert "s3" in played.said("verify")[2]
    assert played.answer.text == "s3"
    assert played.roles["verify"] == played.roles["classify"] == "verifier"


def test_selfcheck_gives_up_at_the_rejections_in_a_row():
    replies = {"solve": "s", "improve": "s", "verify": "r", "correct": "c"}
    rejected = scripted(**replies, classify="<verdict>no</verdict>")

    kept = play(SelfCheck(error_count=2), rejected)
    failed = play(SelfCheck(error_count=2, return_if_not_found=False), rejected)

    check = ["verify", "classify"]
    assert kept.names == failed.names == ["solve", "improve", *check, "correct", *check]
    assert (kept.answer.text, kept.answer.failure) == ("c", None)
    assert failed.answer.text is None
    assert failed.answer.failure.startswith("not_found")


def test_selfcheck_counts_an_unread_verdict_as_neither():
    played = play(
        SelfCheck(max_iterations=2, correct_count=1),
        scripted(
            solve="s",
            improve="s",
            verify="r",
            classify=["perhaps", "well", "<verdict>yes</verdict>"],
        ),
    )

    check = ["verify", "classify"]
    assert played.names == ["solve", "improve", *check, "classify", *check]


def test_selfcheck_with_several_verifications_follows_the_majority():
    yes, no = "<verdict>yes</verdict>", "<verdict>no</verdict>"
    played = play(
        SelfCheck(max_iterations=1, verifications=3, correct_count=1),
        scripted(
            solve="s",
            improve="s",
            verify=["a", "b", "c"],
            classify=[yes, no, no],
            correct="fixed",
        ),
    )

    assert played.names[2:] == ["verify"] * 3 + ["classify"] * 3 + ["correct"]
    assert "b" in played.said("correct")[0]
    assert played.answer.text == "fixed"


# Refine


def test_refine_shows_verifiers_the_proof_without_the_own_verdict():
    written = "Plan.\n## Solution\nBy induction.\n## Self Evaluation\nAll good."
    program = Refine(pool=1, verifications=1, rounds=1)
    played = play(program, scripted(prove=written, verify=r"\boxed{0}", refine="Better."))

    assert played.names == ["prove", "verify", "refine", "verify"]
    assert "By induction." in played.prompt(1)
    assert "All good." not in played.prompt(1) + played.prompt(2)
    assert played.asks[0].messages == MESSAGES
    assert played.roles["refine"] == "improver"
    assert played.answer.text == written  # the earliest of equal ones, as it was written


def by_proof(scores):
    """Scores by the proof that a verification quotes; each list is used up in order."""

    def respond(ask, number):
        if ask.name != "verify":
            return names.pop(0)
        prompt = ask.messages[0]["content"]
        name = next(name for name in scores if f"\nproof {name}\n" in prompt)
        score = scores[name].pop(0)
        return score if score is None or score.startswith("?") else rf"{name}: \boxed{{{score}}}"

    names = [f"proof {name}" for name in scores]
    return respond


def test_refine_takes_the_best_mean_and_the_lowest_reviews():
    scores = {"a": ["1", "0.5"], "b": ["0", "0.5"], "c": ["0.5", "0.5"], "d": ["1", "0.5"]}
    played = play(Refine(pool=2, verifications=2, reviews=1, rounds=1), by_proof(scores))

    best, second = played.said("refine")
    assert "proof a" in best
    assert r"a: \boxed{0.5}" in best
    assert r"\boxed{1}" not in best
    assert "proof b" in second
    assert r"b: \boxed{0}" in second
    assert played.answer.text == "proof a"  # the earliest of a and d
    refined = next(ask for ask in played.asks if ask.name == "refine")
    assert [reply.text for reply in refined.built_on] == ["proof a", r"a: \boxed{0.5}"]


def test_refine_ends_at_a_perfect_mean():
    scores = {"a": ["1", "0.5"], "b": ["1", "1"]}
    played = play(Refine(pool=2, verifications=2, rounds=5), by_proof(scores))

    assert played.names == ["prove"] * 2 + ["verify"] * 4
    assert played.answer.text == "proof b"


def test_refine_leaves_unread_verifications_out_of_the_mean():
    unread = ["?"] * 4
    scores = {"a": ["0.5", "?", "?"], "b": unread[:], "c": unread[:]}  # `c` refines `a`
    played = play(Refine(pool=2, verifications=2, rounds=1), by_proof(scores))

    assert played.names.index("refine") == 2 + 3 + 4
    assert played.answer.text == "proof a"


@pytest.mark.parametrize(
    "reply",
    [
        "Intro\n## Solution\nProof a\n## Self Evaluation\nE",
        "Proof a\n## Self evaluation\nE",
        "## Solution\nProof a",
        "<think>## Solution\nb</think>Proof a",
        "**Solution**\nProof a\n**Self-Evaluation:**\nE",
        "## Solution\nDraft\n## Self Evaluation\nA gap.\n## Solution\nProof a\n"
        "## Self Evaluation\nE",
        "Proof a\n\nOverall score: \\boxed{1}",
    ],
    ids=["both", "verdict", "heading", "thinking", "bold", "several", "score"],
)
def test_refine_verifies_and_refines_the_proof_that_judges_grade(reply):
    script = scripted(prove=reply, verify=r"V \boxed{0.5}", refine="better")
    played = play(Refine(pool=1, verifications=1, rounds=1), script)

    assert proof_of(reply, "self_evaluation") == "Proof a"
    for prompt in (played.said("verify")[0], *played.said("refine")):
        assert "Proof a" in prompt
        assert not any(word in prompt for word in ("Draft", "A gap", "Overall", "\nE\n", "Intro"))


# Reasoning cache


def test_reasoning_cache_goes_on_from_the_summary_alone():
    thought = Reply(text="first", reasoning="long thoughts", finish_reason="stop")
    cut = Reply(text=None, reasoning="more thoughts", finish_reason="length")
    played = play(
        ReasoningCache(),
        scripted(solve=thought, summarise=["sum 1", "sum 2"], **{"continue": [cut, "last"]}),
    )

    assert played.names == ["solve", "summarise", "continue", "summarise", "continue"]
    assert "long thoughts" in played.prompt(1)
    assert "sum 1" in played.prompt(2)
    assert "long thoughts" not in played.prompt(2)
    assert "more thoughts" in played.prompt(3)
    assert "sum 2" in played.prompt(4)
    assert played.answer.text == "last"
    assert played.roles["summarise"] == "summariser"


def test_reasoning_cache_answers_with_the_last_visible_reply():
    cut = Reply(text=None, reasoning="thoughts", finish_reason="length")
    played = play(
        ReasoningCache(iterations=2), scripted(solve="first", summarise="s", **{"continue": cut})
    )

    assert played.answer.text == "first"


def test_reasoning_cache_uses_the_summary_before_an_unread_one():
    played = play(
        ReasoningCache(),
        scripted(solve="w1", summarise=["s1", None, None], **{"continue": ["w2", "w3"]}),
    )

    assert played.names == ["solve", "summarise", "continue", "summarise", "summarise", "continue"]
    assert played.prompt(2) == played.prompt(5)


# RSA


def test_rsa_merges_blocks_of_others_each_used_equally_often():
    program = RSA(solutions=5, rounds=1, block=2, selection="single")
    solved = [f"text-{n}" for n in range(5)]
    merged = [f"merged-{n}" for n in range(5)]
    replies = scripted(solve=solved, merge=merged, select="It is <select>4</select>")
    played = play(program, replies)

    distances = sorted(Draws(0, "rollout", "q1", 0, "blocks", 0).shuffled(range(1, 5))[:2])
    for at, ask in enumerate(ask for ask in played.asks if ask.name == "merge"):
        texts = [reply.text for reply in ask.built_on]
        assert texts == [solved[(at + far) % 5] for far in distances]
        assert solved[at] not in texts
        assert all(text in ask.messages[0]["content"] for text in texts)
    used = [r.text for ask in played.asks if ask.name == "merge" for r in ask.built_on]
    assert sorted(used) == sorted(solved * 2)
    assert played.answer.text == "merged-3"
    assert len(played.asks) == program.expected_requests() == 11


def test_rsa_has_the_published_number_of_requests():
    merged = (f"m{n}" for n in range(100))

    def respond(ask, number):
        return "<verdict>1</verdict>" if ask.name == "compare" else next(merged)

    played = play(RSA(), respond)

    assert (played.names.count("solve"), played.names.count("merge")) == (8, 24)
    assert played.names.count("compare") == 7
    assert RSA().expected_requests() == len(played.asks) == 39


def test_rsa_goes_on_without_unread_solutions():
    played = play(
        RSA(solutions=3, rounds=1, block=2, selection="single"),
        scripted(solve=["a", None, None, "c", None], merge="m", select="<select>1</select>"),
    )

    assert played.names.count("solve") == 5  # two are asked for twice
    assert played.names.count("merge") <= 2


@pytest.mark.parametrize(("solutions", "block"), [(3, 3), (1, 1), (2, 8)])
def test_a_block_that_is_not_smaller_than_the_pool_is_refused(solutions, block):
    with pytest.raises(ValidationError, match="a merge reads others"):
        RSA(solutions=solutions, block=block)


def test_a_pool_of_one_without_rounds_is_one_request():
    played = play(RSA(solutions=1, rounds=0), scripted(solve="only"))

    assert (played.names, played.answer.text) == (["solve"], "only")


# Knock-out and tournament


def test_the_knock_out_follows_verdicts_in_the_drawn_order():
    """Five entrants: pairs (o0 o1) (o2 o3), o4 waits and plays first in the next round."""
    solved = [f"text-{n}" for n in range(5)]
    drawn = Draws(0, "rollout", "q1", 0, "pairs").shuffled(solved)
    verdicts = ["<verdict>2</verdict>", "<verdict>1</verdict>", "<verdict>1</verdict>"]
    played = play(
        RSA(solutions=5, rounds=0),
        scripted(solve=solved, compare=[*verdicts, "so <verdict> 2 </verdict>"]),
    )

    matches = [
        [reply.text for reply in ask.built_on] for ask in played.asks if ask.name == "compare"
    ]
    assert matches == [drawn[:2], drawn[2:4], [drawn[4], drawn[1]], [drawn[2], drawn[4]]]
    assert played.answer.text == drawn[4]


def test_a_tie_and_an_unread_verdict_are_decided_by_the_same_lot():
    solved = {"solve": ["a", "b"]}
    tie = play(RSA(solutions=2, rounds=0), scripted(**solved, compare="<verdict>tie</verdict>"))
    unread = play(RSA(solutions=2, rounds=0), scripted(solve=["a", "b"], compare="Hm."))

    assert tie.answer.text == unread.answer.text
    assert unread.names == ["solve", "solve", "compare", "compare"]
    lots = {
        play(
            RSA(solutions=2, rounds=0),
            scripted(solve=["a", "b"], compare="<verdict>tie</verdict>"),
            seed=seed,
        ).answer.text
        for seed in range(20)
    }
    assert lots == {"a", "b"}


def tournament(scores, consolidate, **settings):
    """The texts that a consolidation sees and that a knock-out sees."""
    count = len(scores)
    played = play(
        Tournament(solutions=count, **settings),
        scripted(
            solve=[f"text-{n}" for n in range(count)],
            score=[rf"\boxed{{{score}}}" for score in scores],
            consolidate=consolidate,
            compare="<verdict>1</verdict>",
        ),
    )
    seen = [[r.text[5:] for r in ask.built_on] for ask in played.asks if ask.name == "consolidate"]
    compared = {r.text[5:] for ask in played.asks if ask.name == "compare" for r in ask.built_on}
    return played, "".join(seen[0]) if seen else "", "".join(sorted(compared))


def test_the_best_scores_stay_and_those_with_the_right_conclusion_compete():
    played, seen, compared = tournament([3, 7, 0, 6, 5], "<keep>[2, 1]</keep>", keep=3)

    assert (seen, compared) == ("134", "13")
    assert played.names.count("compare") == 1
    assert [played.roles[name] for name in ("score", "consolidate", "compare")] == [
        "scorer", "selector", "selector",
    ]  # fmt: skip


def test_enough_perfect_scores_stay_alone():
    _, seen, _ = tournament([7, 6, 7, 7], "<keep>[]</keep>", keep=4, enough_perfect=3)

    assert seen == "023"


@pytest.mark.parametrize("said", ["<keep>[]</keep>", "none", "<keep>[9]</keep>"])
def test_all_stay_if_the_consolidation_names_none_or_is_unread(said):
    _, _, compared = tournament([1, 2, 3], said, keep=3)

    assert compared == "012"


def test_a_score_that_is_unread_comes_behind_all_others():
    played = play(
        Tournament(solutions=3, keep=2),
        scripted(
            solve=["a", "b", "c"],
            score=[r"\boxed{0}", r"\boxed{8}", r"\boxed{1}", "eight"],
            consolidate="<keep>[1]</keep>",
        ),
    )

    assert played.names.count("score") == 4
    consolidate = next(ask for ask in played.asks if ask.name == "consolidate")
    assert [reply.text for reply in consolidate.built_on] == ["a", "c"]
    assert played.answer.text == "a"


def test_the_tournament_has_the_published_number_of_requests():
    played, _, _ = tournament([5] * 16, "<keep>[]</keep>")

    assert len(played.asks) == 16 + 16 + 1 + 11


# Static


def test_static_verifies_improves_and_merges_line_by_line():
    program = Static(without=2)
    played = play(
        program,
        scripted(
            solve=["a", "b", "c", "d"],
            verify=["ra", "rb", "rc", "rd"],
            improve=["a2", "b2", "c2", "d2"],
            merge=["ab", "cd", "abcd"],
        ),
    )

    assert played.names.count("merge") == 3
    assert len(played.asks) == program.expected_requests() == 15
    texts = [[r.text for r in ask.built_on] for ask in played.asks if ask.name == "merge"]
    assert texts == [["a2", "b2"], ["c2", "d2"], ["ab", "cd"]]
    assert played.answer.text == "abcd"
    assert "ra" in played.said("improve")[0]


def test_static_begins_along_its_approaches():
    program = Static(approaches=2, without=1, solutions=1, verifications=0, combine="select")
    named = "<approach>sieve</approach> and <approach>count</approach><approach>x</approach>"
    played = play(
        program, scripted(approaches=named, solve=["a", "b", "c"], select="<select>2</select>")
    )

    assert played.names == ["approaches", "solve", "solve", "solve", "select"]
    assert "sieve" in played.prompt(1)
    assert "count" in played.prompt(2)
    assert played.asks[3].messages == MESSAGES
    assert played.answer.text == "b"
    assert program.expected_requests() == 5


def test_static_without_readable_approaches_solves_without_one():
    program = Static(approaches=2, without=0, solutions=1, verifications=0)
    played = play(program, scripted(approaches="none", solve="a"))

    assert played.names == ["approaches", "approaches", "solve"]
    assert played.answer.text == "a"


def test_static_without_any_line_is_refused():
    with pytest.raises(ValidationError, match="nothing would be solved"):
        Static(approaches=0, without=0)


# Debate and dialogue


def test_debate_shows_each_side_what_was_said():
    played = play(Debate(turns=3), scripted(argue=["four", "three", "no"], conclude="4"))

    assert played.names == ["argue", "argue", "argue", "conclude"]
    assert [ask.role for ask in played.asks] == ["", "opponent", "", ""]
    assert "Side A:\nfour" in played.prompt(1)
    assert "You are side B" in played.prompt(1)
    assert "Side B:\nthree" in played.prompt(2)
    assert all(text in played.prompt(3) for text in ("four", "three", "no", TASK))
    assert played.answer.text == "4"


def test_debate_goes_on_without_an_unread_turn():
    played = play(Debate(turns=2), scripted(argue=[None, None, "three"], conclude="4"))

    assert "Side A" not in played.prompt(3).split("Before you answer")[1]


def test_dialogue_goes_on_in_one_conversation():
    played = play(Dialogue(turns=1), scripted(answer=["three", "four"], user="And 2?"))

    assert played.names == ["answer", "user", "answer"]
    assert "three" in played.prompt(1)
    assert [turn["content"] for turn in played.asks[2].messages] == [TASK, "three", "And 2?"]
    assert [turn["role"] for turn in played.asks[2].messages] == ["user", "assistant", "user"]
    assert (played.asks[1].role, played.asks[1].trainable) == ("user", False)
    assert played.answer.text == "four"


# Length control


def test_length_control_rewrites_until_the_length_fits():
    played = play(
        LengthControl(least=2, most=3),
        scripted(answer="one two three four", adjust=["one", "one two"]),
    )

    assert played.names == ["answer", "adjust", "adjust"]
    assert "at least 2 and at most 3" in played.prompt(0)
    assert "4 words" in played.prompt(1)
    assert "1 words" in played.prompt(2)
    assert played.answer.text == "one two"


def test_length_control_takes_the_nearest_length():
    replies = scripted(answer="a b c d e", adjust=["a b c d", "a"])
    played = play(LengthControl(least=3, most=3), replies)

    assert played.answer.text == "a b c d"


def test_a_range_that_is_empty_is_refused():
    with pytest.raises(ValidationError, match="`most` only 3"):
        LengthControl(least=4, most=3)


# Interview


def test_interview_asks_a_fixed_sequence_in_one_conversation():
    program = Interview(auxiliary=2, questions=("Q1?", "Q2?", "Q3?"))
    system = Message(role="system", content="Be brief.")
    played = play(
        program, scripted(interview=["A1", "A2"], answer="four"), messages=(system, *MESSAGES)
    )

    assert played.names == ["interview", "interview", "answer"]
    turns = [turn["content"] for turn in played.asks[2].messages]
    assert turns == ["Be brief.", "Q1?", "A1", "Q2?", "A2", TASK]
    assert [turn["content"] for turn in played.asks[0].messages] == ["Be brief.", "Q1?"]
    assert played.answer.text == "four"


def test_interview_draws_from_the_same_domain_but_never_the_question_itself():
    pool = (TASK, "a?", "b?", "c?")
    program = Interview(auxiliary=3, selection="iid", same_domain=pool)

    orders = set()
    for seed in range(10):
        played = play(program, scripted(interview="x", answer="y"), seed=seed)
        orders.add(tuple(ask.messages[-1]["content"] for ask in played.asks[:-1]))
    assert {frozenset(order) for order in orders} == {frozenset(pool[1:])}
    assert len(orders) > 1


def test_interview_draws_from_other_domains():
    domains = {"law": ("l1?", "l2?"), "art": ("a1?",)}
    program = Interview(auxiliary=3, selection="stationary_ood", other_domains=domains)
    played = play(program, scripted(interview="x", answer="y"))

    assert {ask.messages[-1]["content"] for ask in played.asks[:-1]} == {"l1?", "l2?", "a1?"}


def test_interview_lets_a_model_write_all_questions_at_once():
    program = Interview(
        auxiliary=2, selection="llm_preset", instructions=("socratic", "synergistic")
    )
    written = "<question>Q1?</question><question>Q2?</question><question>Q3?</question>"
    played = play(program, scripted(ask=written, interview=["A1", "A2"], answer="four"))

    assert played.names == ["ask", "interview", "interview", "answer"]
    assert played.asks[0].role == "interviewer"
    assert not played.asks[0].trainable
    assert "assumptions" in played.prompt(0)
    assert "fields that it does not mention" in played.prompt(0)
    assert "next 2 questions" in played.prompt(0)
    assert len(played.asks) == program.expected_requests()


def test_interview_lets_a_model_write_each_question_after_the_answer_before():
    program = Interview(auxiliary=2, selection="llm_adaptive")
    played = play(
        program,
        scripted(
            ask=["<question>Q1?</question>", "no tag", "<question>Q2?</question>"],
            interview=["A1", "A2"],
            answer="four",
        ),
    )

    assert played.names == ["ask", "interview", "ask", "ask", "interview", "answer"]
    assert "A1" in played.prompt(2)
    assert program.expected_requests() == 5


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"questions": ("one?",)}, "questions"),
        ({"selection": "iid", "same_domain": ("a?", "b?")}, "same_domain"),
        ({"selection": "stationary_ood"}, "other_domains"),
    ],
)
def test_too_few_questions_for_the_selection_are_refused(settings, field):
    with pytest.raises(ValidationError, match=f"`{field}` has"):
        Interview(auxiliary=3, **settings)


# Planner


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_the_planner_calls_tools_and_submits():
    played = play(
        Planner(),
        scripted(
            plan=[
                call("approaches"),
                call("solver", approach="sieve") + call("solver"),
                call("verifier", solution=1),
                call("improver", solution=1, report="wrong sum"),
                call("merger", solutions=[2, 3]) + call("selector", solutions=[1, 2]),
                call("submit", solution=4),
            ],
            approaches="<approach>sieve</approach><approach>count</approach>",
            solver=["s1", "s2"],
            verifier="the report",
            improver="s3",
            merger="s4",
            selector="<select>2</select>",
        ),
    )

    assert [name for name in played.names if name != "plan"] == [
        "approaches", "solver", "solver", "verifier", "improver", "merger", "selector",
    ]  # fmt: skip
    plans = played.said("plan")
    assert "- sieve\n- count" in plans[1]
    assert "14 calls are left" in plans[1]
    assert "sieve" in played.said("solver")[0]
    assert "Solution 1:\ns1" in plans[2]
    assert "Solution 2:\ns2" in plans[2]
    assert "the report" in plans[3]
    assert "wrong sum" in played.said("improver")[0]
    assert all(text in played.said("merger")[0] for text in ("s2", "s3"))
    assert "The best of them is solution 2." in plans[5]
    assert played.answer.text == "s4"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (call("solve"), "there is no tool `solve`"),
        (call("verifier", solution=1), "there are 0 solutions"),
        (call("merger", solutions=[1, 2]), "must be numbers of solutions"),
        (call("merger", solutions=[1]), "2 to 4 numbers"),
        ("<tool_call>solver</tool_call>", "there is no tool ``"),
        (call("submit", solution="1"), "must be the number of a solution"),
    ],
)
def test_the_planner_is_told_what_is_wrong_with_a_call(wrong, said):
    played = play(
        Planner(), scripted(plan=[wrong, call("solver"), call("submit", solution=1)], solver="s")
    )

    assert said in played.said("plan")[1]
    assert played.answer.text == "s"


def test_the_planner_must_submit_after_its_calls():
    played = play(Planner(max_calls=2), scripted(plan=call("solver") * 3, solver=["s1", "s2"]))

    assert played.names == ["plan", "solver", "solver", "plan"]
    assert "Not called" in played.said("plan")[1]
    assert "submit a solution now" in played.said("plan")[1]
    assert played.answer.text == "s2"


def test_a_planner_without_calls_answers_itself():
    played = play(Planner(), scripted(plan="It is 4."))

    assert played.names == ["plan", "plan"]
    assert played.answer.text == "It is 4."


def test_the_planner_sends_its_tools_in_the_field_of_the_protocol():
    played = play(
        Planner(interface="tools"),
        scripted(plan=[call("solver"), call("submit", solution=1)], solver="s"),
    )

    names = [tool["function"]["name"] for tool in played.asks[0].body["tools"]]
    assert names[-1] == "submit"
    assert len(names) == 7
    assert [turn["role"] for turn in played.asks[2].messages] == ["user", "assistant", "tool"]


# Tools


def test_tools_run_python_and_go_on_with_its_output():
    played = play(
        Tools(),
        scripted(
            work=["Let me see." + call("python", code="print(1)") * 2, "It is 4."],
            python=["1", "2"],
        ),
    )

    assert played.names == ["work", "python", "python", "work"]
    assert played.asks[1].messages == (Message(role="user", content="print(1)"),)
    assert (played.asks[1].role, played.asks[1].trainable) == ("python", False)
    assert [(t["role"], t["content"]) for t in played.asks[3].messages[2:]] == [
        ("tool", "1"), ("tool", "2"),
    ]  # fmt: skip
    assert played.asks[0].body["tools"][0]["function"]["name"] == "python"
    assert played.asks[1].body == {}
    assert played.answer.text == "It is 4."


def test_tools_end_after_the_last_call():
    more = call("python", code="1")
    played = play(Tools(max_calls=2), scripted(work=[more, more * 2, more], python="1"))

    assert played.names == ["work", "python", "work", "python", "work"]
    assert played.asks[4].body["tool_choice"] == "none"
    assert "No calls are left" in played.prompt(4)
    assert "Not run" in played.prompt(4)
    assert played.answer.text == more


def test_tools_by_text_explain_the_call_and_answer_in_a_turn_of_the_user():
    played = play(
        Tools(interface="text"), scripted(work=[call("python", code="1"), "4"], python="out")
    )

    assert "at most 8 times" in played.prompt(0)
    assert played.asks[0].body == {}
    assert played.asks[2].messages[-1] == Message(role="user", content="Output 1:\nout")


@pytest.mark.parametrize(
    ("wrong", "said"), [(call("bash", code="ls"), "no tool `bash`"), (call("python"), "`code`")]
)
def test_tools_say_what_is_wrong_with_a_call(wrong, said):
    played = play(Tools(), scripted(work=[wrong, "4"]))

    assert played.names == ["work", "work"]
    assert said in played.prompt(1)


def test_published_defaults():
    assert Refine().expected_requests() == (4 + 16) * 3
    assert SelfCheck().expected_requests() == 2 + 30 * 3
    assert ReasoningCache().expected_requests() == 5
    assert Static().expected_requests() == 8 * 3 + 5
    assert Planner().expected_requests() == 31
