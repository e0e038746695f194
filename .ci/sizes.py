"""Hold the size budgets: a file 400 lines at most, a function 40, no cycle of big pieces.

Run by `make sizes`; prints every place that is over, and exits 1 if there is one.
"""

import ast
import sys
from pathlib import Path

FILE_LINES = 400
FUNCTION_LINES = 40
ROOT = Path(__file__).resolve().parents[1]


def places(path: Path) -> list[str]:
    """Every budget that one file breaks."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT)
    found = []
    if (lines := text.count("\n")) > FILE_LINES:
        found.append(f"{name}: {lines} lines, {FILE_LINES} at most")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)
            if length > FUNCTION_LINES:
                where = f"{name}:{node.lineno}"
                found.append(f"{where}: `{node.name}` has {length} lines, {FUNCTION_LINES} at most")
    return found


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the docstring: a well explained function is not a long one."""
    if ast.get_docstring(node) is None:
        return 0
    first = node.body[0]
    return (first.end_lineno or first.lineno) - first.lineno + 1


if __name__ == "__main__":
    over = [place for path in sorted((ROOT / "mbt_cli").rglob("*.py")) for place in places(path)]
    sys.stdout.write("\n".join([*over, f"{len(over)} places over the size budgets\n"]))
    sys.exit(bool(over))
