"""Claims are run once, kept, judged, and compared with what held before."""

from __future__ import annotations

import json
import shutil

import pytest

import evenly
from evenly.errors import EvenlyError
from evenly.papers import claims, nodes
from evenly.papers.claims import Scale, claim, untestable
from evenly.papers.nodes import Stored, computed, trained
from evenly.papers.reproducing import reproduce
from evenly.papers.useful.theorems import gradient_errors
from evenly.runs.verdict import CLAIMS, Chart, Check, HeatMap, Judgement, line, measurement, read_verdicts

CALLS: list[int] = []


def draw(seed: int, add: float = 0.0) -> dict[str, float]:
    CALLS.append(seed)
    return {"value": seed + add}


def stops(seed: int) -> None:
    raise KeyboardInterrupt


def fails() -> None:
    raise EvenlyError("it cannot be computed; this is a test")


def mean_above(least: float):
    def judge(draws: list[dict[str, float]]) -> Judgement:
        values = [each["value"] for each in draws]
        chart = Chart("value", "seed", (line("draw", range(len(values)), values),))
        cells = HeatMap("share", "x", "y", (1, 2), (1, 2), ((0.0, 0.5), (1.0, 0.2)))
        check = Check(f"the mean is above {least}", sum(values) / len(values) > least)
        return Judgement(
            [check, Check("a side point", False, main=False)], [measurement("value", values)], [chart], [cells]
        )

    return judge


@pytest.fixture
def registry(monkeypatch):
    """No claim but those of the test."""
    CALLS.clear()
    own: dict[str, claims.Claim] = {}
    monkeypatch.setattr(claims, "_REGISTERED", own)
    monkeypatch.setattr(claims, "import_module", lambda name: None)
    return own


def register(id: str = "useful/mean", least: float = 0.5, node=None, **options):
    uses = node or (lambda scale: {"draws": [computed(draw, seed=seed) for seed in scale.seeds(3)]})
    return claim(id, where="Figure 0", states="The mean is large.", rule="It is above.", uses=uses, **options)(
        mean_above(least)
    )


def test_a_node_is_computed_once_for_all_claims_and_all_calls(registry, tmp_path):
    register()
    register("pde/mean", least=5)
    first = reproduce(out=tmp_path)
    assert {each.id: each.outcome for each in first.verdicts} == {
        "useful/mean": "holds in part",
        "pde/mean": "does not hold",
    }
    assert CALLS == [0, 1, 2]
    assert reproduce(out=tmp_path).verdicts == first.verdicts
    assert CALLS == [0, 1, 2]
    assert list(read_verdicts(tmp_path)) == ["useful/mean", "pde/mean"]
    page = (tmp_path / "useful.html").read_text()
    assert "The mean is above 0.5" in page or "the mean is above 0.5" in page
    assert (tmp_path / "pde.html").exists()


