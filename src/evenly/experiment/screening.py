"""Which candidates `evenly improve` trains, within its budget: all on one seed, the best on all seeds, SAM on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from evenly.data import Data
from evenly.engine.accuracy import Measured
from evenly.experiment import choosing
from evenly.experiment.candidates import ON_TOP, Candidate, candidates_for
from evenly.experiment.trials import Trials
from evenly.optim.registry import around, passes
from evenly.runs.arms import Arm
from evenly.runs.differences import FEWEST
from evenly.runs.improvement import Goal, Grouping, NotTried, Tried
from evenly.runs.summary import Summary
from evenly.settings import Settings

FINALISTS = 2


@frozen(eq=False)
class Question:
    """What is asked, resolved for the data at hand.

    Args:
        data: as the runs see it.
        settings: of plain training.
        budget: in runs of ERM for each seed.
    """

    goal: Goal
    metric: str
    grouping: Grouping
    data: Data
    settings: Settings
    baseline: Arm
    seeds: Sequence[int]
    budget: float

    @property
    def sam(self) -> str | None:
        """SAM around the optimizer; None where the optimizer perturbs already."""
        return around("sam", self.baseline.optimizer)

    @property
    def candidates(self) -> dict[Arm, Candidate]:
        """What fits, in order."""
        fitting = [each for each in candidates_for(self.goal, self.grouping) if self.sam or not each.sam]
        return {Arm(each.method, (each.sam and self.sam) or self.baseline.optimizer): each for each in fitting}

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        """The options of each candidate's method."""
        return {each.method: each.options(self.data, self.settings) for each in self.candidates.values()}

    @property
    def no_room(self) -> str:
        return f"the budget of {self.budget:g} runs of plain training for each seed has no room for it"


def affordable_seeds(seeds: Sequence[int], total: float, first: Candidate) -> Sequence[int]:
    """As many seeds as leave room for one candidate on all of them, three at least.

    Args:
        total: what may be spent, in runs of ERM.
    """
    count = len(seeds)
    while count > FEWEST and count * (1 + first.most) > total:
        count -= 1
    return seeds[:count]


def try_candidates(question: Question, trials: Trials) -> tuple[list[Tried], list[NotTried]]:
    """Train what the budget has room for; what was tried, ERM first, and what was not."""
    candidates, options = question.candidates, question.options
    screened = _affordable(question, trials.left)
    trials.run(screened, question.seeds[:1], options, label="screening on one seed")
    finals = [arm for arm in _finalists(question, trials, screened) if _to_all_seeds(question, trials, arm, options)]
    for arm in finals:
        _add_control(question, trials, arm, options)
    not_tried = [NotTried(arm, question.no_room) for arm in candidates if arm not in screened]
    if (on_top := _sam_on_top(question, trials, finals)) is not None and on_top not in trials.runs:
        without = Arm(on_top.method, question.baseline.optimizer)
        cost = candidates[without].cost if candidates[without].varies else trials.cost(without) or 1.0
        if passes(on_top.optimizer) * cost * len(question.seeds) <= trials.left:
            trials.run([on_top], question.seeds, options, label=f"{on_top.pair} on all seeds")
            _add_control(question, trials, on_top, options)
            candidates[on_top] = evolve(ON_TOP, method=on_top.method)
        else:
            not_tried.append(NotTried(on_top, question.no_room))
    not_tried += [NotTried(arm, reason) for arm, reason in trials.reasons.items() if arm not in trials.runs]
    baseline = Tried(question.baseline, "the baseline", True, on_validation(question, trials, question.baseline))
    ran = [arm for arm in candidates if arm in trials.runs]
    tried = [_tried(question, trials, arm, candidates[arm].reason) for arm in ran]
    corrected = choosing.corrected([each.on_validation for each in tried if each.final], question.metric)
    of_arm = {each.arm: each for each in corrected}
    return [
        baseline,
        *(evolve(each, on_validation=of_arm.get(each.arm, each.on_validation)) for each in tried),
    ], not_tried


def on_validation(question: Question, trials: Trials, arm: Arm) -> Summary:
    """An arm over its seeds on validation, with its differences from ERM."""
    return choosing.compared(arm, trials.runs[arm], question.baseline, trials.runs[question.baseline])


def _affordable(question: Question, left: float) -> list[Arm]:
    """The candidates to screen: from the front of the list as many as leave room for the best two on all seeds; the
    first wherever there is room for it on all seeds."""
    chosen, spent, others = list[Arm](), 0.0, len(question.seeds) - 1
    for arm, candidate in question.candidates.items():
        spent += candidate.most
        if spent + others * (FINALISTS if chosen else candidate.most) > left:
            break
        chosen.append(arm)
    return chosen


def _finalists(question: Question, trials: Trials, screened: Sequence[Arm]) -> list[Arm]:
    """The best on the first seed, of those better than ERM there; none that clearly lowers accuracy for groups that
    nobody asked for, and none that came to the weights of another, as PDE does where its warm-up is best."""
    better = choosing.ranked(screened, trials.runs, question.baseline, question.metric, question.seeds[0])
    finalists: dict[Measured, Arm] = {}
    for arm in better:
        reached = trials.runs[arm][question.seeds[0]].results.splits["validation"]
        if not choosing.harms_accuracy(on_validation(question, trials, arm), question.grouping):
            finalists.setdefault(reached, arm)
    return list(finalists.values())[:FINALISTS]


def _to_all_seeds(question: Question, trials: Trials, arm: Arm, options: Mapping[str, Mapping[str, Any]]) -> bool:
    candidate = question.candidates[arm]
    if trials.cost_on(arm, question.seeds, candidate.most if candidate.varies else None) > trials.left:
        return False
    trials.run([arm], question.seeds, options, label=f"{arm.pair} on all seeds")
    return len(trials.runs[arm]) == len(question.seeds)


def _add_control(question: Question, trials: Trials, arm: Arm, options: Mapping[str, Mapping[str, Any]]) -> None:
    ran = len(trials.runs.get(arm, {})) == len(question.seeds)
    if ran and trials.control_cost_on(arm, question.seeds) <= trials.left:
        trials.run([arm], question.seeds, options, label=f"control of {arm.pair}", controls=True)


def _sam_on_top(question: Question, trials: Trials, finals: Sequence[Arm]) -> Arm | None:
    """SAM with the method that is best on validation so far; None where that has it already."""
    if not finals or question.sam is None:
        return None
    best = max(finals, key=lambda arm: on_validation(question, trials, arm).mean(question.metric) or 0.0)
    return None if best.optimizer == question.sam else Arm(best.method, question.sam)


def _tried(question: Question, trials: Trials, arm: Arm, reason: str) -> Tried:
    summary, control = on_validation(question, trials, arm), trials.control(arm, question.seeds)
    final = summary.seeds == len(question.seeds)
    if control is None:
        return Tried(arm, reason, final, summary)
    against = choosing.compared(arm, trials.runs[arm], *control).difference(question.metric)
    beside = choosing.compared(*control, question.baseline, trials.runs[question.baseline])
    return Tried(arm, reason, final, summary, beside, against)
