"""The axis `step`: cells of checkpoints that a training or somebody else's folder publishes."""

import json
import os
import struct
import time
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from mbt_cli.backends.weights import is_whole_model
from mbt_cli.core.progress import Silent
from mbt_cli.engine.beside import divided_gpus, watched_beside
from mbt_cli.engine.plan import make_plan
from mbt_cli.engine.runner import Runner, RunOptions, Servers, _Steps
from mbt_cli.engine.select import select
from mbt_cli.engine.states import States
from mbt_cli.engine.submit import check_plan
from mbt_cli.engine.watch import Watch, to_watch
from mbt_cli.errors import ManifestError, Stopped, UsageError
from mbt_cli.manifest.load import load_manifest
from mbt_cli.settings import Machine
from mbt_cli.store import artifacts

STUDY = """
[study]
name = "steps"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 32

[models.qwen]
backend = { kind = "vllm", model = "Qwen/Qwen3-1.7B" }
sampling = "plain"

[benchmarks.tiny]
kind = "tinyhop"
limit = 6

[[stage]]
kind = "train"
name = "rl"
preset = "grpo"
matrix = { model = ["qwen"] }
questions = { benchmark = "tiny", split = "train" }
reward = "exact_match"

[[stage]]
kind = "rollout"
name = "curve"
checkpoints = { stage = "rl", where = { step = "all" } }
matrix = { benchmark = ["tiny"], split = ["validation"] }
prompt = "answer"

[[stage]]
kind = "score"
name = "curve-scores"
rollouts = "curve"
metrics = ["exact_match"]

[[stage]]
kind = "report"
name = "tables"
scores = "curve-scores"
tables = ["main_results"]
"""
TRAINING = "rl/model=qwen"


@pytest.fixture
def study(tmp_path, presets):
    """Load the study, with some steps published; the manifest's text can be another."""

    def loaded(*steps, text=STUDY):
        for step in steps:
            folder = tmp_path / "runs/steps/rl/model=qwen" / f"step={step}"
            folder.mkdir(parents=True)
            (folder / "lineage.json").touch()
        path = tmp_path / "study.toml"
        path.write_text(text)
        return load_manifest(path, presets=presets, runs=tmp_path / "runs")

    return loaded


def of_stage(manifest, stage):
    return [a for a in manifest.cells if a.partition("/")[0] == stage]


def problems_of(load, *arguments, **named):
    with pytest.raises(ManifestError) as raised:
        load(*arguments, **named)
    return [str(problem) for problem in raised.value.problems]


def test_all_steps_are_those_that_are_published_in_their_order(study):
    manifest = study(20, 100, 3)

    assert of_stage(manifest, "rl") == [TRAINING, *(f"{TRAINING}/step={n}" for n in (3, 20, 100))]
    assert [a.rpartition("=")[2] for a in of_stage(manifest, "curve")] == ["3", "20", "100"]
    assert len(of_stage(manifest, "curve-scores")) == 3
    assert not manifest.waiting


def test_before_the_first_checkpoint_what_reads_it_waits(study):
    manifest = study()

    assert of_stage(manifest, "rl") == [TRAINING]
    assert list(manifest.waiting) == ["curve", "curve-scores", "tables"]
    assert manifest.cells[TRAINING].resolution.steps == ("all",)
    assert select(manifest, kind=None, only=["rl", "curve"])[-1] == TRAINING
    with pytest.raises(UsageError, match="`curve` has no cells yet") as raised:
        select(manifest, kind=None, only=["curve"])
    assert "mbt watch" in raised.value.hint


def test_steps_that_are_named_have_cells_before_they_exist(study):
    manifest = study(text=STUDY.replace('step = "all"', "step = [40, 8]"))

    assert of_stage(manifest, "rl") == [TRAINING, f"{TRAINING}/step=8", f"{TRAINING}/step=40"]
    cell = manifest.cells[f"{TRAINING}/step=8"]
    assert cell.needs == (TRAINING,)
    assert cell.spec == {"step": "8"}
    assert manifest.cells[TRAINING].resolution.steps == ("8", "40")
    read = manifest.cells[of_stage(manifest, "curve")[0]].resolution.inputs["checkpoints"]
    assert read == (f"{TRAINING}/step=8",)