def test_it_goes_on_where_it_was_stopped_also_in_a_copied_folder(registry, tmp_path):
    def uses(scale: Scale):
        return {"draws": [computed(draw, seed=0), computed(stops, seed=1), computed(draw, seed=2)]}

    register(node=uses)
    with pytest.raises(KeyboardInterrupt):
        reproduce(out=tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    registry.clear()
    register(node=lambda scale: {"draws": [computed(draw, seed=0), computed(draw, seed=2)]})
    verdicts = reproduce(out=tmp_path / "b").verdicts
    assert CALLS == [0, 2]
    registry.clear()
    register(node=lambda scale: {"draws": [computed(draw, seed=0), computed(draw, seed=2)]})
    assert reproduce(out=tmp_path / "c").verdicts == verdicts


def test_another_version_of_evenly_computes_again_and_so_is_a_damaged_result(registry, tmp_path, monkeypatch):
    register()
    reproduce(out=tmp_path)
    monkeypatch.setattr(nodes, "__version__", "0.0")
    reproduce(out=tmp_path)
    assert CALLS == [0, 1, 2] * 2
    file = next((tmp_path / "computations").iterdir()) / "result.json"
    file.write_text(file.read_text().replace('"seconds"', '"second"'))
    reproduce(out=tmp_path)
    assert len(CALLS) == 7
    for content in ("[]", "{", '{"a": 1}', "null"):
        file.write_text(content)
        assert reproduce(out=tmp_path).verdicts[0].outcome == "holds in part"


def test_a_claim_that_fails_is_named_and_the_others_are_judged(registry, tmp_path):
    register()
    register("pde/broken", node=lambda scale: {"draws": [computed(fails)]})
    outcome = reproduce(out=tmp_path)
    assert [each.id for each in outcome.verdicts] == ["useful/mean"]
    assert "it cannot be computed" in outcome.failures["pde/broken"]


def test_a_broken_claim_loses_no_other_and_no_old_verdict_stands_for_it(registry, tmp_path):
    register()
    register("pde/mean")
    reproduce(out=tmp_path)
    registry.clear()

    def broken(**results):
        raise KeyError("value")

    register()
    claim("pde/mean", where="T", states="It.", rule="It.", uses=lambda scale: {"draws": [computed(draw, seed=0)]})(
        broken
    )
    register("pde/plan", node=lambda scale: {"draws": [trained("shortcut-digits", method="pdee")]})
    register("pde/endless", node=lambda scale: {"draws": [computed(draw, seed=0, add=1e400)]})
    outcome = reproduce(out=tmp_path)
    assert set(outcome.failures) == {"pde/mean", "pde/plan", "pde/endless"}
    assert "did you mean 'pde'" in outcome.failures["pde/plan"]
    assert list(read_verdicts(tmp_path)) == ["useful/mean"]


def test_without_a_main_check_nothing_is_decided():
    for checks in ([], [Check("a side point", True, main=False)]):
        with pytest.raises(EvenlyError, match="no main check"):
            _ = Judgement(checks).outcome


def test_a_value_that_is_not_finite_has_no_mean():
    assert measurement("cost", [1.0, float("inf")]).mean is None
    assert measurement("recall", []).mean is None


def test_a_claim_that_held_before_and_does_not_now_is_named(registry, tmp_path):
    register()
    reproduce(out=tmp_path / "a")
    first = shutil.copytree(tmp_path / "a", tmp_path / "first")
    registry.clear()
    register(least=50)
    assert not reproduce(out=tmp_path / "b").turned
    assert [each.id for each in reproduce(out=tmp_path / "b", against=tmp_path / "a").turned] == ["useful/mean"]
    assert [each.id for each in reproduce(out=tmp_path / "a").turned] == ["useful/mean"]
    assert not reproduce(out=tmp_path / "a").turned
    registry.clear()
    register(needs=(claims.GPU,))
    assert [each.id for each in reproduce(out=tmp_path / "c", device="cpu", against=first).turned] == ["useful/mean"]
    assert not reproduce(out=tmp_path / "c", device="cpu", against=first, seeds=2).turned
    with pytest.raises(EvenlyError, match="holds no verdicts"):
        reproduce(out=tmp_path / "a", against=tmp_path / "nothing")


def test_verdicts_of_other_claims_stay_in_the_folder(registry, tmp_path):
    register()
    register("pde/mean")
    reproduce("pde", out=tmp_path)
    reproduce("useful/mean", out=tmp_path, seeds=1)
    there = read_verdicts(tmp_path)
    assert list(there) == ["useful/mean", "pde/mean"]
    judgements = {id: verdict.judgement for id, verdict in there.items()}
    assert judgements["useful/mean"].measurements[0].seeds == 1
    assert judgements["pde/mean"].measurements[0].seeds == 3


def test_what_cannot_be_judged_says_why(registry, tmp_path):
    untestable("useful/full", where="Table 2", states="It gains.", why="needs CIFAR-100, which is not here")
    register("useful/gpu", needs=(claims.GPU,))
    register("useful/large", scales=("paper",))
    register("useful/stored", node=lambda scale: {"draws": [Stored("nothing.json", minutes=5)]})
    register("useful/data", node=lambda scale: {"draws": [trained("waterbirds")]}, needs=("waterbirds",))
    reasons = {each.id: each.reason for each in reproduce(out=tmp_path, device="cpu").verdicts}
    assert reasons["useful/full"] == "needs CIFAR-100, which is not here"
    assert reasons["useful/gpu"] == "it needs a GPU"
    assert reasons["useful/large"] == "it has no small scale"
    assert reasons["useful/stored"] == "not run yet: benchmarks/gpu.py needs about 5 minutes of a GPU for nothing"
    assert "waterbirds" in reasons["useful/data"]


def test_results_measured_elsewhere_are_shown_as_such(registry, tmp_path, monkeypatch):
    stored = {"machine": "NVIDIA H200", "commit": "0123456789abcdef", "value": 3.0}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.json").write_text(json.dumps(stored))
    monkeypatch.setattr(nodes, "stored_folder", lambda: tmp_path / "results")
    register(node=lambda scale: {"draws": [Stored("a.json")]})
    verdict = reproduce(out=tmp_path / "out").verdicts[0]
    assert verdict.measured_on == "NVIDIA H200, commit 0123456789ab"
    assert verdict.judgement.measurements[0].mean == 3.0


def test_training_runs_are_ordinary_runs_and_a_control_waits_for_its_arm(registry, tmp_path):
    settings = {"epochs": 2, "model": "mlp"}

    def uses(scale: Scale):
        arms = [trained("shortcut-digits", method="useful", seed=seed, **settings) for seed in scale.seeds(2)]
        controls = [
            trained("shortcut-digits", method="random_upsample", seed=arm.plan.seed, control_of=arm, **settings)
            for arm in arms
        ]
        return {"arms": arms, "controls": controls}

    @claim("useful/gain", where="Table 2", states="It gains.", rule="Costs are equal.", uses=uses)
    def judge(arms, controls):
        equal = all(abs(c.results.cost / a.results.cost - 1) < 0.1 for a, c in zip(arms, controls, strict=True))
        return Judgement([Check("equal costs", equal)], [measurement("cost", [a.results.cost for a in arms])])

    outcome = reproduce(out=tmp_path)
    assert outcome.verdicts[0].outcome == "holds"
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 4
    assert evenly.load(runs[0]).results.method == "random_upsample"


def test_two_processes_give_the_same(registry, tmp_path):
    def uses(scale: Scale):
        return {"draws": [computed(gradient_errors, draws=1, seed=seed) for seed in scale.seeds(2)]}

    @claim("useful/growth", where="Figure 2", states="It grows.", rule="It grows.", uses=uses)
    def judge(draws):
        return Judgement([Check("it grows", True)], [measurement("error", [each["simulator"] for each in draws])])

    here, there = (reproduce(out=tmp_path / str(jobs), jobs=jobs).verdicts for jobs in (1, 2))
    assert here == there


def test_refusals(registry, tmp_path):
    register()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for options, message in (
        ({"claims": "useful/men"}, "did you mean 'useful/mean'"),
        ({"scale": "large"}, "scale must be one of small, paper, got 'large'"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"lr": 1}, "reproduce takes no lr"),
        ({"out": tmp_path / "other" / "file"}, "is a file; give a folder"),
        ({"against": tmp_path / "other" / "file"}, "holds no verdicts"),
        ({"claims": 3}, "claims must be"),
        ({"seeds": 10**7}, "seeds must be at most 1000"),
        ({"out": tmp_path / "other"}, "is not empty and holds no claims"),
    ):
        with pytest.raises(EvenlyError, match=message):
            reproduce(**{"out": tmp_path / "out", **options})
    with pytest.raises(EvenlyError, match="two claims are called"):
        register()
    with pytest.raises(EvenlyError, match="no paper is called"):
        register("other/mean")


