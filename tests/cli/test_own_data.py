"""Data of one's own: from a file with its own columns to the table and the page."""

import polars as pl
import pytest

STUDY = """
[study]
name = "mine"

[models.parrot]
backend = { kind = "canned", replies = ["So it is <answer>(A)</answer>"] }
sampling = { temperature = 0, max_tokens = 32 }

[benchmarks.quiz]
kind = "multiple_choice"
files = { test = "quiz.csv" }
columns = { question = "prompt", options = ["w", "x", "y"], answer_index = "key" }
filter = { topic = ["art", "law"] }

[[stage]]
kind = "rollout"
matrix = { benchmark = "quiz", model = "parrot" }
prompt = "choice"
[[stage]]
kind = "score"
METRICS
[[stage]]
kind = "report"
"""
QUIZ = (
    "prompt,w,x,y,key,topic\n"
    '"One, or two?",one,two,,0,art\n'
    "Which?,one,two,three,2,law\n"
    "Left out?,one,two,three,0,maths\n"
)
FOUR_COLUMNS = "id,Prompt,label,topic\nn,Capital of Norway?,Oslo,geo\np,Capital of Peru?,Lima,geo\n"


@pytest.fixture
def quiz(workplace):
    (workplace / "quiz.csv").write_text(QUIZ)
    (workplace / "mine.toml").write_text(STUDY.replace("METRICS", ""))
    return workplace


def test_multiple_choice_in_a_csv_comes_to_a_table(mbt, quiz):
    ran = mbt("run", "mine.toml")

    assert ran.code == 0, ran.err
    # "A" is an article for the comparison of words, and would never be right
    assert "50.0" in ran.out
    questions = pl.read_parquet(next((quiz / "runs/mine/questions").rglob("*.parquet")))
    assert questions["question"][0] == "One, or two?\n\nA. one\nB. two"
    assert questions["answer"].to_list() == ["A", "C"]
    shown = mbt("show", "mine.toml").out
    assert '["exact_match","answer_rate","tokens"]' in shown


def test_metrics_of_words_have_no_number_for_letters_and_those_of_k_follow_the_letters(mbt, quiz):
    metrics = 'metrics = ["exact_match", "f1_score", "pass_at_k", "maj_at_k"]'
    (quiz / "mine.toml").write_text(STUDY.replace("METRICS", metrics))

    ran = mbt("run", "mine.toml")

    assert ran.code == 0, ran.err
    files = (quiz / "runs/mine/score").rglob("rows*.parquet")
    found = pl.concat([pl.read_parquet(file) for file in files], how="diagonal_relaxed")
    names = set(found["metric"])
    assert "exact_match" in names
    assert "f1_score" not in names


def test_a_filter_that_nothing_passes_names_the_values_that_there_are(mbt, quiz):
    text = STUDY.replace("METRICS", "").replace('["art", "law"]', '"physics"')
    (quiz / "mine.toml").write_text(text)

    ran = mbt("run", "mine.toml")

    assert ran.code == 2
    assert "no record passes `filter`" in ran.err
    assert "`topic` is art, law, maths" in ran.err


def test_a_column_that_the_file_does_not_have_is_named_with_those_it_has(mbt, quiz):
    (quiz / "mine.toml").write_text(STUDY.replace("METRICS", "").replace('"prompt"', '"promt"'))

    ran = mbt("run", "mine.toml")

    assert ran.code == 2
    assert "the data has no column `promt`; it has prompt, w, x, y, key, topic" in ran.err


def test_data_and_prompts_are_relative_to_the_manifest(mbt, workplace):
    folder = workplace / "studies"
    folder.mkdir()
    (folder / "quiz.csv").write_text(QUIZ)
    (folder / "ask.md").write_text("=== user ===\nMine: {{ question }}\n")
    (workplace / "quiz.csv").write_text("another,file\n")
    text = STUDY.replace("METRICS", "").replace('"choice"', '"ask.md"')
    (folder / "mine.toml").write_text(text)

    ran = mbt("run", "studies/mine.toml")

    assert ran.code == 0, ran.err
    assert "50.0" in ran.out


def test_a_csv_with_four_columns_is_a_study_after_init(mbt, workplace):
    (workplace / "capitals.csv").write_text(FOUR_COLUMNS)

    made = mbt("init", "own.toml", "--kind", "embedded", "--questions", "capitals.csv", "--yes")

    assert made.code == 0, made.err
    text = (workplace / "own.toml").read_text()
    assert 'columns = { question = "Prompt", answer = "label" }' in text
    assert mbt("check", "own.toml").code == 0


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("question,A,B,answer\nQ?,one,two,B\n", '{ options = ["A", "B"] }'),
        ("question,option1,option2,answer\nQ?,one,two,two\n", '["option1", "option2"]'),
    ],
)
def test_options_in_columns_of_their_own_are_found(mbt, workplace, content, columns):
    (workplace / "quiz.csv").write_text(content)

    made = mbt("init", "own.toml", "--kind", "embedded", "--questions", "quiz.csv", "--yes")

    assert made.code == 0, made.err
    text = (workplace / "own.toml").read_text()
    assert 'kind = "multiple_choice"' in text
    assert columns in text
    assert 'prompt = ["choice"]' in text
    assert mbt("check", "own.toml").code == 0


def test_columns_that_open_questions_have_too_keep_their_answers(mbt, workplace):
    (workplace / "own.csv").write_text(FOUR_COLUMNS.lower())
    (workplace / "open.csv").write_text("prompt,topic\nWhat is a mind?,philosophy\n")

    for name in ("own", "open"):
        options = ("--kind", "embedded", "--questions", f"{name}.csv", "--yes")
        made = mbt("init", f"{name}.toml", *options)
        assert made.code == 0, made.err

    own = (workplace / "own.toml").read_text()
    assert 'kind = "question_answer"' in own
    assert 'columns = { question = "prompt", answer = "label" }' in own
    assert 'kind = "intellectual"' in (workplace / "open.toml").read_text()