def test_steps_never_change_what_the_training_is(study):
    text = STUDY.replace('checkpoints = { stage = "rl", where = { step = "all" } }', "")
    alone = study(text=text.replace('tiny"], split', 'tiny"], model = ["qwen"], split'))

    assert study(4).cells[TRAINING].spec == alone.cells[TRAINING].spec


def test_the_last_checkpoint_is_read_without_steps(study):
    text = STUDY.replace('{ stage = "rl", where = { step = "all" } }', '"rl"')
    manifest = study(20, text=text)

    assert of_stage(manifest, "rl") == [TRAINING]
    read = manifest.cells[of_stage(manifest, "curve")[0]].resolution.inputs["checkpoints"]
    assert read == (TRAINING,)


@pytest.mark.parametrize("step", ['"last"', "0", "1.5", '"007"'])
def test_what_is_no_step_is_refused_with_its_place(study, step):
    (problem,) = problems_of(study, text=STUDY.replace('"all"', step))

    assert "`stage.curve.checkpoints.where.step`" in problem
    assert "whole numbers from 1, or `all`" in problem


def test_a_training_with_a_source_has_no_steps_of_its_own(study):
    text = STUDY.replace('preset = "grpo"\n', 'preset = "grpo"\nsource = "hub:org/model"\n')
    (problem,) = problems_of(study, text=text)

    assert "`rl` has a `source`, so it publishes no steps" in problem


def test_beside_is_for_steps(study):
    text = STUDY.replace('{ stage = "rl", where = { step = "all" } }', '"rl"')
    text = text.replace('name = "curve"', 'name = "curve"\nbeside = { gpus = [1] }')
    (problem,) = problems_of(study, text=text)

    assert "`stage.curve.beside`" in problem


def test_beside_names_the_rollouts_and_what_only_reads_them(study):
    text = STUDY.replace('name = "curve"', 'name = "curve"\nbeside = { gpus = [7, 6] }')
    manifest = study(text=text)

    found = watched_beside(manifest, [TRAINING])

    assert (found.stages, found.gpus) == (["curve", "curve-scores"], [6, 7])
    assert watched_beside(manifest, []) is None
    assert watched_beside(study(), [TRAINING]) is None


def test_gpus_are_divided_by_their_place_among_those_that_are_seen():
    seen = {"CUDA_VISIBLE_DEVICES": "2,3,GPU-4,7"}

    assert divided_gpus([1, 3], seen) == ("2,GPU-4", "3,7")
    for wrong in ([4], [0, 1, 2, 3]):
        with pytest.raises(UsageError, match="this process sees 4 GPUs"):
            divided_gpus(wrong, seen)


def test_what_is_watched_comes_from_checkpoints_alone(study):
    more = """
[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = ["tiny"], split = ["train"], model = ["qwen"] }
prompt = "answer"
"""
    manifest = study(5, text=STUDY + more)

    found = to_watch(manifest)

    assert {a.partition("/")[0] for a in found} == {
        *("questions", "rl", "curve", "curve-scores", "tables")
    }
    assert TRAINING not in found
    assert "questions/benchmark=tiny/split=train" not in found
    assert to_watch(study(text=STUDY), only=["tables"]) == ["tables"]


def test_while_everything_waits_nothing_is_chosen(study):
    assert to_watch(study(), only=["curve"]) == []
    with pytest.raises(UsageError, match="matches no cell"):
        to_watch(study(), only=["curves"])


# Plans while steps appear


def planned(manifest, tmp_path, **options):
    return make_plan(manifest, States(manifest, tmp_path / "runs"), **options)


