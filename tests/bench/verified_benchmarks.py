"""`manifests/rlvr-eval.toml` and the other verified benchmarks, small, on SmolLM2-135M.

    python -m tests.bench.verified_benchmarks FOLDER --data DATA [--limit 8] [--tokens 96]
    mbt run FOLDER/study.toml

DATA has the official files of gsm8k, math, ifeval, ifbench, mbpp and humaneval, one folder each.
AIME, BeyondAIME, DeepScaleR, IF-RLVR, APPS and the RLVR mix are sets of our own in their official
layouts: their numbers say nothing of these benchmarks. The examples of GSM8K are the last
questions of its test set, which are not asked. Writes FOLDER/study.toml and what it reads.
"""

import argparse
import gzip
import json
import shutil
import tomllib
from itertools import zip_longest
from pathlib import Path

import tomli_w

MANIFEST = Path(__file__).parents[2] / "manifests/rlvr-eval.toml"
EXAMPLES = 100

COMPETITION = [
    ("How many whole numbers from 1 to 100 are multiples of 3 or of 5?", 47),
    ("What is the remainder when $2^{100}$ is divided by 7?", 2),
    ("How many diagonals has a convex polygon with 12 sides?", 54),
    ("Find the sum of the digits of $10^{20} - 1$.", 180),
    ("How many trailing zeros has $100!$ in base ten?", 24),
    ("How many subsets of $\\{1, \\dots, 8\\}$ have exactly three elements?", 56),
]
INSTRUCTIONS = [
    ("Name a river. Use the word blue once.", "keywords:word_once", {"keyword": "blue"}),
    ("Describe a lake. Use no commas.", "punctuation:no_comma", None),
    ("Write about rain, all in small letters.", "change_case:english_lowercase", None),
    ("Say why bread rises. Answer all in capitals.", "change_case:english_capital", None),
    ("Name two tools. Put the whole answer in double quotes.", "startend:quotation", None),
]
PROGRAMS = [
    ("Print the sum of the numbers from 1 to n.", ["4\n", "1\n"], ["10\n", "1\n"]),
    ("Read a word and print it backwards.", ["abc\n", "x\n"], ["cba\n", "x\n"]),
    ("Read two whole numbers on one line and print the larger.", ["3 8\n"], ["8\n"]),
    ("Read a line and print how many words it has.", ["a b c\n"], ["3\n"]),
    ("Read n and print n lines, each the word yes.", ["2\n"], ["yes\nyes\n"]),
]
MIX = [
    ("gsm8k", "Ann has 3 pens and buys 4. How many has she?", "7"),
    ("gsm8k", "A box holds 6 eggs. How many do 5 boxes hold?", "30"),
    ("MATH", "What is half of one, as a fraction in a box?", "\\frac{1}{2}"),
    ("MATH", "Solve $3x = 12$. Put the answer in a box.", "4"),
    ("ifeval", "Name three rivers without any commas.", '{"func_name": "validate_no_commas"}'),
]


def said(text):
    return [{"role": "user", "content": text}]


def own_sets():
    """Kind to its records."""
    problems = [{"problem": problem, "answer": answer} for problem, answer in COMPETITION]
    solved = [
        {"problem": p, "answer": str(a), "solution": f"It is $\\boxed{{{a}}}$."}
        for p, a in COMPETITION
    ]
    rules = [
        {
            "key": f"own{number}",
            "messages": said(prompt),
            "ground_truth": repr([{"instruction_id": [rule], "kwargs": [arguments]}]),
        }
        for number, (prompt, rule, arguments) in enumerate(INSTRUCTIONS)
    ]
    programs = [
        {
            "id": number,
            "question": text,
            "solutions": "[]",
            "input_output": json.dumps({"inputs": inputs, "outputs": outputs}),
            "difficulty": "introductory",
            "url": "",
            "starter_code": "",
        }
        for number, (text, inputs, outputs) in enumerate(PROGRAMS)
    ]
    mix = [{"dataset": d, "messages": said(text), "ground_truth": t} for d, text, t in MIX]
    return {
        "aime": problems,
        "beyond_aime": problems,
        "deepscaler": solved,
        "if_multi_constraints": rules,
        "apps": programs,
        "rlvr_mixed": mix,
    }


