"""Scaffolds through the command line: on a chat server, and with Python as a tool."""

import polars as pl
import pytest

from mbt_cli.backends.python import PythonBackend
from mbt_cli.core.chat import Request
from tests.cli.chat_server import ChatServer

STUDY = """
[study]
name = "agents"
seed = 1

[models.own]
backend = {{ kind = "openai", base_url = "{url}", id = "stub" }}
sampling = {{ temperature = 1, max_tokens = 64 }}

[models.python]
backend = {{ kind = "python", packages = [] }}
sampling = {{ temperature = 0, max_tokens = 64 }}

[benchmarks.tiny]
kind = "tinyhop"
limit = 2

[programs.refine-once]
kind = "refine"
pool = 2
verifications = 2
rounds = 1

[programs.short-rsa]
kind = "rsa"
solutions = 3
rounds = 1
block = 2

[[stage]]
kind = "rollout"
name = "answers"
matrix = {{ benchmark = "tiny", split = "validation", model = "own", program = [{programs}] }}
prompt = "answer"
samples = 2
{more}
"""
CALL = '{"code": "print(6 * 7)"}'


class Agent(ChatServer):
    """Reads the prompt and answers as the scaffold wants it."""

    def reply_to(self, body):
        asked = body["messages"][-1]["content"]
        if r"\boxed" in asked:
            return r"Incomplete. \boxed{0.5}"
        if "<verdict>" in asked:
            return "<verdict>2</verdict>"
        return "So <answer>Oslo</answer>"


class Caller(ChatServer):
    """Calls Python in the first turn, by the field of the protocol."""

    def _completion(self, body, kind, choice):
        if body.get("tools") and body["messages"][-1]["role"] == "user":
            function = {"name": "python", "arguments": CALL}
            call = {"id": "abc", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            choice = {"message": message, "finish_reason": "tool_calls"}
        return super()._completion(body, kind, choice)


def write(folder, url, programs, more=""):
    named = ", ".join(f'"{name}"' for name in programs)
    (folder / "study.toml").write_text(STUDY.format(url=url, programs=named, more=more))


def steps(folder, program):
    cell = "runs/agents/answers/benchmark=tiny/split=validation/model=own"
    return pl.read_parquet(folder / cell / f"program={program}/files/steps.parquet")


def rows(folder, program):
    cell = "runs/agents/answers/benchmark=tiny/split=validation/model=own"
    return pl.read_parquet(folder / cell / f"program={program}/rows.parquet")


def test_three_scaffolds_run_on_a_chat_server_and_again_for_nothing(mbt, workplace):
    programs = {"critique": 3, "refine-once": 12, "short-rsa": 3 + 3 + 2}
    with Agent() as server:
        write(workplace, server.base_url, programs)
        ran = mbt("run", "study.toml")
        asked = len(server.bodies)
        again = mbt("run", "study.toml")

    assert ran.code == again.code == 0, ran.err
    assert asked == len(server.bodies) == 4 * sum(programs.values())
    for program, count in programs.items():
        found = rows(workplace, program)
        assert found["steps"].to_list() == [count] * 4
        assert found["answer"].to_list() == ["Oslo"] * 4
        assert found["unread_steps"].sum() == found["failed_steps"].sum() == 0
    first = steps(workplace, "refine-once").head(12)
    verified = ["verify", "verify"]
    assert first["name"].to_list() == [
        "prove", *verified, "prove", *verified, "refine", *verified, "refine", *verified,
    ]  # fmt: skip


def test_a_run_of_python_is_a_step_and_its_output_goes_back(mbt, workplace):
    with Caller("It is <answer>42</answer>") as server:
        write(workplace, server.base_url, ["tools"], 'roles = { python = "python" }')
        ran = mbt("run", "study.toml")
        bodies = server.bodies

    assert ran.code == 0, ran.err
    first = steps(workplace, "tools").head(3)
    assert first["name"].to_list() == ["work", "python", "work"]
    assert first["model"].to_list() == ["own", "python", "own"]
    assert "<tool_call>" in first["reply"][0]
    assert first["reply"][1] == "42"
    assert rows(workplace, "tools")["answer"].to_list() == ["42"] * 4
    last = next(body for body in bodies if len(body["messages"]) == 3)
    _, asked, output = last["messages"]
    (call,) = asked["tool_calls"]
    assert call["function"] == {"name": "python", "arguments": CALL}
    assert (output["role"], output["content"]) == ("tool", "42")
    assert output["tool_call_id"] == call["id"]
    assert last["tools"][0]["function"]["name"] == "python"


def test_tools_without_a_model_that_runs_code_are_refused(mbt, workplace):
    write(workplace, "http://127.0.0.1:9/v1", ["tools"])

    checked = mbt("check", "study.toml")

    assert checked.code == 2
    assert "`tools` needs a model for `python`" in checked.err
    assert 'roles = { python = "NAME" }' in checked.err


def test_a_block_larger_than_the_pool_is_refused_by_check(mbt, workplace):
    write(workplace, "http://127.0.0.1:9/v1", ["short-rsa"])
    text = (workplace / "study.toml").read_text().replace("block = 2", "block = 3")
    (workplace / "study.toml").write_text(text)

    checked = mbt("check", "study.toml")

    assert checked.code == 2
    assert "programs.short-rsa" in checked.err
    assert "must be at most 2" in checked.err


def test_the_backend_that_runs_code_says_why_a_program_ended():
    backend = PythonBackend(timeout_seconds=1, packages=())

    def output(code):
        messages = ({"role": "user", "content": code},)
        with backend.open(None) as responder:
            found = responder.respond(Request("0" * 64, "q", 0, messages, 1, {}))
        return found["choices"][0]["message"]["content"]

    assert output("print(1)\nprint(2)") == "1\n2"
    assert output("x = 1") == "(the program printed nothing)"
    wrong = output("print(1)\n1/0")
    assert wrong.startswith('1\nTraceback (most recent call last):\n  File "<program>", line 2')
    assert wrong.endswith("ZeroDivisionError: division by zero")
    assert "limit of processor time" in output("while True: pass")


@pytest.mark.parametrize("code", ["open('/etc/passwd')", "import socket; socket.socket()"])
def test_programs_of_models_reach_no_files_and_no_network(code):
    messages = ({"role": "user", "content": code},)
    with PythonBackend(packages=()).open(None) as responder:
        found = responder.respond(Request("0" * 64, "q", 0, messages, 1, {}))

    assert "Error" in found["choices"][0]["message"]["content"]