def test_the_job_of_a_training_has_the_gpus_beside_it_too(study, tmp_path):
    text = STUDY.replace('name = "curve"', 'name = "curve"\nbeside = { gpus = [GPUS] }')
    (alone,) = [j for j in planned(study(), tmp_path).jobs if j.kind == "train"]

    (job,) = [
        j
        for j in planned(study(text=text.replace("GPUS", "1, 2")), tmp_path).jobs
        if j.kind == "train"
    ]

    assert (alone.resources.gpus, job.resources.gpus) == (1, 3)
    with pytest.raises(UsageError, match=r"`curve` is \[6, 7\], and the job of .* has 3 GPUs"):
        planned(study(text=text.replace("GPUS", "6, 7")), tmp_path)


def test_a_plan_names_what_no_job_makes(study, tmp_path):
    beside = STUDY.replace('name = "curve"', 'name = "curve"\nbeside = { gpus = [1] }')
    (advice,) = planned(study(), tmp_path).advice
    (with_beside,) = planned(study(text=beside), tmp_path).advice

    assert advice.startswith("curve, curve-scores, tables: no job makes them")
    assert "mbt watch" in advice
    assert with_beside.startswith("tables: ")


def test_gpus_beside_a_training_of_several_nodes_are_refused(study, tmp_path):
    flags = 'launch = { accelerate = "fsdp", flags = { num_processes = 16, num_machines = 2 } }'
    text = STUDY.replace('preset = "grpo"', f'preset = "grpo"\n{flags}')
    text = text.replace('name = "curve"', 'name = "curve"\nbeside = { gpus = [6, 7] }')

    with pytest.raises(UsageError, match=r"divides the GPUs of one node, and .* trains on 2"):
        planned(study(text=text), tmp_path)


def test_a_plan_stays_valid_while_steps_appear(study, tmp_path, publisher):
    before = study()
    plan = planned(before, tmp_path)
    publisher(before).publish(20, tmp_path / "weights")
    after = study()

    assert f"{TRAINING}/step=20" in after.cells
    check_plan(plan, "plan", after, States(after, tmp_path / "runs"), "mbt submit")
    other = study(text=STUDY.replace("seed = 1", "seed = 2"))
    with pytest.raises(UsageError, match="has changed since the plan"):
        check_plan(plan, "plan", other, States(other, tmp_path / "runs"), "mbt submit")


def test_a_plan_to_train_again_leaves_out_what_the_earlier_training_published(
    study, tmp_path, publisher
):
    publisher(study()).publish(20, tmp_path / "weights")
    changed = study(text=STUDY.replace("seed = 1", "seed = 2"))

    plan = planned(changed, tmp_path, replace=True)

    assert [a for job in plan.jobs for a in job.cells if "step=" in a] == []
    assert TRAINING in [a for job in plan.jobs for a in job.cells]


def test_a_training_is_estimated_once_whatever_its_steps(study, tmp_path):
    plan = planned(study(text=STUDY.replace('step = "all"', "step = [40, 8]")), tmp_path)

    assert [training.address for training in plan.trainings] == [TRAINING]


# Publication that is cut off


