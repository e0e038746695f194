from mbt_cli.engine.export import CardModel, model_card


def card(**facts):
    return model_card(CardModel(name="s: sft", base="m", base_id="org/m", recipe={}, facts=facts))


def test_measured_numbers_have_four_digits_and_counts_have_all():
    told = card(tokens=145128.0, last_loss=0.09990610927343369, tokens_per_second=48211.37, mfu=0.4)

    assert "- tokens: 145128\n" in told
    assert "- last_loss: 0.09991\n" in told
    assert "- tokens_per_second: 48211\n" in told
    assert "- mfu: 0.4\n" in told


def test_without_scores_the_card_says_so():
    assert "No score of this checkpoint is there yet." in card(device="cpu")
