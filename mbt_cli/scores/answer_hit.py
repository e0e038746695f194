"""AnswerHit: how often the trace reaches the gold answer, by a judge and without one."""

from collections.abc import Sequence
from typing import Literal

from mbt_cli.core.hits import cut_values, free_hits, judged_hits
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import live_only, mean_measure
from mbt_cli.interfaces import Score


class AnswerHitRate(Score):
    """Share of rollouts whose trace reaches the gold answer, whatever the final answer is.

    Formula: `answer_hit` is 1 if most readable votes of the judge `answer_hit` say YES.
    `answer_hit_substring` is 1 if the normalised gold answer or an alias is a substring of the
    normalised trace (the paper's judge-free form), `answer_hit_words` if it stands there as whole
    words. Beside them `answer_hit_unread`, the share of votes that could not be read, and
    `answer_hit_not_judged`, the share of rollouts that were cut and so not sent.
    Unit: per cent of samples, averaged within questions first.
    Reads: verdicts of `answer_hit`: `hit`; rollouts `reasoning`, `reply`; gold answer, aliases.
    Empty trace: no hit. Cut reply: not sent, counts as no hit in `answer_hit`, which is a lower
    bound then. Unread verdict, tied votes, failed rollout: no value, counted.
    Known holes: without a judge, a trace that quotes the documents hits by quoting; substring
    finds `no` in `know`. Without verdicts only the judge-free numbers are given.
    """

    kind: Literal["answer_hit"] = "answer_hit"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        found = []
        votes = judged_hits(inputs)
        if votes is not None:
            judged, unread = live_only(inputs, votes.value), live_only(inputs, votes.unread)
            cut = cut_values(inputs)
            found += [
                mean_measure(inputs, "answer_hit", judged, shape="binary"),
                mean_measure(inputs, "answer_hit_unread", unread, shape="share"),
                mean_measure(inputs, "answer_hit_not_judged", cut, shape="share"),
            ]
        hits = free_hits(inputs)
        return [
            *found,
            mean_measure(inputs, "answer_hit_substring", hits.substring, shape="binary"),
            mean_measure(inputs, "answer_hit_words", hits.words, shape="binary"),
        ]
