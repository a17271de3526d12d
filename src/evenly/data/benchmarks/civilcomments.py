"""CivilComments in the version of WILDS (Koh et al. 2021; Borkan et al. 2019): is a comment toxic?

Annotators say how far a comment is toxic and mentions each of eight identities; half or more is yes. A comment may
mention several, so accuracy is measured on 16 overlapping groups, identity x label. Methods that balance groups get the
512 distinct combinations of all identities and the label. Deng et al. (2023, App. C) have these for PDE's warm-up,
capped, and four groups for the others, label x whether any identity is mentioned (`groups="label,identity_any"`): many
of the 512 are tiny, so that subsampling keeps next to nothing and GroupDRO shows a few comments over and over.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenly.data.benchmarks.places import Folder, find_layout
from evenly.data.images.parts import Integers
from evenly.data.metadata import grouped, in_splits, splits_in
from evenly.data.preprocessing import TextPreprocessing
from evenly.data.rows import read_rows
from evenly.data.tables import TableData, text_rows
from evenly.errors import EvenlyError

FILE = "all_data_with_identities.csv"
IDENTITIES = ("male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white")
CLASSES = ("not toxic", "toxic")
OVERLAPPING = f"label,{'+'.join(IDENTITIES)}"
PDE = {"warmup_epochs": 15, "every": 2, "add": 300, "cap": 150}
"""Table 8 and App. C of Deng et al. (2023)."""

RECIPES = {
    "pde-paper": {
        "lr": 1e-5,
        "weight_decay": 1e-2,
        "batch_size": 16,
        "epochs": 25,
        "options": {"pde": PDE},
    },
    "group-dro-paper": {
        "data_options": {"groups": "label,identity_any"},
        "lr": 1e-5,
        "weight_decay": 1e-2,
        "batch_size": 16,
        "epochs": 5,
    },
}
"""Settings of papers (Deng et al. 2023, Tables 8 and 10), for a fine-tuned transformer, which you name as the model.
Their number of epochs is not given."""


def civilcomments(folder: Folder = None, groups: str = OVERLAPPING, seed: int = 0) -> TableData:
    """CivilComments-WILDS, texts, 16 overlapping and 512 distinct groups, from `folder` or EVENLY_DATA/civilcomments.

    The splits are the official ones; nothing depends on the seed. The attributes are the eight identities.

    Args:
        folder: holds all_data_with_identities.csv, itself or in its civilcomments_v1.0.
        groups: what methods balance, of label, the identities and identity_any, e.g. "label,identity_any" for four
            groups. Accuracy is measured on the 16 groups of identity x label all the same.
    """
    _, root = find_layout("civilcomments", folder, {"csv": ("civilcomments_v1.0", (FILE,))})
    rows = read_rows(root / FILE)
    texts, toxicity, splits = rows.take("comment_text"), rows.take("toxicity"), splits_in(rows)
    if splits is None:
        raise EvenlyError(f"{rows.path} has no column 'split'; unpack its archive again")
    mentions = (*IDENTITIES, *(["identity_any"] if "identity_any" in groups else []))
    if missing := [name for name in mentions if name not in rows.names]:
        raise EvenlyError(f"{rows.path} has no column {missing[0]!r}; unpack its archive again")

    def half_or_more(name: str, values: list[str]) -> Integers:
        try:  # not annotated is not mentioned
            return np.array([float(value or 0) >= 0.5 for value in values]).astype(np.int64)
        except ValueError as error:
            raise EvenlyError(f"{name} in {rows.path} is not a number ({error}); unpack its archive again") from None

    labels = half_or_more("toxicity", toxicity)
    attributes = {name: half_or_more(name, rows.columns[name]) for name in mentions}
    yes_or_no = {name: ("0", "1") for name in mentions}
    measured = grouped(OVERLAPPING, labels, CLASSES, attributes, yes_or_no)
    balanced = grouped(groups, labels, CLASSES, attributes, yes_or_no)
    by_group = replace(measured, groups=balanced.groups, names=balanced.names)
    return TableData(
        **in_splits(text_rows(texts), labels, attributes, by_group, splits),
        name="civilcomments",
        about="CivilComments-WILDS: online comments, toxic or not, by the identities that they mention.",
        class_names=CLASSES,
        group_names=by_group.names,
        evaluation_group_names=by_group.evaluation_names,
        attribute_names={name: ["not mentioned", "mentioned"] for name in mentions},
        recipe={"model": "bag_of_words", "select": "worst-group-argmax", "options": {"pde": PDE}},
        preprocessing=TextPreprocessing("comment_text", label=None),
    )
