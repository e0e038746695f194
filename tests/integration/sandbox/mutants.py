"""Wrong programs made from right ones, and what a plain interpreter says about a program.

python mutants.py judge < programs.jsonl     a plain verdict for each {"program": ..., "tests": ...}
"""

import ast
import json
import os
import random
import resource
import sys
from collections.abc import Iterator

CPU_SECONDS = 1
_SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def mutants(program: str, count: int, seed: str, function: str | None = None) -> list[str]:
    """Up to `count` different programs that differ from a program in one place.

    With a function, that place is in it: imports and functions beside it are the prompt's own,
    which tests have as the prompt gives them.
    """
    draws = random.Random(seed)
    places = len(list(_changes(_part(ast.parse(program), function))))
    found: dict[str, None] = {}
    for number in draws.sample(range(places), places):
        tree = ast.parse(program)
        change = list(_changes(_part(tree, function)))[number]
        change()
        text = ast.unparse(ast.fix_missing_locations(tree))
        if text != ast.unparse(ast.parse(program)):
            found[text] = None
        if len(found) == count:
            break
    return list(found)


def _part(tree: ast.Module, function: str | None) -> ast.AST:
    """The function of this name; None is all."""
    named = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    return tree if function is None else next(named)


def _changes(tree: ast.AST) -> Iterator:
    """What can be changed in a tree, each as a function that does it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPS:
            yield _setting(node, "op", _SWAPS[type(node.op)]())
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
            yield _setting(node, "ops", [_SWAPS[type(node.ops[0])](), *node.ops[1:]])
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield _setting(node, "value", node.value + 1)
            yield _setting(node, "value", node.value - 1)
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            yield _setting(node, "value", not node.value)
        elif isinstance(node, ast.Constant) and type(node.value) is str and node.value:
            yield _setting(node, "value", node.value[1:])
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            yield _setting(node, "test", ast.UnaryOp(ast.Not(), node.test))
        elif isinstance(node, ast.Return):
            yield _setting(node, "value", ast.Constant(None))
            if node.value is not None:
                yield _setting(node, "value", ast.List([node.value], ast.Load()))
        for name in ("body", "orelse"):
            held = getattr(node, name, None)
            if isinstance(held, list) and len(held) > 1:
                for place in range(len(held)):
                    if not isinstance(held[place], ast.FunctionDef | ast.ClassDef):
                        yield _setting(node, name, held[:place] + held[place + 1 :])


def _setting(node: ast.AST, name: str, value: object) -> object:
    return lambda: setattr(node, name, value)


def judge(program: str, tests: str) -> bool:
    """Whether a plain interpreter runs a program and its tests to the end, within the limit."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            random.seed(0)
            exec(compile(f"{program}\n{tests}", "<plain>", "exec"), {"__name__": "plain"})
            os.write(write, b"1")
        finally:
            os._exit(0)
    os.close(write)
    passed = os.read(read, 1) == b"1"
    os.close(read)
    os.waitpid(pid, 0)
    return passed


if __name__ == "__main__":
    for line in sys.stdin:
        one = json.loads(line)
        sys.stdout.write(f"{json.dumps(judge(one['program'], one['tests']))}\n")
        sys.stdout.flush()
