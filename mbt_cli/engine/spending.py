"""What a study costs: meters for a run, and the sums that `mbt status`, plans and reports show."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from mbt_cli.core.jobs import JobId
from mbt_cli.core.prices import PICOS, Allowance, Ledger, picos_of
from mbt_cli.engine.queues import is_gone
from mbt_cli.inference.meter import Meter
from mbt_cli.manifest.load import Manifest
from mbt_cli.store.spending import (
    RecordedPrices,
    SpendingReader,
    SpendingRecord,
    Spent,
    StudyBudget,
    earlier_spending,
    read_prices,
    record_prices,
)


def recorded_prices(manifest: Manifest) -> RecordedPrices:
    """The prices and the budget of a manifest, as they are recorded."""
    study = manifest.document.study
    return RecordedPrices(
        currency=study.currency, budget=study.budget, prices=dict(manifest.prices)
    )


class Meters:
    """Makes the meters of a run.

    Args:
        manifest: The study.
        study_folder: `runs/STUDY`.
        job: The job that this process belongs to.
    """

    def __init__(self, manifest: Manifest, study_folder: Path, job: JobId | None) -> None:
        self._manifest = manifest
        self._folder = study_folder
        self._job = job
        self._budget: StudyBudget | None = None
        self._is_begun = False

    def meter(self, address: str, model: str) -> Meter:
        """The meter of the requests of one cell to one model; a local one has no price."""
        has_budget = self._manifest.document.study.budget is not None
        return Meter(
            self._manifest.prices.get(model),
            partial(self._record, address, model),
            self._allowance if has_budget else None,
        )

    def _record(self, address: str, model: str) -> SpendingRecord:
        if not self._is_begun:
            self._is_begun = True
            recorded = recorded_prices(self._manifest)
            if recorded.prices or recorded.budget is not None:
                record_prices(self._folder, recorded)
        return SpendingRecord(self._folder, address, model, self._job)

    def _allowance(self, ledger: Ledger) -> Allowance:
        if self._budget is None:
            recorded, limit = read_prices(self._folder), self._manifest.document.study.budget
            assert limit is not None
            reader = SpendingReader(self._folder, is_gone)
            earlier = earlier_spending(self._folder, {one.address for one in reader.read()})
            self._budget = StudyBudget(
                self._folder,
                reader,
                recorded,
                limit=picos_of(limit),
                earlier=sum(one.cost(recorded.prices) for one in earlier),
                go_on=f"mbt run {shlex.quote(str(self._manifest.path))} --set study.budget=",
            )
        return self._budget.allowance(cast(SpendingRecord, ledger))


@dataclass(frozen=True, slots=True)
class StageSpending:
    """What the requests of one stage to one model have used and cost.

    Args:
        requests: Requests that were answered.
        input_tokens: Prompt tokens, cached ones included.
        cached_tokens: Of those, tokens from the provider's prompt cache.
        output_tokens: Tokens of replies.
        money: What they cost, in the study's currency; null if the model has no price.
        at_most: The same with requests whose end is not known and those in flight, at their most.
    """

    stage: str
    model: str
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    money: float | None
    at_most: float | None


@dataclass(frozen=True, slots=True)
class Spending:
    """What a study has cost so far.

    Args:
        money: In `currency`; null if no model has a price.
        at_most: The same with requests whose end is not known, at their most.
        budget: What it may cost; null without a limit.
        stages: By stage and model.
    """

    currency: str
    money: float | None
    at_most: float | None
    budget: float | None
    stages: tuple[StageSpending, ...] = ()


class SpendingSums:
    """Sums what a study has cost, again and again.

    Args:
        study_folder: `runs/STUDY`.
        prices: Those of a manifest; None: those that the newest run has recorded.
    """

    def __init__(self, study_folder: Path, prices: RecordedPrices | None = None) -> None:
        self._folder = study_folder
        self._prices = prices
        self._reader = SpendingReader(study_folder, is_gone)

    def read(self) -> Spending:
        """What it has cost now.

        Raises:
            ArtifactError: A record is damaged.
        """
        recorded = self._prices or read_prices(self._folder)
        found = self._reader.read()
        if recorded.prices:  # tokens without a price are not worth reading every lineage
            found += earlier_spending(self._folder, {one.address for one in found})
        return sums_of(found, recorded)


def sums_of(records: Iterable[Spent], recorded: RecordedPrices) -> Spending:
    """The sums of records, stages in the order of the records."""
    sums: dict[tuple[str, str], Spent] = {}
    for one in records:
        key = one.address.partition("/")[0], one.model
        sums[key] = sums[key].joined(one) if key in sums else one
    prices = recorded.prices
    stages = [
        StageSpending(
            stage=stage,
            model=model,
            requests=one.used.requests,
            input_tokens=one.used.input,
            cached_tokens=one.used.cached,
            output_tokens=one.used.output,
            money=one.known(prices) / PICOS if model in prices else None,
            at_most=one.cost(prices) / PICOS if model in prices else None,
        )
        for (stage, model), one in sums.items()
    ]
    has_prices = bool(prices)
    return Spending(
        currency=recorded.currency,
        money=sum(one.known(prices) for one in sums.values()) / PICOS if has_prices else None,
        at_most=sum(one.cost(prices) for one in sums.values()) / PICOS if has_prices else None,
        budget=recorded.budget,
        stages=tuple(stages),
    )
