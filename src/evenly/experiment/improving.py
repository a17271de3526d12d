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
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from inspect import isfunction
from pathlib import Path
from typing import Any

import torch
from attrs import evolve, frozen

from evenly.data import Data
from evenly.data.duplicates import in_training
from evenly.diagnose.audit_folder import save_audits
from evenly.diagnose.auditing import audit
from evenly.diagnose.profile import give_aways
from evenly.engine import check_selection
from evenly.engine.selector import RULES
from evenly.engine.world import current
from evenly.errors import EvenlyError
from evenly.experiment import choosing
from evenly.experiment.arms import Asked
from evenly.experiment.candidates import candidates_for
from evenly.experiment.execute import device_for, inferred_for, largest_images, prepare
from evenly.experiment.final_test import changed_examples, hand_back, load_run, tested_runs
from evenly.experiment.grouping import FOLDER as GROUPS
from evenly.experiment.grouping import Grouped, grouped_for
from evenly.experiment.logs import check_log
from evenly.experiment.recipes import recipe_of
from evenly.experiment.request import Request, plan_for, report_notes, seed_numbers, source, split_arguments
from evenly.experiment.screening import Question, affordable_seeds, try_candidates
from evenly.experiment.trial_data import TrialSource
from evenly.experiment.trials import Trials, Walk
from evenly.experiment.walking import made_folder, walked_runs
from evenly.experiment.work import RunWork
from evenly.files import as_path, holds_something, read_json, sealed, unused, write_json
from evenly.integrations.loggers import log_finished
from evenly.methods import Inferred
from evenly.methods.inferred import Infer
from evenly.optim.registry import known_name
from evenly.parallel.executors import Kept
from evenly.randomness import on_threads
from evenly.report import write_report
from evenly.runs.arms import Arm
from evenly.runs.folder import FORMAT, difference, read_results
from evenly.runs.improvement import (
    AUDIT,
    BEST,
    CHOICE,
    FILE,
    METRICS,
    PAGE,
    RUNS,
    Choice,
    DataProfile,
    GiveAway,
    Goal,
    Grouping,
    Improvement,
    Tested,
    Tried,
    Verdict,
    read_improvement,
)
from evenly.runs.plan import Model, Plan
from evenly.runs.results import DataSummary
from evenly.runs.run import Run
from evenly.settings import Execution, Improving, Settings, settings_of
from evenly.values import duration, plain

log = logging.getLogger("evenly")
DEFAULT = Path("runs")
"""Where the folder is made if none is given."""
AUDIT_SECONDS = 20.0
"""What the audit of plain training may take, about."""


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
        raise EvenlyError("improve takes the data and the rest by name; write evenly.improve(data, model=model, ...)")
    started = time.perf_counter()
    paper = recipe_of(data, recipe)
    model, data_options = paper.model if model is None else model, paper.for_data(data_options)
    arguments, execution = split_arguments({**paper.settings, **settings})
    if (processes := current(device_for(execution)).size) > 1:
        raise EvenlyError(
            f"improve shares no run among {processes} processes; call it without torchrun, and jobs shares out its runs"
        )
    check_log(execution, out or DEFAULT)
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
    if all((folder / name).exists() for name in (FILE, PAGE, f"{BEST}/report.html")):
        log.info("read from %s, where this is finished", folder)
        return evolve(read_improvement(folder), out=folder)
    with made_folder(folder, config), Kept() as kept:
        walk = partial(walked_runs, device=device_for(execution), kept=kept)
        job = Job(
            trial, whole, drawn, model, Arm("erm", known_name(optimizer)), numbers, values, asked, execution, folder,
            infer, lambda nodes, work, label: walk(nodes, work, label=label), started,
        )  # fmt: skip
        return job.run()


