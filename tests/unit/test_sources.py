"""Which rows of a file a study takes, in which order, and what is refused."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbt_cli.benchmarks.hotpotqa import HotpotQA
from mbt_cli.benchmarks.musique import MuSiQue
from mbt_cli.benchmarks.tinyhop.benchmark import TinyHop
from mbt_cli.core import rows
from mbt_cli.core.questions import Question
from mbt_cli.errors import ArtifactError, MissingInputError, StageError, UsageError
from mbt_cli.store.hub import HubAccess
from mbt_cli.store.questions import SplitReader, source_fingerprint
from tests.unit.split_reading import read_split as read

HERE = Path(__file__).parent / "data"
HOTPOTQA = str(HERE / "hotpotqa" / "dev.json")


def fingerprint(benchmark, split="validation"):
    return source_fingerprint(benchmark, split, generate=benchmark.generate)


def hotpotqa(**settings):
    return HotpotQA(**{"files": {"validation": HOTPOTQA}} | settings)


def ids(read_):
    return read_.frame["question_id"].to_list()


def musique_file(folder, count, name="many.jsonl"):
    """So many questions with ids 2hop__0, 2hop__1, ..."""
    paragraph = {"idx": 0, "title": "A", "paragraph_text": "Text.", "is_supporting": True}
    lines = [
        json.dumps(
            {"id": f"2hop__{n}", "question": f"Q{n}?", "answer": str(n), "paragraphs": [paragraph]}
        )
        for n in range(count)
    ]
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_come_in_the_official_order_with_every_column():
    found = read(hotpotqa())

    assert found.frame.schema == rows.QUESTIONS
    assert ids(found) == ["h1", "h2", "h3"]
    assert found.frame["position"].to_list() == [0, 1, 2]
    assert found.frame["difficulty"].to_list() == ["easy", "hard", "easy"]
    assert found.frame["supporting"][0].to_list() == [
        {"title": "Red Kite", "sentence": 0},
        {"title": "Blue Owl", "sentence": 1},
    ]
    assert list(found.files) == ["dev.json"]


def test_a_questions_parquet_that_mbt_wrote_reads_back_as_it_was(tmp_path):
    first = read(hotpotqa()).frame
    first.write_parquet(tmp_path / "rows.parquet")

    for benchmark in (HotpotQA, MuSiQue, TinyHop):
        again = read(benchmark(files={"validation": str(tmp_path / "rows.parquet")}))
        assert again.frame.equals(first)


def test_the_study_may_call_a_split_otherwise_than_the_source():
    found = read(HotpotQA(files={"test": HOTPOTQA}, splits={"validation": "test"}))

    assert found.frame.height == 3


def test_limit_takes_the_first_rows_and_may_differ_by_split():
    assert ids(read(hotpotqa(limit=2))) == ["h1", "h2"]
    assert ids(read(hotpotqa(limit={"validation": 1, "train": 3}))) == ["h1"]
    assert ids(read(hotpotqa(limit={"train": 1}))) == ["h1", "h2", "h3"]


@given(st.permutations(range(12)), st.integers(1, 12), st.integers(0, 3))
def test_a_sample_is_drawn_by_id_whatever_the_order_of_the_file(
    tmp_path_factory, order, count, seed
):
    folder = tmp_path_factory.mktemp("sample")
    path = musique_file(folder, 12)
    lines = path.read_text().splitlines()
    shuffled = folder / "shuffled.jsonl"
    shuffled.write_text("\n".join(lines[number] for number in order))

    drawn = [
        set(ids(read(MuSiQue(files={"validation": str(file)}, sample=n, sample_seed=seed))))
        for file, n in ((path, count), (shuffled, count), (path, 12))
    ]

    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == count
    assert drawn[0] <= drawn[2]


def test_a_larger_sample_keeps_the_smaller_one_and_the_official_order(tmp_path):
    path = str(musique_file(tmp_path, 50))

    small, large = (read(MuSiQue(files={"validation": path}, sample=n)) for n in (5, 20))

    assert set(ids(small)) <= set(ids(large))
    assert large.frame["position"].is_sorted()
    assert ids(large) == [f"2hop__{n}" for n in large.frame["position"]]


def test_another_sample_seed_draws_others(tmp_path):
    path = str(musique_file(tmp_path, 200))

    first, second = (
        set(ids(read(MuSiQue(files={"validation": path}, sample=20, sample_seed=seed))))
        for seed in (0, 1)
    )

    assert first != second


def test_malformed_rows_are_named_by_line_and_id_and_refused(tmp_path):
    path = musique_file(tmp_path, 3)
    lines = path.read_text().splitlines()
    lines[1] = lines[1][:-10]  # torn
    lines.append(lines[0])  # an id for the second time
    lines.append('{"id": "2hop__9", "question": "", "answer": "x", "paragraphs": []}')
    path.write_text("\n".join(lines))

    with pytest.raises(StageError) as error:
        read(MuSiQue(files={"validation": str(path)}))

    message = str(error.value)
    assert message.startswith("3 malformed rows, 0 allowed:")
    assert "many.jsonl:2: is not JSON" in message
    assert "many.jsonl:4 (id `2hop__0`): duplicate question id" in message
    assert "many.jsonl:5 (id `2hop__9`): `question` is empty" in message


def test_malformed_rows_within_the_budget_are_left_out_and_counted(tmp_path):
    path = musique_file(tmp_path, 3)
    lines = path.read_text().splitlines()
    lines[1] = "[]"
    path.write_text("\n".join(lines))

    found = read(MuSiQue(files={"validation": str(path)}, max_bad_rows=1))

    assert ids(found) == ["2hop__0", "2hop__2"]
    assert found.frame["position"].to_list() == [0, 2]
    assert found.bad_rows == ("many.jsonl:2: is not a JSON object",)


def test_only_the_first_malformed_rows_are_listed(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text("{}\n" + '{"id": "1"}\n' * 8)

    with pytest.raises(StageError, match=r"and 4 more$"):
        read(MuSiQue(files={"validation": str(path)}))


def test_one_problem_of_all_rows_is_said_once(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text("{}\n" * 9)

    with pytest.raises(StageError, match="and 8 more with the same problem") as caught:
        read(MuSiQue(files={"validation": str(path)}))
    assert str(caught.value).count("bad.jsonl:") == 1


@pytest.mark.parametrize("text", ['[{"_id": "a"}, {"_id"', '[{"_id": "a"', "[1, 2", "["])
def test_a_torn_json_array_is_an_error_not_an_end(tmp_path, text):
    path = tmp_path / "torn.json"
    path.write_text(text)

    with pytest.raises(ArtifactError, match=r"torn\.json`, record \d: is not JSON"):
        read(HotpotQA(files={"validation": str(path)}, max_bad_rows=5))


def test_a_long_json_array_is_read_in_pieces(tmp_path):
    # 3,000 records of about 1 kB pass the size of a piece several times
    record = json.loads(Path(HOTPOTQA).read_text())[1]
    record["context"] = [["Long", ["Å" * 500, ' "quoted" ] , [ }']]]
    records = [record | {"_id": f"q{number}"} for number in range(3000)]
    path = tmp_path / "long.json"
    path.write_text(json.dumps(records, indent=1, ensure_ascii=False), encoding="utf-8")

    found = read(HotpotQA(files={"validation": str(path)}))

    assert ids(found) == [f"q{number}" for number in range(3000)]
    assert found.frame["context"][2999].to_list()[0]["sentences"][1] == ' "quoted" ] , [ }'


def test_shards_are_read_in_the_order_of_their_names(tmp_path):
    for shard in (1, 0):
        path = musique_file(tmp_path, 2, f"train-{shard}.jsonl")
        path.write_text(path.read_text().replace("2hop__", f"2hop__{shard}"))

    found = read(MuSiQue(files={"validation": str(tmp_path / "train-*.jsonl")}))

    assert ids(found) == ["2hop__00", "2hop__01", "2hop__10", "2hop__11"]
    assert found.frame["position"].to_list() == [0, 1, 2, 3]


def test_a_tier_file_wins_by_question_id_and_the_default_fills_what_is_left(tmp_path):
    tiers = tmp_path / "tiers.csv"
    tiers.write_text("question_id,tier\nh3,hard\nelse,easy\n")

    found = read(hotpotqa(difficulty=str(tiers)))

    assert found.frame["difficulty"].to_list() == ["easy", "hard", "hard"]
    assert sorted(found.files) == ["dev.json", "tiers.csv"]

    unmarked = read(MuSiQue(files={"validation": str(musique_file(tmp_path, 1))}))
    assert unmarked.frame["difficulty"].to_list() == ["easy"]  # by its id
    path = tmp_path / "other.jsonl"
    path.write_text(musique_file(tmp_path, 1).read_text().replace("2hop__", "x"))
    made = MuSiQue(files={"validation": str(path)}, default_tier="hard")
    assert read(made).frame["difficulty"].to_list() == ["hard"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question_id,level\nh1,hard\n", "no column `tier`"),
        (
            "question_id,tier\nh1,extreme\n",
            "the unknown tier `extreme`; tiers are easy, medium, hard",
        ),
        ("question_id,tier\nh1,hard\nh1,easy\n", "duplicate question id `h1`"),
    ],
)
def test_a_wrong_tier_file_is_refused(tmp_path, text, message):
    tiers = tmp_path / "tiers.csv"
    tiers.write_text(text)

    with pytest.raises(UsageError, match=message):
        read(hotpotqa(difficulty=str(tiers)))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"files": {"validation": "no/such.json"}}, MissingInputError, "no file `no/such.json`"),
        ({"files": {"train": HOTPOTQA}}, UsageError, "the splits in `files` are `train`"),
        ({"files": {}}, UsageError, "the splits in `files` are none"),
        ({"files": {"validation": __file__}}, UsageError, "ends in `.py`"),
    ],
)
def test_a_source_that_cannot_be_read_is_said_in_one_line(settings, error, message):
    with pytest.raises(error, match=message):
        read(hotpotqa(**settings))


def test_a_damaged_parquet_file_is_an_error(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 and not more")

    with pytest.raises(ArtifactError, match="not a complete Parquet file"):
        read(hotpotqa(files={"validation": str(path)}))


def test_generated_questions_obey_limit_and_sample():
    whole = ids(read(TinyHop(size=30), "train"))

    assert ids(read(TinyHop(size=30, limit=4), "train")) == whole[:4]
    assert set(ids(read(TinyHop(size=30, sample=4), "train"))) < set(whole)


def test_the_fingerprint_follows_the_bytes_and_not_the_place(tmp_path):
    copy = tmp_path / "elsewhere.json"
    copy.write_bytes(Path(HOTPOTQA).read_bytes())
    first = fingerprint(hotpotqa())
    assert fingerprint(hotpotqa(files={"validation": str(copy)})) == first

    copy.write_bytes(copy.read_bytes() + b"\n")

    assert fingerprint(hotpotqa(files={"validation": str(copy)})) != first


def test_the_fingerprint_of_the_hub_is_repository_files_and_revision():
    official = fingerprint(HotpotQA(source="hub"))
    assert official["hub"]["repo"] == "hotpotqa/hotpot_qa"
    assert official["hub"]["files"] == "distractor/validation-*.parquet"
    assert len(official["hub"]["revision"]) == 40

    assert fingerprint(HotpotQA(source="hub", revision="other")) != official
    with pytest.raises(UsageError, match="has no `revision`"):
        fingerprint(HotpotQA(source="hub", repo="me/mine"))


def test_a_generator_adds_nothing_to_the_fingerprint():
    assert fingerprint(TinyHop(), "train") == {}


def test_packed_lines_are_read_and_a_torn_file_is_told(tmp_path):
    plain = musique_file(tmp_path, 3)
    packed = tmp_path / "many.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))

    assert ids(read(MuSiQue(files={"validation": str(packed)}))) == [
        "2hop__0",
        "2hop__1",
        "2hop__2",
    ]

    for damaged in (packed.read_bytes()[:60], b"plain text"):
        packed.write_bytes(damaged)
        with pytest.raises(ArtifactError, match="is not a complete gzip file"):
            read(MuSiQue(files={"validation": str(packed)}))


def test_a_check_makes_few_of_many_generated_questions():
    made = []

    def generate(split):
        for number in range(1_000):
            made.append(number)
            yield Question(f"q{number}", "Who?", "Oslo", metadata={"pick": number})

    hop = TinyHop()
    reader = SplitReader(hop, "validation", hop.question, generate, HubAccess())
    reader.check()

    assert reader.metadata == {"pick"}
    assert 0 < len(made) <= 50  # every command that reads a manifest makes them, for every split
