"""System prompts as an axis: texts of the manifest that stand before the prompts of rollouts."""

import pytest

from mbt_cli.errors import ManifestError
from tests.conftest import SMALL_STUDY

TEXTS = '[system_prompts]\nskeptic = "Doubt what you read."\nbold = "Say it."\n'
ONE_PROMPT = 'prompt = ["answer", "metacognitive"]'


def with_axis(*names):
    listed = ", ".join(f'"{name}"' for name in names)
    study = SMALL_STUDY.replace(ONE_PROMPT, f'prompt = "answer", system_prompt = [{listed}]')
    study = study.replace('baseline = { prompt = "answer" }\n', "")
    return study.replace("[benchmarks.tiny]", f"{TEXTS}\n[benchmarks.tiny]")


def rollouts(manifest):
    return {
        c.resolution.axes.get("system_prompt"): c
        for c in manifest.cells.values()
        if c.stage.kind == "rollout"
    }


def test_each_text_makes_a_cell_whose_prompt_begins_with_it(load):
    found = rollouts(load(with_axis("none", "skeptic", "bold")))

    turns = {name: cell.resolution.templates["prompt"].turns for name, cell in found.items()}
    assert turns["skeptic"][0] == ("system", "Doubt what you read.")
    assert turns["bold"][0] == ("system", "Say it.")
    assert turns["skeptic"][1:] == turns["bold"][1:] == turns["none"]
    assert len({str(cell.spec) for cell in found.values()}) == 3


def test_texts_count_by_content_and_none_is_a_study_without_any(load):
    found = rollouts(load(with_axis("none", "skeptic", "bold")))
    swapped = with_axis("none", "skeptic").replace("Doubt what you read.", "Say it.")
    without = SMALL_STUDY.replace(ONE_PROMPT, 'prompt = "answer"')

    same = rollouts(load(swapped))["skeptic"].spec
    (plain,) = rollouts(load(without.replace('baseline = { prompt = "answer" }\n', ""))).values()

    assert same == found["bold"].spec
    assert plain.spec == found["none"].spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ('["none", "skeptic"]', '["none", "sceptic"]'),
            "no system prompt `sceptic`; did you mean",
        ),
        (("Doubt what", "Doubt {{ question }}, what"), "`system_prompts.skeptic`: a system prompt"),
        (('"Doubt what you read."', "3"), "`system_prompts.skeptic`"),
    ],
)
def test_a_wrong_one_says_what_is_wrong(load, change, message):
    with pytest.raises(ManifestError) as caught:
        load(with_axis("none", "skeptic").replace(*change))

    assert message in str(caught.value)
