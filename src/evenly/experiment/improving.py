"""`evenly.improve`: the whole job. Where does plain training fail, what helps, and is it worth it?

1. Look: what the data is. ERM is trained on every seed, and from its time the rest is estimated.
2. Find where it fails: the audit of ERM on validation. Where no groups are given, a failing slice of the data's columns
   makes them, else an early network infers them.
3. Try: candidates that fit (`candidates`), each on the first seed; the two best on all seeds with their controls of
   equal cost; SAM on top of the best.
4. Choose on validation (`choosing`), write the choice down, and only then test (`final_test`).

Every run has the same examples and no test set. A job that was interrupted goes on with the same call.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from inspect import isfunction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import evolve, frozen

from evenly.data import Data
from evenly.data.duplicates import in_training
from evenly.diagnose.audit_folder import save_audits
from evenly.diagnose.auditing import audit
from evenly.diagnose.profile import give_aways
from evenly.engine import check_selection
from evenly.engine.selector import RULES
from evenly.errors import EvenlyError
from evenly.experiment import choosing
from evenly.experiment.arms import Asked
from evenly.experiment.candidates import ON_TOP, Candidate, candidates_for
from evenly.experiment.execute import device_for, inferred_for, largest_images, prepare
from evenly.experiment.final_test import changed_examples, hand_back, load_run, tested_runs
from evenly.experiment.recipes import recipe_of
from evenly.experiment.request import Request, plan_for, report_notes, seed_numbers, source, split_arguments
from evenly.experiment.trial_data import TrialSource
from evenly.experiment.trials import Trials
from evenly.experiment.walking import made_folder, walked_runs
from evenly.experiment.work import RunWork
from evenly.files import as_path, atomic, holds_something, make_folder, read_json, sealed, unused, write_json
from evenly.methods import Inferred
from evenly.optim.registry import PLAIN, known_name
from evenly.randomness import on_threads
from evenly.runs.arms import Arm
from evenly.runs.folder import FORMAT, difference
from evenly.runs.improvement import (
    AUDIT,
    CHOICE,
    FILE,
    METRICS,
    PAGE,
    RUNS,
    Choice,
    DataProfile,
    Goal,
    Grouping,
    Improvement,
    NotTried,
    Tested,
    Tried,
    read_improvement,
)
from evenly.runs.plan import Model
from evenly.runs.results import DataSummary
from evenly.runs.run import Run
from evenly.runs.summary import Summary
from evenly.settings import Execution, Improving, Settings, settings_of
from evenly.values import duration, plain

log = logging.getLogger("evenly")
FINALISTS = 2
GROUPS = "groups"
"""The folder of the early network that groups are inferred by, and the file of these groups."""


@on_threads(1)
def improve(
    data: Data | str | Path | Any,
    *misplaced: Any,
    model: Model | None = None,
    optimizer: str = "sgd",
    seeds: int = 3,
    seed: int = 0,
    data_options: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    out: str | Path | Any | None = None,
    **settings: Any,
) -> Improvement:
    """Find where plain training fails, try what could help, choose on validation, test once.

    Args:
        data: as for `evenly.train`. Splits that are missing are drawn from training, a fifth of all examples each.
        model, optimizer, data_options, recipe: as for `evenly.train`.
        seeds: how many runs each method has that goes on to the end, with seeds from `seed` on.
        seed: also draws or divides the data, the same for all runs.
        out: the folder; what was interrupted there goes on. By default one in `runs/` that is named after the data.
        settings: `goal` and `budget` (`evenly.settings.Improving`), any of `evenly.settings.Settings` for all runs
            alike, and of `evenly.settings.Execution`. ``groups="infer"`` leaves the data's own groups out.
    """
    if misplaced:
        from evenly.experiment.training import new_order

        raise EvenlyError(new_order("improve", data, misplaced))
    started = time.perf_counter()
    paper = recipe_of(data, recipe)
    model, data_options = paper.model if model is None else model, paper.for_data(data_options)
    arguments, execution = split_arguments({**paper.settings, **settings})
    asked = Improving(**{name: arguments.pop(name) for name in settings_of(Improving) if name in arguments})
    numbers = tuple(seed + each for each in seed_numbers(seeds))
    place, values = source(data, data_options, arguments, None if model is not None else largest_images(execution))
    unknown = values.pop("groups", "given") == "infer"
    infer = values.pop("infer", "useful")
    trial = TrialSource(
        place.given, place.options, place.largest, processes=execution.jobs, seed=seed, no_groups=unknown
    )
    whole, drawn = trial.whole()
    report_notes(whole)
    config = {
        "format": FORMAT,
        "improve": whole.name,
        "fingerprints": {"data": whole.fingerprint()},
        "model": plain(model),
        "optimizer": known_name(optimizer),
        **asked.to_dict(),
        "seeds": list(numbers),
        "data_options": plain(place.options),
        "settings": plain({**values, "groups": "infer" if unknown else "given", "infer": infer}),
    }
    folder = as_path(_folder(out, config), "out")
    _check_folder(folder, config)
    if (folder / FILE).exists() and (folder / PAGE).exists():
        log.info("read from %s, where this is finished", folder)
        return evolve(read_improvement(folder), out=folder)
    with made_folder(folder, config), contextlib.ExitStack() as connection:
        walk = partial(walked_runs, device=device_for(execution), connection=connection)
        job = Job(trial, whole, drawn, model, known_name(optimizer), numbers, values, asked, execution, folder, infer)
        return job.run(lambda nodes, work, label: walk(nodes, work, label=label), started)


def _folder(out: Any, config: Mapping[str, Any]) -> Any:
    if out is None:
        return Path("runs") / f"improved-{config['improve']}"
    return out(config) if isfunction(out) else out


def _check_folder(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a folder that is neither new nor of the same question."""
    if path.is_file():
        raise EvenlyError(f"{path} is a file; give a folder as out")
    there = read_json(path / "config.json")
    if there is None and holds_something(path):
        raise EvenlyError(f"{path} is not empty and holds no improvement; choose another out")
    if there is not None and there != config:
        why = difference(there, config) if isinstance(there, dict) and "improve" in there else "it is no improvement"
        raise EvenlyError(f"{path} holds another run ({why}); give out={str(unused(path))!r}")


