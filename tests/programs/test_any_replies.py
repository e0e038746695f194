"""Whatever comes back, a scaffold ends within its requests, returns a Reply and repeats itself."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbt_cli.core.chat import Reply
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.registry import PROGRAMS
from tests.programs.player import play

CALLS = (
    '<tool_call>{"name": "solver", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "improver", "arguments": {"solution": 1}}</tool_call>',
    '<tool_call>{"name": "merger", "arguments": {"solutions": [1, 2]}}</tool_call>',
    '<tool_call>{"name": "selector", "arguments": {"solutions": [1, 2]}}</tool_call>',
    '<tool_call>{"name": "submit", "arguments": {"solution": 2}}</tool_call>',
    '<tool_call>{"name": "submit", "arguments": {"solution": []}}</tool_call>',
    '<tool_call>{"name": "verifier", "arguments": {"solution": true}}</tool_call>',
    '<tool_call>{"name": "selector", "arguments": {"solutions": [[1], 2]}}</tool_call>',
    '<tool_call>{"name": "python", "arguments": {"code": "print(1)"}}</tool_call>' * 3,
    '<tool_call>{"name": "python", "arguments": []}</tool_call>',
    "<tool_call>[</tool_call>",
)
TEXTS = (
    *("Four.", "", " ", "{{ task }}", "## Solution", "## Self Evaluation\n## Solution\nx"),
    *("<think>Hm", "<think>Hm</think>", "<think>Hm</think>Four.", r"\boxed{1}", r"\boxed{0.5}"),
    *(r"\boxed{7}", r"\boxed{8}", r"\boxed{1/0}", r"\boxed{}", "<verdict>yes</verdict>"),
    *("<verdict>no</verdict>", "<verdict>1</verdict>", "<verdict>2</verdict>", "<verdict>tie"),
    *("<select>1</select>", "<select>9</select>", "<keep>[1]</keep>", "<keep>[]</keep>"),
    *("<approach>A</approach>", "<question>Q?</question>", "<question></question>"),
    *CALLS,
)
REPLIES = st.builds(
    Reply,
    text=st.none() | st.sampled_from(TEXTS) | st.text(string.printable, max_size=20),
    reasoning=st.none() | st.just("Hm."),
    finish_reason=st.sampled_from(("stop", "length", None)),
    failure=st.sampled_from((None, None, None, None, "timeout: no reply")),
)
SMALL = {
    "critique": [{"rounds": 0}, {"rounds": 2}],
    "debate": [{"turns": 1}, {}],
    "dialogue": [{"turns": 0}, {}],
    "interview": [
        {"auxiliary": 0},
        {},
        {"selection": "llm_preset"},
        {"selection": "llm_adaptive"},
        {"selection": "iid", "same_domain": ("a?", "b?", "c?")},
        {"selection": "stationary_ood", "other_domains": {"x": ("a?",), "y": ("a?", "b?")}},
    ],
    "length_control": [{"least": 1, "most": 1}, {"attempts": 0}],
    "planner": [{"max_calls": 1}, {"max_calls": 4}, {"max_calls": 3, "interface": "tools"}],
    "reasoning_cache": [{"iterations": 1}, {}],
    "refine": [{"pool": 1, "rounds": 1}, {"pool": 2, "verifications": 2}, {"pool": 3}],
    "rsa": [
        {"solutions": 1, "rounds": 0},
        {"solutions": 4, "rounds": 2},
        {"solutions": 3, "rounds": 1, "block": 2, "selection": "single"},
    ],
    "embedding": [{}],
    "selfcheck": [
        {"max_iterations": 0},
        {"max_iterations": 4, "verifications": 2, "return_if_not_found": False},
        {"max_iterations": 5, "correct_count": 2, "error_count": 2},
    ],
    "single": [{}],
    "static": [
        {"approaches": 2, "without": 0},
        {"without": 1, "solutions": 1, "verifications": 0},
        {"approaches": 1, "without": 1, "combine": "select"},
    ],
    "tools": [{"max_calls": 1}, {"max_calls": 3, "interface": "text"}],
    "tournament": [{"solutions": 1}, {"solutions": 4, "keep": 2, "enough_perfect": 3}],
}
CASES = [(kind, settings) for kind, several in SMALL.items() for settings in several]


def test_every_program_is_here():
    assert set(SMALL) == set(PROGRAMS.kinds())


@pytest.mark.parametrize(("kind", "fields"), CASES)
@settings(max_examples=15)
@given(data=st.data())
def test_it_ends_within_its_requests_and_repeats_itself(kind, fields, data):
    program = PROGRAMS.make({"kind": kind, **fields})
    replies = data.draw(st.lists(REPLIES, min_size=1, max_size=12))

    def respond(ask, number):
        said = sha256_of([ask.name, list(ask.messages), number])  # whatever the order of draws
        return Reply(**reply_fields(replies[int(said[:8], 16) % len(replies)]), seed=number)

    played = play(program, respond)
    again = play(program, respond)

    assert isinstance(played.answer, Reply)
    assert 1 <= len(played.asks) <= 2 * program.expected_requests()
    assert again.answer == played.answer
    assert [sent(ask) for ask in again.asks] == [sent(ask) for ask in played.asks]
    assert {ask.role for ask in played.asks} <= {"", *program.roles}
    made = played.answer in played.replies or (played.answer.failure or "").startswith("not_found")
    assert made


@pytest.mark.parametrize(("kind", "fields"), CASES)
def test_replies_that_never_come_fail_the_rollout(kind, fields):
    played = play(PROGRAMS.make({"kind": kind, **fields}), lambda ask, number: None)

    assert played.answer.failure == "timeout: no reply"


def reply_fields(reply):
    names = ("text", "reasoning", "finish_reason", "failure")
    return {name: getattr(reply, name) for name in names}


def sent(ask):
    return ask.name, ask.role, ask.messages, dict(ask.body), [reply.seed for reply in ask.built_on]
