"""evenly reproduce"""

from __future__ import annotations

import json

import pytest

from evenly.papers import claims, reproducing
from evenly.papers.claims import claim, untestable
from evenly.papers.nodes import computed
from evenly.papers.reproducing import Reproduction
from evenly.parallel import processes
from evenly.runs.verdict import Check, Judgement, measurement


def value(seed: int) -> int:
    return seed


@pytest.fixture
def registry(monkeypatch):
    """Two claims of our own, one of which cannot be judged."""
    monkeypatch.setattr(claims, "_REGISTERED", {})
    monkeypatch.setattr(claims, "import_module", lambda name: None)
    monkeypatch.setattr(processes, "cores", lambda: 1)  # other processes could not import this file
    least = {"value": 0}

    @claim(
        "useful/mean",
        where="Figure 0",
        states="The mean is large, which takes some words to say in full on a terminal of eighty columns.",
        rule="It is.",
        uses=lambda scale: {"draws": [computed(value, seed=seed) for seed in scale.seeds(3)]},
    )
    def judge(draws):
        mean = sum(draws) / len(draws)
        return Judgement([Check("it is", mean > least["value"])], [measurement("mean", draws)])

    untestable("pde/full", where="Table 2", states="It gains.", why="needs Waterbirds")
    return least


def test_the_list_has_every_claim_and_its_verdict(registry, evenly, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = evenly("reproduce")
    assert code == 0
    assert "not run            useful/mean" in out
    assert "not testable here  pde/full" in out
    assert max(map(len, out.splitlines())) <= 80
    assert evenly("reproduce", "--scale", "small")[0] == 0
    assert "holds              useful/mean" in evenly("reproduce")[1]
    listed = json.loads(evenly("reproduce", "--json")[1])
    assert [each["outcome"] for each in listed] == ["holds", "not testable here"]


def test_why_a_claim_is_not_judged_is_printed(registry, evenly):
    assert "\npde/full: needs Waterbirds\n" in evenly("reproduce", "pde/full")[1]


def test_a_file_is_no_folder(registry, evenly, tmp_path):
    (tmp_path / "list.txt").write_text("mine")
    for names in ([], ["pde/full"]):
        code, _, err = evenly("reproduce", *names, "--out", str(tmp_path / "list.txt"))
        assert (code, "is a file; give a folder" in err) == (2, True)


def test_the_exit_code_is_1_where_a_claim_does_not_hold_any_more(registry, evenly):
    code, out, _ = evenly("reproduce", "useful")
    assert code == 0
    assert "Of 1 claim, 1 holds." in out
    assert "page: reproduced/useful.html" in out
    registry["value"] = 5
    code, out, _ = evenly("reproduce", "useful/mean")
    assert code == 1
    assert "held before and does not now: useful/mean" in out


def test_a_wrong_name_is_one_line(registry, refused, tmp_path):
    refused("reproduce useful/men", "no claim or paper is called 'useful/men'; did you mean 'useful/mean'?")
    assert not (tmp_path / "reproduced").exists()


@pytest.mark.parametrize(("options", "jobs"), [([], 3), (["--jobs", "2"], 2), (["--engine", "ray"], None)])
def test_all_cores_are_used_unless_the_user_says_how_many(registry, evenly, monkeypatch, options, jobs):
    given = {}
    monkeypatch.setattr(processes, "cores", lambda: 3)
    monkeypatch.setattr(
        reproducing, "reproduce", lambda *claims, **settings: given.update(settings) or Reproduction(())
    )
    assert evenly("reproduce", "useful", *options)[0] == 0
    assert given.get("jobs") == jobs