@frozen(eq=False)
class Job:
    """One improvement under way.

    Args:
        whole: the data with its test set, which no network sees before the choice.
        drawn: splits that the data lacked.
        values: settings of the user's for all runs.
    """

    source: TrialSource
    whole: Data
    drawn: tuple[str, ...]
    model: Model | None
    optimizer: str
    seeds: tuple[int, ...]
    values: Mapping[str, Any]
    asked: Improving
    execution: Execution
    out: Path
    infer: Any

    @property
    def device(self) -> torch.device:
        return device_for(self.execution)

    def run(self, walk: Any, started: float) -> Improvement:
        """All of it."""
        goal, baseline = self.asked.goal, Arm("erm", self.optimizer)
        grouped = self._grouped(goal)
        data = grouped.source.data(self.seeds[0])
        goal, rule = self._goal_and_rule(goal, data)
        metric, total = METRICS[goal], self.asked.budget * len(self.seeds)
        asked = Asked(
            grouped.source, self.model, ("erm",), (self.optimizer,), self.seeds, {**self.values, "select": rule},
            {}, {}, None, controls=False,
        )  # fmt: skip
        work = RunWork(grouped.source, self.execution, self.out)
        unit = float(self._plan(data, rule).reference_epochs * len(data.train))
        trials = Trials(asked, data, work, walk, total * unit, grouped.cost)
        seeds = affordable_seeds(self.seeds, total - grouped.cost / unit, candidates_for(goal, grouped.grouping))
        trials.run([baseline], seeds, {}, label=f"plain training on {data.name}")
        if baseline not in trials.runs or len(trials.runs[baseline]) < len(seeds):
            raise EvenlyError(trials.reasons.get(baseline, "plain training failed"))
        estimate = self._estimate(trials, baseline)
        self._audit(trials.runs[baseline][seeds[0]], data)
        tried, not_tried = self._try(trials, baseline, goal, metric, grouped, data, seeds)
        choice = self._choice(trials, baseline, metric, grouped, tried, seeds, data)
        return self._test(
            trials, choice, tried, not_tried, grouped, data, seeds, goal=goal, rule=rule, unit=unit,
            estimate=estimate, started=started,
        )  # fmt: skip

    def _plan(self, data: Data, rule: str) -> Any:
        request = Request("erm", self.optimizer, self.model, {**self.values, "select": rule})
        return plan_for(request, data, self.source.spec(data), self.seeds[0])

    def _goal_and_rule(self, goal: Goal, data: Data) -> tuple[Goal, str]:
        """The goal, as far as the data allows it, and the rule that selects an epoch by it."""
        if goal == "worst-group" and data.train.groups is None:
            goal = "worst-class"
        if "select" in self.values:
            return goal, str(self.values["select"])
        own = data.recipe.get("select", "last")
        rules = [own] if RULES.get(own) == METRICS[goal] else []
        for rule in (*rules, goal, "worst-class", "average"):
            try:
                check_selection(data, evolve(Settings(), select=rule))
            except EvenlyError:
                continue
            return goal, rule
        return goal, "last"

    def _grouped(self, goal: Goal) -> Grouped:
        """The groups to go by: given, the classes, or inferred; none where nothing can be inferred."""
        data, groups = self.source.data(self.seeds[0]), self.whole.train.groups
        if goal == "worst-class":
            by_classes = {name: split.labels for name, split in self.whole.splits.items()}
            names = DataSummary.of(self.whole).class_names
            return Grouped(evolve(self.source, groups=by_classes, group_names=names, no_groups=False), "classes")
        if groups is not None or goal == "average":
            return Grouped(self.source, "given" if groups is not None else "none")
        place = self.out / GROUPS
        try:
            inferred = inferred_for(prepare(self._plan(data, "last"), data), place, self.execution, self.infer)
        except EvenlyError as error:
            log.info("groups cannot be inferred: %s", error)
            return Grouped(self.source, "none", note=f"Groups could not be inferred: {error}.")
        arrays = {name: split.groups for name, split in inferred.data.splits.items()}
        stored = _stored(place / "groups.npz", {name: each.numpy() for name, each in arrays.items()})
        names = tuple(map(str, inferred.data.group_names or ()))
        found = evolve(self.source, groups=stored, group_names=names, no_groups=False)
        return Grouped(found, "inferred", inferred.cost, inferred)

    def _estimate(self, trials: Trials, baseline: Arm) -> float:
        """Seconds that the rest may take, which are shown before they are spent."""
        runs = trials.runs[baseline].values()
        seconds = sum(run.results.seconds for run in runs) / len(runs)
        at_once = self.execution.jobs if self.device.type == "cpu" else self.execution.together
        rest = max(0.0, trials.left) * seconds / at_once
        log.info(
            "plain training took %s a run; the budget of %g runs for each of %d seeds leaves %.1f, at most %s",
            duration(seconds), self.asked.budget, len(self.seeds), max(0.0, trials.left), duration(rest),
        )  # fmt: skip
        return rest

    def _audit(self, run: Run, data: Data) -> None:
        """The audit of plain training on validation, where it is not there yet."""
        folder = self.out / AUDIT
        if (folder / "audit.html").exists():
            return
        from evenly.report import write_report

        network = load_run(self.out / RUNS / run.plan.folder_name, self._given).model.to(self.device)
        result = audit(network, data, name="plain training (ERM)", split="validation", top=0, within=20.0)
        save_audits(folder, [result], {"split": "validation"})
        write_report(folder)

    @property
    def _given(self) -> Any:
        return None if isinstance(self.model, str) else self.model

    def _try(
        self, trials: Trials, baseline: Arm, goal: Goal, metric: str, grouped: Grouped, data: Data, seeds: Sequence[int]
    ) -> tuple[list[Tried], list[NotTried]]:
        """Screen, take the best to all seeds with their controls, then SAM on top."""
        plan, sam = self._plan(data, "last"), _sam_of(self.optimizer)
        candidates = {
            Arm(each.method, sam if each.sam and sam else self.optimizer): each
            for each in candidates_for(goal, grouped.grouping)
            if not each.sam or sam
        }
        options = {each.method: each.options(data, plan.settings) for each in candidates.values()}
        reserve, room, screened = 2.0 * (len(seeds) - 1), trials.left, list[Arm]()
        for arm, each in candidates.items():
            if room - each.cost < min(reserve, room - candidates[next(iter(candidates))].cost):
                break
            room -= each.cost
            screened.append(arm)
        budget = f"the budget of {self.asked.budget:g} runs of plain training for each seed has no room for it"
        not_tried = [NotTried(arm, budget) for arm in candidates if arm not in screened]
        trials.run(screened, seeds[:1], options, label="screening on one seed")
        better = choosing.ranked(screened, trials.runs, baseline, metric, seeds[0])
        better = [
            arm for arm in better
            if not choosing.harms_accuracy(self._on_validation(trials, arm, baseline), grouped.grouping)
        ]  # fmt: skip
        finals = []
        for arm in better[:FINALISTS]:
            if trials.cost_on(arm, seeds) <= trials.left:
                trials.run([arm], seeds, options, label=f"{arm.pair} on all seeds")
                finals.append(arm)
        self._controls(trials, finals, seeds, options)
        if sam and (best := self._best(trials, finals, baseline, metric)) and best.optimizer != sam:
            on_top = Arm(best.method, sam)
            if on_top in trials.runs:
                pass
            elif 2 * len(seeds) * (trials.cost(best) or 1.0) * 1.1 <= trials.left:
                trials.run([on_top], seeds, options, label=f"{on_top.pair} on all seeds")
                self._controls(trials, [on_top], seeds, options)
                candidates[on_top] = evolve(ON_TOP, method=best.method)
            else:
                not_tried.append(NotTried(on_top, budget))
        not_tried += [NotTried(arm, reason) for arm, reason in trials.reasons.items() if arm not in trials.runs]
        tried = [Tried(baseline, "the baseline", True, self._on_validation(trials, baseline, baseline))]
        for arm, each in candidates.items():
            if arm in trials.runs:
                tried.append(self._tried(trials, arm, baseline, each, seeds, metric))
        return tried, not_tried

    def _controls(self, trials: Trials, arms: Sequence[Arm], seeds: Sequence[int], options: Any) -> None:
        for arm in arms:
            ran = len(trials.runs.get(arm, {})) == len(seeds)
            if ran and trials.control_cost_on(arm, seeds) <= trials.left:
                trials.run([arm], seeds, options, label=f"control of {arm.pair}", controls=True)

    def _best(self, trials: Trials, finals: Sequence[Arm], baseline: Arm, metric: str) -> Arm | None:
        values = {arm: self._on_validation(trials, arm, baseline).mean(metric) or 0.0 for arm in finals}
        return max(values, key=values.__getitem__) if values else None

    def _on_validation(self, trials: Trials, arm: Arm, baseline: Arm) -> Summary:
        return choosing.compared(arm, trials.runs[arm], baseline, trials.runs[baseline])

    def _tried(
        self, trials: Trials, arm: Arm, baseline: Arm, candidate: Candidate, seeds: Sequence[int], metric: str
    ) -> Tried:
        summary, control = self._on_validation(trials, arm, baseline), trials.control(arm, seeds)
        final = summary.seeds == len(seeds)
        if control is None:
            return Tried(arm, candidate.reason, final, summary)
        against = choosing.compared(arm, trials.runs[arm], *control).difference(metric)
        beside = choosing.compared(control[0], control[1], baseline, trials.runs[baseline])
        return Tried(arm, candidate.reason, final, summary, beside, against)

    def _choice(
        self, trials: Trials, baseline: Arm, metric: str, grouped: Grouped, tried: Sequence[Tried],
        seeds: Sequence[int], data: Data,
    ) -> Choice:  # fmt: skip
        """The choice, which is not made again once it is written."""
        stored = read_json(self.out / CHOICE, "remove the folder and run the same `evenly improve` again")
        if stored is not None:
            return Choice.from_dict(stored)
        others = [each.on_validation for each in tried if each.arm != baseline]
        best = choosing.best_of(others, metric, grouped.grouping, len(seeds))
        arm = baseline if best is None else best.arm
        control = None if best is None else trials.control(arm, seeds)
        arms = {"baseline": trials.runs[baseline], "chosen": trials.runs[arm]}
        arms |= {} if control is None else {"control": control[1]}
        counts = torch.bincount(data.validation.labels, minlength=data.classes).tolist()
        few = choosing.smallest(tried[0].on_validation, metric, data.measured_names, counts)
        verdict = choosing.verdict_of(best is not None, None, few.examples, len(others))
        choice = Choice(
            arm, baseline, verdict, _reason(best, metric, few, len(others), len(seeds)),
            trials.runs[arm][choosing.seed_to_hand_back(trials.runs[arm], metric)].plan.folder_name,
            {part: {str(seed): run.plan.folder_name for seed, run in runs.items()} for part, runs in arms.items()},
            None if control is None else control[0],
            None if best is None else best.difference(metric),
        )  # fmt: skip
        write_json(self.out / CHOICE, sealed(choice.to_dict()))
        return choice

    def _test(
        self, trials: Trials, choice: Choice, tried: Sequence[Tried], not_tried: Sequence[NotTried], grouped: Grouped,
        data: Data, seeds: Sequence[int], *, goal: Goal, rule: str, unit: float, estimate: float, started: float,
    ) -> Improvement:  # fmt: skip
        """Test once, hand back the model, write it all down."""
        metric, original = METRICS[goal], self.whole
        whole = grouped.with_test(original)
        folders = [name for runs in choice.runs.values() for name in runs.values()]
        runs = tested_runs(self.out, folders, whole, self.device, self._given)
        by_part = {
            part: {int(seed): runs[name] for seed, name in of_part.items()} for part, of_part in choice.runs.items()
        }
        tested = [Tested(choice.baseline, self._test_summary(choice.baseline, by_part["baseline"], choice, by_part))]
        if choice.arm != choice.baseline:
            against = None
            if choice.control is not None:
                beside = choosing.compared(choice.arm, by_part["chosen"], choice.control, by_part["control"])
                against = beside.difference(metric)
            summary = self._test_summary(choice.arm, by_part["chosen"], choice, by_part)
            tested.append(Tested(choice.arm, summary, against))
        if choice.control is not None and choice.control != choice.baseline:
            summary = self._test_summary(choice.control, by_part["control"], choice, by_part)
            tested.append(Tested(choice.control, summary))
        on_test = tested[1].summary.difference(metric) if choice.arm != choice.baseline else None
        verdict = choice.verdict
        if choice.arm != choice.baseline:
            verdict = choosing.verdict_of(True, on_test, 0, len(tried))
        spec = self.source.spec_of_whole(original, self.drawn)
        hand_back(self.out, choice.best, whole, spec, original.fingerprint())
        before = load_run(self.out / RUNS / choice.runs["baseline"][str(seeds[0])], self._given)
        after = load_run(self.out / RUNS / choice.best, self._given)
        gained, lost, gained_count, lost_count = changed_examples(before, after, data, self.out)
        improvement = Improvement(
            profile=profile_of(original, whole, grouped, self.drawn), goal=goal, metric=metric, rule=rule,
            model=before.results.model, seeds=tuple(seeds), seed=self.source.seed, budget=self.asked.budget,
            spent=trials.spent, unit=unit, groups_cost=grouped.cost, estimate=estimate,
            seconds=time.perf_counter() - started, tried=tuple(tried), not_tried=tuple(not_tried), choice=choice,
            verdict=verdict, tested=tuple(tested), gained=gained, lost=lost, gained_count=gained_count,
            lost_count=lost_count, notes=tuple(filter(None, (grouped.note,))), loads=_loads(self.out),
        )  # fmt: skip
        improvement.save(self.out / FILE)
        from evenly.report import write_report

        write_report(self.out, runs=False)
        shutil.rmtree(self.out / GROUPS / "checkpoint", ignore_errors=True)
        return evolve(improvement, out=self.out)

    def _test_summary(
        self, arm: Arm, runs: Mapping[int, Run], choice: Choice, by_part: Mapping[str, Mapping[int, Run]]
    ) -> Summary:
        return choosing.compared(arm, runs, choice.baseline, by_part["baseline"])


