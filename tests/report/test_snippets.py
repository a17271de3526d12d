"""Texts on pages: cut, in one line, never as markup."""

from __future__ import annotations

import torch

import evenly
from evenly.data import Data, Split, Texts
from evenly.engine.trained import Selection
from evenly.report.examples import SNIPPET, picked_and_others, snippet


def test_a_long_text_is_cut_and_a_short_one_is_not():
    assert snippet(" two\n\n lines ") == "two lines"
    assert snippet("x" * SNIPPET) == "x" * SNIPPET
    assert snippet("x" * 9999) == "x" * SNIPPET + " ..."


def test_examples_that_a_method_picked_are_shown_by_their_texts():
    texts = [f"text {i}" for i in range(20)]
    data = Data(Split(Texts(texts), torch.arange(20) % 2, [int(i > 17) for i in range(20)]))
    picked, others = picked_and_others(data, Selection(torch.tensor([3, 19]), torch.tensor([2, 2]), "why"))
    assert [(example.text, example.minority) for example in picked] == [("text 3", False), ("text 19", True)]
    assert len(others) == 16
    assert not {"text 3", "text 19"} & {example.text for example in others}
    assert all(example.source == "" for example in (*picked, *others))


def test_an_audit_of_texts_as_they_are_encodes_them_itself(tmp_path):
    texts = [f"{'good' if i % 2 else 'bad'} <b onload=x> {'so ' * i}" for i in range(12)]
    data = Data(Split(Texts(texts), torch.arange(12) % 2), test=Split(Texts(texts), torch.arange(12) % 2))
    run = evenly.train("bag_of_words", data, epochs=2, device="cpu")
    evenly.audit(run.model, data, top=0).report(tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text()
    assert "&lt;b onload=x&gt;" in page
    assert "<b onload" not in page
