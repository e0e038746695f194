"""The proof of a reply, without thinking and without the prover's own verdict."""

import pytest

from mbt_cli.core.proof_text import proof_of

PROOF = "Let $x = 1$.\n\nThen $x^2 = 1$, so \\boxed{1}."
VERDICT = "It holds.\n\nBased on this, the score is:\n\\boxed{0.5}"


@pytest.mark.parametrize(
    "reply",
    [
        f"## Solution\n{PROOF}\n\n## Self Evaluation\n{VERDICT}",
        f"{PROOF}\n## Self Evaluation\n{VERDICT}",
        f"## Solution\n{PROOF}",
        PROOF,
        f"# SOLUTION:\n{PROOF}\n### Self-evaluation\n{VERDICT}",
        f"**Solution**\n{PROOF}\n**Self Evaluation:**\n{VERDICT}",
        f"## Solution ##\n{PROOF}\n## Self Assessment ##\n{VERDICT}",
        f"Here is my attempt.\n\n## Solution\n{PROOF}\n## Self Evaluation\n{VERDICT}",
        f"<think>## Solution\nNo.\n## Self Evaluation\nBad.</think>## Solution\n{PROOF}",
        f"## Solution\nA draft.\n## Self Evaluation\nBad.\n## Solution\n{PROOF}\n"
        f"## Self Evaluation\n{VERDICT}",
        f"## Solution\n{PROOF}\n## Self Evaluation\n{VERDICT}\n## Self Evaluation\nAgain: fine.",
        f"{PROOF}\n\nFinal overall score: \\boxed{{1}}",
        f"{PROOF}\n\nThe final overall score should be:\n\\boxed{{0.5}}",
        f"{PROOF}\nSelf evaluation score: $\\boxed{{7/7}}$.",
        f"## Solution\n{PROOF}\n## Self Evaluation",
        f"Intro.\n**Solution.**\n{PROOF}\n__Self-Evaluation__\n{VERDICT}",
        f"## Solution 1\nA\n## Self Evaluation\nA gap.\n## Solution 2\n{PROOF}\n## Self Evaluation",
        f"## Solution\nOne.\n## Self Evaluation\nA gap.\n## Revised solution\n{PROOF}",
        f"### **Final Solution:**\n{PROOF}\n### **Self Evaluation**\n{VERDICT}",
        f"## Solution\nOne.\n## Self Evaluation\nA gap.\n## Solution\nTwo.\n## Self Evaluation\n"
        f"Worse.\n## Solution\n{PROOF}",
        f"**Solution**\nA.\n## Self Evaluation\nA gap.\n**Solution**\n{PROOF}\n__Self Evaluation__",
        f"## Solution\n{PROOF}\n## Self Evaluation\nA gap.\n## Solution\n## Self Evaluation\nFine.",
    ],
)
def test_the_proof_is_left(reply):
    assert proof_of(reply, "self_evaluation") == PROOF


@pytest.mark.parametrize(
    "reply",
    [
        PROOF,
        "It is long.\nSelf evaluation of integrals is fun.\n\nThe score of the game is 3.",
        "So the maximal score is\n\n$n = 5$, as shown.",
        "### Solution of part (a)\nx\n### Solution of part (b)\ny",
        "**Solution.** Let $x = 1$.\n**Self evaluation** is not asked for here.",
        "Lemma.\n> ## Self Evaluation\nSo it holds.",
    ],
)
def test_nothing_else_is_taken_off(reply):
    assert proof_of(reply, "self_evaluation") == reply


def test_without_a_cut_all_text_outside_the_thinking_is_graded():
    assert proof_of(f"<think>a</think>x\n## Self Evaluation\n{VERDICT}").startswith("x\n## Self")


@pytest.mark.parametrize("reply", [None, "", "<think>x", "<think>x</think> ", "x</think>"])
def test_thinking_is_no_proof(reply):
    assert proof_of(reply) == ""
    assert proof_of(reply, "self_evaluation") == ""


def test_a_reply_with_a_verdict_alone_has_no_proof():
    assert proof_of(f"## Self Evaluation\n{VERDICT}", "self_evaluation") == ""


def test_solutions_without_a_verdict_between_them_are_one_proof():
    reply = "## Solution\nCase 1.\n## Solution\nCase 2.\n## Self Evaluation\nFine."
    assert proof_of(reply, "self_evaluation") == "Case 1.\n## Solution\nCase 2."