def _folder(out: Any, config: Mapping[str, Any]) -> Any:
    if out is None:
        return DEFAULT / f"improved-{config['improve']}"
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
    """An improvement under way.

    Args:
        whole: the data with its test set, which no network sees before the choice.
        drawn: splits that the data lacked.
        values: settings of the user's for all runs.
        infer: how groups are inferred where that is needed.
    """

    source: TrialSource
    whole: Data
    drawn: tuple[str, ...]
    model: Model | None
    baseline: Arm
    seeds: tuple[int, ...]
    values: Mapping[str, Any]
    asked: Improving
    execution: Execution
    out: Path
    infer: Infer
    walk: Walk
    started: float

    def run(self) -> Improvement:
        """All of it, in order."""
        budget, looked = self.asked.budget * len(self.seeds), self._look()
        room = budget - len(self.seeds)
        grouped = grouped_for(self.asked.goal, self.source, self.whole, self._audited_run, self._infer, self.out, room)
        data = grouped.source.data(self.seeds[0])
        goal: Goal = "worst-class" if grouped.grouping == "classes" else self.asked.goal
        rule = self._rule(goal, data, grouped.grouping)
        plan = self._plan(data, rule)
        unit = float(plan.reference_epochs * len(data.train))
        first = candidates_for(goal, grouped.grouping)[0]
        seeds = affordable_seeds(self.seeds, budget - grouped.cost / unit, first)
        question = Question(
            goal, METRICS[goal], grouped.grouping, data, plan.settings, self.baseline, seeds, self.asked.budget
        )
        trials = self._trials(grouped.source, data, rule, budget * unit, grouped.cost)
        trials.run([self.baseline], seeds, {}, label=f"plain training on {data.name}")
        if len(trials.runs.get(self.baseline, {})) < len(seeds):
            raise EvenlyError(trials.reasons.get(self.baseline, "plain training could not be finished; run it again"))
        estimate = self._estimate(trials)
        self._audit(trials.runs[self.baseline][seeds[0]], data)
        tried, not_tried = try_candidates(question, trials)
        choice = self._choice(question, trials, tried)
        tested, whole = self._tested(choice, question, grouped)
        handed = self._handed_back(choice, question, whole)
        improvement = Improvement(
            profile=profile_of(self.whole, whole, grouped, self.drawn, *looked), goal=goal, metric=question.metric,
            rule=rule, model=trials.runs[self.baseline][seeds[0]].results.model, seeds=tuple(seeds),
            seed=self.source.seed, budget=self.asked.budget, spent=trials.spent, unit=unit, groups_cost=grouped.cost,
            estimate=estimate,
            seconds=time.perf_counter() - self.started, tried=tuple(tried), not_tried=tuple(not_tried), choice=choice,
            verdict=self._verdict(choice, question, tried, tested), tested=tested, **handed,
            notes=tuple(filter(None, (grouped.note,))), loads=_loads(self.out),
        )  # fmt: skip
        improvement.save(self.out / FILE)
        write_report(self.out, runs=False)
        shutil.rmtree(self.out / GROUPS / "checkpoint", ignore_errors=True)
        return evolve(improvement, out=self.out)

    def _look(self) -> tuple[Mapping[str, int], tuple[GiveAway, ...]]:
        """What the data alone shows, before anything is spent: inputs that stand in two splits, and columns that give
        the label away."""
        duplicates, columns = in_training(self.whole), give_aways(self.whole)
        for name, count in duplicates.items():
            if count:
                log.info("%d of %d %s inputs are in training as well", count, len(self.whole.splits[name]), name)
        if columns:
            log.info("the column %s alone gives the label away", columns[0].column)
        return duplicates, columns

    @property
    def device(self) -> torch.device:
        return device_for(self.execution)

    @property
    def _given(self) -> Any:
        """The model of the user's own."""
        return None if isinstance(self.model, str) else self.model

    def _plan(self, data: Data, rule: str) -> Plan:
        request = Request("erm", self.baseline.optimizer, self.model, {**self.values, "select": rule})
        return plan_for(request, data, self.source.spec(data), self.seeds[0])

    def _trials(self, source: TrialSource, data: Data, rule: str, budget: float, spent: float) -> Trials:
        values = {**self.values, "select": rule}
        asked = Asked(
            source, self.model, ("erm",), (self.baseline.optimizer,), self.seeds, values, {}, {}, None, controls=False
        )
        return Trials(asked, data, RunWork(source, self.execution, self.out), self.walk, budget, spent)

    def _rule(self, goal: Goal, data: Data, grouping: Grouping) -> str:
        """The rule that selects an epoch: the user's, the recipe's where it goes by the goal, else the goal's own as
        far as the data allows it. Inferred groups of a few validation examples select by chance: accuracy does then."""
        if "select" in self.values:
            return str(self.values["select"])
        if grouping == "inferred":
            counts = torch.bincount(data.validation.groups)
            if int(counts[counts > 0].min()) < choosing.SMALL:
                return "average"
        own = str(data.recipe.get("select", "last"))
        for rule in (*([own] if RULES.get(own) == METRICS[goal] else []), goal, "worst-class", "average"):
            with contextlib.suppress(EvenlyError):
                check_selection(data, evolve(Settings(), select=rule))
                return rule
        return "last"

    def _audited_run(self) -> Run:
        """Plain training on the first seed, selected by accuracy, to find where it fails."""
        data = self.source.data(self.seeds[0])
        trials = self._trials(self.source, data, self._rule("average", data, "none"), math.inf, 0.0)
        trials.run([self.baseline], self.seeds[:1], {}, label="plain training, to find where it fails")
        if self.baseline not in trials.runs:
            raise EvenlyError(trials.reasons.get(self.baseline, "plain training could not be finished; run it again"))
        return trials.runs[self.baseline][self.seeds[0]]

    def _infer(self) -> Inferred:
        data = self.source.data(self.seeds[0])
        return inferred_for(prepare(self._plan(data, "last"), data), self.out / GROUPS, self.execution, self.infer)

    def _estimate(self, trials: Trials) -> float:
        """Seconds that the rest may take, which are shown before they are spent."""
        runs = trials.runs[self.baseline].values()
        seconds = sum(run.results.seconds for run in runs) / len(runs)
        at_once = self.execution.jobs if self.device.type == "cpu" else self.execution.together
        rest = max(0.0, trials.left) * seconds / at_once
        log.info(
            "plain training took %s a run; the budget leaves %.1f such runs, which take at most %s",
            duration(seconds), max(0.0, trials.left), duration(rest),
        )  # fmt: skip
        return rest

    def _audit(self, run: Run, data: Data) -> None:
        """The audit of plain training on validation, where it is not there yet."""
        folder = self.out / AUDIT
        if (folder / "audit.html").exists():
            return
        network = load_run(self.out / RUNS / run.plan.folder_name, self._given).model.to(self.device)
        result = audit(network, data, name="Plain training (ERM)", split="validation", top=0, within=AUDIT_SECONDS)
        save_audits(folder, [result], {"split": "validation"})
        write_report(folder)

    def _choice(self, question: Question, trials: Trials, tried: Sequence[Tried]) -> Choice:
        """The choice, which is not made again once it is written."""
        stored = read_json(self.out / CHOICE, "remove the folder and run the same `evenly improve` again")
        if stored is not None:
            return Choice.from_dict(stored)
        others = [each.on_validation for each in tried[1:]]
        best = choosing.best_of(others, question.metric, question.grouping, len(question.seeds))
        arm = self.baseline if best is None else best.arm
        control = None if best is None else trials.control(arm, question.seeds)
        arms = {"baseline": trials.runs[self.baseline], "chosen": trials.runs[arm]}
        arms |= {} if control is None else {"control": control[1]}
        few = self._smallest(question, tried)
        choice = Choice(
            arm,
            self.baseline,
            choosing.reason_of(best, question.metric, few, len(others), len(question.seeds)),
            trials.runs[arm][choosing.seed_to_hand_back(trials.runs[arm], question.metric, few)].plan.folder_name,
            {part: {str(seed): run.plan.folder_name for seed, run in runs.items()} for part, runs in arms.items()},
            None if control is None else control[0],
            None if best is None else best.difference(question.metric),
        )
        write_json(self.out / CHOICE, sealed(choice.to_dict()))
        return choice

    def _tested(self, choice: Choice, question: Question, grouped: Grouped) -> tuple[tuple[Tested, ...], Data]:
        """ERM, the chosen arm and its control on the test set, and the data with that set."""
        whole = grouped.with_test(self.whole, self.out)
        folders = [name for runs in choice.runs.values() for name in runs.values()]
        runs = tested_runs(self.out, folders, whole, self.device, self._given)
        parts = {part: {int(s): runs[name] for s, name in each.items()} for part, each in choice.runs.items()}
        baseline = self.baseline, parts["baseline"]
        tested = [Tested(self.baseline, choosing.compared(*baseline, *baseline))]
        if choice.arm != self.baseline:
            beside = (choice.control, parts["control"]) if choice.control is not None else None
            against = None if beside is None else choosing.compared(choice.arm, parts["chosen"], *beside)
            summary = choosing.compared(choice.arm, parts["chosen"], *baseline)
            tested.append(Tested(choice.arm, summary, None if against is None else against.difference(question.metric)))
        if choice.control not in (None, self.baseline):
            summary = choosing.compared(choice.control, parts["control"], *baseline)
            tested.append(Tested(choice.control, summary))
        return tuple(tested), whole

    def _smallest(self, question: Question, tried: Sequence[Tried]) -> choosing.Smallest:
        data = question.data
        counts = torch.bincount(data.validation.labels, minlength=data.classes).tolist()
        return choosing.smallest(tried[0].on_validation, question.metric, data.measured_names, counts)

    def _verdict(self, choice: Choice, question: Question, tried: Sequence[Tried], tested: Sequence[Tested]) -> Verdict:
        if choice.arm == self.baseline:
            return choosing.verdict_without(len(tried) - 1, self._smallest(question, tried).examples)
        return choosing.verdict_on_test(tested[1].summary.difference(question.metric))

    def _handed_back(self, choice: Choice, question: Question, whole: Data) -> dict[str, Any]:
        """Make `best/`; the validation examples that it and ERM disagree about."""
        spec = self.source.spec_of_whole(self.whole, self.drawn)
        named = self.whole if self.drawn else evolve(self.source, no_groups=False).whole()[0]
        best = hand_back(self.out, choice.best, whole, spec, named.fingerprint())
        log_finished(self.execution.log, best)
        first = choice.runs["baseline"][str(question.seeds[0])]
        before, after = (load_run(self.out / RUNS / name, self._given) for name in (first, choice.best))
        gained, lost, gained_count, lost_count = changed_examples(before, after, question.data, self.out)
        changed = {"gained": gained, "lost": lost, "gained_count": gained_count, "lost_count": lost_count}
        return {**changed, "best": read_results(best).splits["test"]}


def profile_of(
    original: Data, whole: Data, grouped: Grouped, drawn: tuple[str, ...], duplicates: Mapping[str, int],
    columns: tuple[GiveAway, ...],
) -> DataProfile:  # fmt: skip
    """What the data is.

    Args:
        original: without the groups that were decided on, which `whole` has.
    """

    def counts(values: torch.Tensor, width: int) -> tuple[int, ...]:
        if values.ndim == 2:
            return tuple(values.sum(0).tolist())
        return tuple(torch.bincount(values, minlength=width).tolist())

    names = tuple(whole.measured_names)
    groups = {name: split.measured_groups for name, split in whole.splits.items()}
    return DataProfile(
        summary=DataSummary.of(original),
        class_counts={name: counts(split.labels, original.classes) for name, split in original.splits.items()},
        grouping=grouped.grouping,
        group_names=names,
        group_counts={name: counts(each, len(names)) for name, each in groups.items() if each is not None},
        drawn=drawn,
        duplicates=duplicates,
        give_aways=columns,
        slice=grouped.slice,
    )


def _loads(out: Path) -> tuple[str, ...]:
    """The lines of Python that load the model."""
    return ("import evenly", f"run = evenly.load({str(out / BEST)!r})", "print(run.predict(new).names)")