@frozen(eq=False)
class Grouped:
    """The data with the groups that were decided on, where they are from, what it cost to infer them."""

    source: TrialSource
    grouping: Grouping
    cost: float = 0.0
    inferred: Inferred | None = None
    note: str = ""

    def with_test(self, whole: Data) -> Data:
        """The data with its test set, after the choice; where groups were inferred, by the early network there too."""
        if self.inferred is None:
            return self.source.whole()[0]
        assert self.source.groups is not None
        from evenly.models import encoded

        test = encoded(whole, self.inferred.network).test
        groups = {**self.source.groups, "test": self.inferred.assign(test)}
        return evolve(self.source, groups=groups).whole()[0]


def affordable_seeds(seeds: Sequence[int], total: float, candidates: Sequence[Candidate]) -> Sequence[int]:
    """As many seeds as leave room for one candidate on all of them, three at least; `total` is in runs of ERM."""
    count, first = len(seeds), candidates[0].cost
    while count > 3 and count * (1 + first) > total:
        count -= 1
    return seeds[:count]


def profile_of(original: Data, whole: Data, grouped: Grouped, drawn: tuple[str, ...]) -> DataProfile:
    """What the data is."""

    def counts(values: torch.Tensor, width: int) -> tuple[int, ...]:
        if values.ndim == 2:
            return tuple(values.sum(0).tolist())
        return tuple(torch.bincount(values, minlength=width).tolist())

    groups = {name: split.measured_groups for name, split in whole.splits.items()}
    names = tuple(whole.measured_names)
    return DataProfile(
        DataSummary.of(original),
        {name: counts(split.labels, original.classes) for name, split in original.splits.items()},
        grouped.grouping,
        names,
        {name: counts(each, len(names)) for name, each in groups.items() if each is not None},
        drawn,
        in_training(original),
        give_aways(original),
    )