def lines_of(path):
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def write(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def prepare(folder, data):
    """Write the files; name of a file to its path."""
    files = {
        name: folder / f"{name}.jsonl"
        for name in ("gsm8k", "examples", "math", "ifeval", "ifbench", "mbpp", "humaneval")
    }
    gsm8k = lines_of(data / "gsm8k/test.jsonl")
    write(files["gsm8k"], gsm8k[:-EXAMPLES])
    write(files["examples"], gsm8k[-EXAMPLES:])
    subjects = [lines_of(path) for path in sorted((data / "math").glob("*_test.jsonl"))]
    write(files["math"], [line for row in zip_longest(*subjects) for line in row if line])
    shutil.copyfile(data / "ifeval/input_data.jsonl", files["ifeval"])
    shutil.copyfile(data / "ifbench/IFBench_test.jsonl", files["ifbench"])
    shutil.copyfile(data / "mbpp/mbpp.jsonl", files["mbpp"])
    with gzip.open(data / "humaneval/HumanEval.jsonl.gz", "rt", encoding="utf-8") as packed:
        files["humaneval"].write_text(packed.read(), encoding="utf-8")
    for kind, records in own_sets().items():
        files[kind] = folder / f"{kind}.jsonl"
        write(files[kind], [json.dumps(record) for record in records])
    return files


def study(files, limit, tokens):
    """The manifest with files in place of the hub, limits, and the other benchmarks."""
    tree = tomllib.loads(MANIFEST.read_text(encoding="utf-8"))
    tree["study"]["name"] = "verified"
    tree["groups"]["small"] = ["smollm2-135m"]
    del tree["models"]["qwen3-1.7b-base"]
    tree["sampling"]["greedy"]["max_tokens"] = tokens
    for benchmark in tree["benchmarks"].values():
        kind = benchmark["kind"]
        del benchmark["source"]
        path = str(files[kind])
        benchmark |= {"files": {"test": path}, "limit": limit}
        if kind == "gsm8k" and "shots" in benchmark:
            benchmark["files"]["train"] = str(files["examples"])
        if kind == "mbpp":
            benchmark |= {"files": {"test": path, "prompt": path}, "whole_file": True}
    for kind in own_sets():
        tree["benchmarks"][kind] = {
            "kind": kind,
            "files": {"test": str(files[kind])},
            "limit": limit,
        }
    for stage in tree["stage"]:
        if isinstance(sampling := stage.get("sampling"), dict):
            sampling.pop("max_tokens", None)
    prompts = {
        "competitions": (["aime", "beyond_aime", "deepscaler"], "math"),
        "as-is": (["if_multi_constraints", "rlvr_mixed"], "as_is"),
        "programs": (["apps"], "code"),
    }
    more = [
        {
            "kind": "rollout",
            "name": name,
            "matrix": {"benchmark": kinds, "split": "test", "model": "@small", "prompt": prompt},
            "sampling": "greedy",
        }
        for name, (kinds, prompt) in prompts.items()
    ]
    more.append(
        {
            "kind": "judge",
            "name": "more-checked",
            "rollouts": list(prompts),
            "matrix": {"judge": "verifier"},
        }
    )
    more.append(
        {
            "kind": "score",
            "name": "more-scores",
            "rollouts": list(prompts),
            "verdicts": "more-checked",
            "metrics": ["verified", "tokens"],
        }
    )
    report = tree["stage"].pop()
    report["scores"].append("more-scores")
    report["tables"] = ["main_results"]
    del report["reference"]
    tree["stage"] += [*more, report]
    return tree


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--limit", type=int, default=8)
    arguments.add_argument("--tokens", type=int, default=96)
    options = arguments.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()
    files = prepare(folder, options.data)
    tree = study(files, options.limit, options.tokens)
    (folder / "study.toml").write_text(tomli_w.dumps(tree), encoding="utf-8")


if __name__ == "__main__":
    main()