@pytest.fixture
def publisher(tmp_path):
    """What publishes the steps of the training, with a checkpoint in `weights`."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text("{}")

    def made(manifest):
        runner = Runner(manifest, Machine(runs=tmp_path / "runs"), RunOptions())
        state = runner.states[TRAINING]
        work = runner._work(state, {}, Servers(), Silent())
        return _Steps(tmp_path / "runs", state, work, {}, datetime.now(UTC), Silent())

    return made


class Cut(Exception):
    """The process ends here."""


@pytest.mark.parametrize("function", ["_file_records", "_publish", "sync_folder"])
def test_a_publication_that_is_cut_off_is_made_good(
    study, tmp_path, publisher, monkeypatch, function
):
    steps, folder = publisher(study()), tmp_path / "job" / "published"
    folder.mkdir(parents=True)
    (tmp_path / "weights").rename(folder / "20")

    def cut(*_):
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(artifacts, function, cut)
        with pytest.raises(Cut):
            steps.publish(20, folder / "20")
    assert not (folder / "20").exists()
    assert list(steps.published()) == []
    assert of_stage(study(), "curve") == []  # nothing evaluates what is not whole

    steps.recover(folder)
    if (folder / "20").exists():
        steps.publish(20, folder / "20")

    cell = tmp_path / "runs/steps" / TRAINING / "step=20"
    assert list(steps.published()) == [20]
    assert (cell / "files/checkpoint/config.json").read_text() == "{}"
    assert list(folder.iterdir()) == []


def test_a_step_that_is_written_twice_is_published_once(study, tmp_path, publisher):
    steps = publisher(study())
    steps.publish(20, tmp_path / "weights")
    lineage = tmp_path / "runs/steps" / TRAINING / "step=20/lineage.json"
    first = lineage.read_bytes()
    (tmp_path / "again").mkdir()
    (tmp_path / "again/config.json").write_text('{"other": 1}')

    steps.publish(20, tmp_path / "again")

    assert lineage.read_bytes() == first
    assert not (tmp_path / "again").exists()
    assert not (tmp_path / "runs/.replaced").exists()


def test_steps_of_an_earlier_training_leave_when_another_one_ends(study, tmp_path, publisher):
    publisher(study()).publish(20, tmp_path / "weights")
    (tmp_path / "weights").mkdir()
    other = publisher(study(text=STUDY.replace("seed = 1", "seed = 2")))
    other.publish(40, tmp_path / "weights")

    other.end()

    assert of_stage(study(), "rl")[1:] == [f"{TRAINING}/step=40"]
    assert list((tmp_path / "runs/.replaced").rglob("config.json"))


# The watch


@pytest.fixture
def watch(tmp_path):
    def made(manifest, **options):
        machine = Machine(runs=tmp_path / "runs")
        return Watch(manifest, machine, RunOptions(**options), to_watch)

    return made


@pytest.mark.parametrize("replace", [False, True])
def test_checkpoints_of_an_earlier_training_are_not_evaluated(
    study, tmp_path, publisher, watch, replace
):
    publisher(study()).publish(20, tmp_path / "weights")
    now, other = study(), study(text=STUDY.replace("seed = 1", "seed = 2"))

    def ready(manifest):
        found = watch(manifest, replace=replace)._ready(States(manifest, tmp_path / "runs"))
        return [address for address in found if address.startswith("curve")]

    assert len(ready(now)) == 2
    assert ready(other) == []


def test_a_watch_outlives_an_edit_of_its_manifest(study, tmp_path, watch):
    manifest, notes = study(), []
    watched = watch(manifest)
    progress = Silent()
    progress.note = notes.append

    for broken in ("[study", STUDY.replace('preset = "grpo"', "preset = 3")):
        manifest.path.write_text(broken)
        watched._reload(progress)
    manifest.path.unlink()
    watched._reload(progress)

    assert watched.manifest is manifest
    assert len(notes) == 1
    assert "waits for its correction" in notes[0]
    manifest.path.write_text(STUDY.replace("seed = 1", "seed = 3"))
    watched._reload(progress)
    assert watched.manifest.document.study.seed == 3


def test_a_pause_ends_when_a_step_is_published_or_a_training_ends(
    study, tmp_path, publisher, watch
):
    watched = watch(study())
    seen = [watched._signs()]
    publisher(study()).publish(20, tmp_path / "weights")
    seen.append(watched._signs())
    (tmp_path / "runs/steps" / TRAINING / "lock").touch()
    seen.append(watched._signs())
    (tmp_path / "runs/steps" / TRAINING / "failure.json").touch()
    seen.append(watched._signs())

    assert all(first != second for first, second in pairwise(seen))
    assert watched._signs() == seen[-1]


def test_a_watch_ends_with_the_run_that_it_is_part_of(study, tmp_path):
    machine = Machine(runs=tmp_path / "runs")
    watched = Watch(study(), machine, RunOptions(), to_watch, is_wanted=lambda: False)

    with pytest.raises(Stopped, match="the run that it was part of has ended"):
        watched.run(Silent())


# Folders of others


HEAD = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
WEIGHTS = struct.pack("<Q", len(HEAD)) + HEAD + bytes(16)


def write_model(folder, *, cut=0):
    """A folder in hub layout, with one file of safetensors that may lack its last bytes."""
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(WEIGHTS[: len(WEIGHTS) - cut])
    (folder / "config.json").write_text("{}")
    grown_old(folder)


def grown_old(folder):
    """Nothing in a folder has changed for an hour."""
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - 3600,) * 2)


FOREIGN = STUDY.replace(
    'preset = "grpo"\nmatrix = { model = ["qwen"] }\n',
    'source = "theirs/x_step{step}"\nmatrix = { model = ["qwen"], step = "all" }\n',
).replace('questions = { benchmark = "tiny", split = "train" }\nreward = "exact_match"\n', "")


def test_a_source_has_the_steps_whose_folders_are_whole(study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    manifest = study(text=FOREIGN)
    assert list(manifest.waiting) == ["rl", "curve", "curve-scores", "tables"]
    write_model(tmp_path / "theirs/x_step100")
    write_model(tmp_path / "theirs/x_step20")
    write_model(tmp_path / "theirs/x_step300", cut=1)
    (tmp_path / "theirs/x_step_best").mkdir()

    manifest = study(text=FOREIGN)

    assert of_stage(manifest, "rl") == [f"rl/model=qwen/step={n}" for n in (20, 100)]
    assert [a.rpartition("=")[2] for a in of_stage(manifest, "curve")] == ["20", "100"]
    assert manifest.cells["rl/model=qwen/step=20"].resolution.source == "theirs/x_step20"
    assert manifest.has_open_steps


def test_a_model_is_whole_when_every_file_that_its_index_names_is(tmp_path):
    folder = tmp_path / "m"
    write_model(folder)
    assert is_whole_model(folder)
    index = {"weight_map": {"w": "model.safetensors", "v": "second.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    grown_old(folder)
    assert not is_whole_model(folder)
    (folder / "second.safetensors").write_bytes(WEIGHTS)
    grown_old(folder)
    assert is_whole_model(folder)
    (folder / "second.safetensors").write_bytes(b"\x40")
    grown_old(folder)
    assert not is_whole_model(folder)


def test_a_model_under_another_name_than_its_index_says_is_whole_at_its_end_too(tmp_path):
    folder = tmp_path / "m"
    write_model(folder, cut=1)
    index = {"weight_map": {"w": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    grown_old(folder)
    assert not is_whole_model(folder)
    with (folder / "model.safetensors").open("ab") as file:
        file.write(bytes(1))
    grown_old(folder)
    assert is_whole_model(folder)


PARTS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    PARTS[0]: WEIGHTS,
    PARTS[1]: WEIGHTS,
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"w": PARTS[0], "v": PARTS[1]}}
    ).encode(),
    "tokenizer.json": b'{"model": {"vocab": {}}}',
}
ORDERS = {
    "as transformers": list(MODEL),
    "by name": sorted(MODEL),
    "index first": ["model.safetensors.index.json", *PARTS, "tokenizer.json", "config.json"],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_model_that_is_being_written_is_never_whole(tmp_path, order):
    folder = tmp_path / "m"
    folder.mkdir()
    whole_at = []
    for name in order:
        for end in range(len(MODEL[name]) + 1):
            (folder / name).write_bytes(MODEL[name][:end])
            assert not is_whole_model(folder)  # it has just changed
            grown_old(folder)  # as if the writer had stopped here for an hour
            if is_whole_model(folder):
                whole_at.append((name, end))

    last = (order[-1], len(MODEL[order[-1]]))
    between = [("model.safetensors.index.json", len(MODEL["model.safetensors.index.json"]))]
    # for an hour between the weights and the tokenizer, it is a model without a tokenizer
    has_gap = order[-1] == "tokenizer.json"
    assert whole_at[-1] == last
    assert set(whole_at[:-1]) <= ({(PARTS[1], len(WEIGHTS)), *between} if has_gap else set())


def test_weights_that_tell_no_length_count_once_they_stay_as_they_are(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    assert not is_whole_model(tmp_path)
    grown_old(tmp_path)
    assert is_whole_model(tmp_path)