def test_claims_json_of_another_form_is_refused(registry, tmp_path):
    register()
    (tmp_path / CLAIMS).write_text("[]")
    with pytest.raises(EvenlyError, match="holds no verdicts of this version"):
        reproduce(out=tmp_path)


def test_the_report_verb_makes_the_pages_again(registry, tmp_path):
    register()
    reproduce(out=tmp_path)
    page = tmp_path / "useful.html"
    content = page.read_text()
    page.unlink()
    (tmp_path / "interrupted" / "computations").mkdir(parents=True)
    with pytest.raises(EvenlyError, match="holds no verdicts yet; run the same `evenly reproduce` again"):
        evenly.write_report(tmp_path / "interrupted")
    shutil.rmtree(tmp_path / "interrupted")
    shutil.rmtree(tmp_path / "computations")
    evenly.write_report(tmp_path)
    assert page.read_text() == content


def test_a_number_of_seeds_is_kept_only_where_it_changes_something(registry, tmp_path):
    register()
    register("useful/fixed", node=lambda scale: {"draws": [computed(draw, seed=seed) for seed in (0, 1)]})
    seeds = {each.id: each.seeds for each in reproduce(out=tmp_path, seeds=2).verdicts}
    assert seeds == {"useful/mean": 2, "useful/fixed": None}