def _stored(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, torch.Tensor]:
    """Groups as they were first decided on: on a GPU, a second inference may round otherwise."""
    if not path.exists():
        make_folder(path.parent)
        with atomic(path) as file:
            np.savez(file, **dict(arrays))
    with np.load(path, allow_pickle=False) as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}


def _sam_of(optimizer: str) -> str | None:
    """SAM around an optimizer; None where the optimizer perturbs already."""
    return next((name for name, base in PLAIN.items() if base == optimizer and name.startswith("sam")), None)


def _reason(best: Summary | None, metric: str, few: choosing.Smallest, tried: int, seeds: int) -> str:
    """The choice in a sentence."""
    words = metric.replace("_", "-").replace("worst-group", "worst-group accuracy").replace(
        "worst-class", "worst-class accuracy"
    )  # fmt: skip
    if best is None:
        if not tried:
            return "Nothing was tried, so plain training (ERM) is handed back."
        if few.examples < choosing.SMALL:
            where = f" {few.what}" if few.what else ""
            return (
                f"Nothing is clearly better than plain training (ERM), which is handed back: with {few.examples} "
                f"validation examples{where}, there are too few examples to tell."
            )
        return "Nothing is clearly better than plain training (ERM) on validation, so that is handed back."
    gain = best.difference(metric)
    assert gain is not None
    over = f"{gain.over_examples} over examples"
    over += f", {gain.over_seeds} over seeds" if seeds >= 3 else ", clear for these models only: fewer than three seeds"
    return (
        f"{best.arm.method} with {best.arm.optimizer} is chosen: {gain.points} points of validation {words} against "
        f"plain training (ERM) ({over})."
    )


def _loads(out: Path) -> tuple[str, ...]:
    return ("import evenly", f"run = evenly.load({str(out / 'best')!r})", "print(run.predict(new).names)")
