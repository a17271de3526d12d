"""Texts and numbers from a CSV file."""

import gzip
import json
import math

import numpy as np
import pytest
import torch

from evenly.data import Data, Texts, load
from evenly.data.examples import read_examples
from evenly.data.preprocessing import preprocessing_from_dict
from evenly.data.tables import table

CITIES = ("rome", "oslo")


def numbers(path, rows=40):
    """A table of numbers with known rows: two features, one of them constant, a city, a label; and a split."""
    draw = np.random.default_rng(3)
    made = [
        {
            "age": f"{draw.normal(40, 9):.4f}",
            "one": "7",
            "label": ("no", "yes")[i % 2],
            "city": CITIES[i // 2 % 2],
            "pay": f"{draw.normal(-2e6, 3e5):.1f}",
            "split": ("train", "train", "train", "val", "test")[i // 4 % 5],
        }
        for i in range(rows)
    ]
    write(path, made)
    return made


def write(path, rows):
    lines = [",".join(rows[0]), *(",".join(f'"{cell}"' for cell in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def reviews(path, count=40):
    words = ("bad", "good")
    return write(
        path,
        [
            {"text": f"a {words[i % 2]} {i}, one", "label": words[i % 2], "kind": ("film", "book", "song")[i // 2 % 3]}
            for i in range(count)
        ],
    )


# Numbers


def test_features_are_standardised_by_the_training_rows(tmp_path):
    rows = numbers(tmp_path / "people.csv")
    data = table(tmp_path / "people.csv")
    assert data.feature_names == ["age", "one", "pay"]
    x = np.array([[float(row[name]) for name in data.feature_names] for row in rows])
    parts = np.array([row["split"] for row in rows])
    assert list(data.test.places) == [f"row {k}" for k in np.flatnonzero(parts == "test")]
    train = x[parts == "train"]
    mean, spread = train.mean(0), np.sqrt(((train - train.mean(0)) ** 2).mean(0))
    spread[1] = 1.0
    np.testing.assert_allclose(data.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(data.std, spread, rtol=1e-12)
    for part, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        split = data.splits[part]
        assert split.inputs.dtype == torch.float32
        np.testing.assert_allclose(split.inputs.numpy(), (x[parts == name] - mean) / spread, rtol=1e-5, atol=1e-6)
        assert split.labels.tolist() == [int(row["label"] == "yes") for row in rows if row["split"] == name]
        assert split.attributes["city"].tolist() == [int(row["city"] == "rome") for row in rows if row["split"] == name]
        assert split.groups.tolist() == (2 * split.labels + split.attributes["city"]).tolist()
    assert data.class_names == ["no", "yes"]
    assert data.group_names == ["no, city oslo", "no, city rome", "yes, city oslo", "yes, city rome"]
    assert data.attribute_names == {"city": ["oslo", "rome"]}
    assert data.options["class_names"] == ["no", "yes"]
    assert data.notes == [
        "label: label",
        "groups: label,city",
        "attributes: city",
        "numbers: age, one, pay",
    ]


def test_a_column_that_groups_or_is_called_an_attribute_is_no_feature(tmp_path):
    numbers(tmp_path / "people.csv")
    data = table(tmp_path / "people.csv", groups="one", ignore="city")
    assert data.feature_names == ["age", "pay"]
    assert data.group_names == ["one 7"]
    assert data.about == (
        "40 rows of numbers from people.csv. The network is not shown one: what makes groups or is called an attribute "
        "is no feature."
    )
    both = table(tmp_path / "people.csv", attributes="one,city,age", groups="label,age")
    assert both.feature_names == ["pay"]
    assert "The network is not shown one, city and age:" in both.about
    data = table(tmp_path / "people.csv", attributes="one")
    assert list(data.attribute_names) == ["one"]
    assert data.feature_names == ["age", "pay", "city=oslo", "city=rome"]
    assert "not shown" not in table(tmp_path / "people.csv", groups="none").about
    assert data.train.groups is None  # the one value tells nothing apart
    assert table(tmp_path / "people.csv", groups="none").train.groups is None
    assert table(tmp_path / "people.csv", attributes="", groups="label").train.attributes == {}


def test_missing_numbers_become_the_training_median_or_mean_or_are_refused_by_line(tmp_path, refused):
    rows = numbers(tmp_path / "people.csv")
    rows[2]["age"], rows[12]["pay"], rows[30]["age"] = "", "NA", "nan"  # of validation and training
    path = write(tmp_path / "people.csv", rows)
    refused(
        r"numbers are missing in .* \(line 4, 14, 32; first 'age'\); fill them in, .*", table, path, missing="refuse"
    )
    data = table(path)
    there = [float(row["age"]) for row in rows if row["split"] == "train" and row["age"] not in ("", "nan")]
    assert math.isclose(data.mean[0], sum(there) / len(there), rel_tol=1e-12)
    assert data.feature_names == ["age", "one", "pay", "age is missing"]  # what is missing elsewhere has no column
    median = (np.median(there) - data.mean[0]) / data.std[0]
    assert data.train.inputs[2].tolist() == pytest.approx([median, 0, float(data.train.inputs[2, 2]), 1])
    assert data.train.inputs[:, 3].sum() == 2
    pay = [float(row["pay"]) for row in rows if row["split"] == "train"]
    assert data.validation.inputs[0, 2] == pytest.approx((np.median(pay) - np.mean(pay)) / np.std(pay))
    data = table(path, missing="mean")
    assert data.feature_names == ["age", "one", "pay"]
    assert data.train.inputs[2, 0] == 0
    assert data.validation.inputs[0, 2] == 0
    assert data.train.inputs[3, 0] == pytest.approx((float(rows[3]["age"]) - data.mean[0]) / data.std[0], rel=1e-5)


def test_whole_labels_and_drawn_splits(tmp_path):
    path = write(tmp_path / "a.csv", [{"x": str(i), "label": str((2, 10)[i % 2])} for i in range(40)])
    data = table(path, validation=0.1, test=0.4)
    assert data.class_names == ["2", "10"]
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 20, "validation": 4, "test": 16}
    assert [split.labels.float().mean() for split in data.splits.values()] == [0.5, 0.5, 0.5]
    same, other = (table(path, seed=seed) for seed in (0, 1))
    assert table(path).fingerprint() == same.fingerprint() != other.fingerprint()


def test_a_folder_or_a_name_is_read_as_what_its_table_holds(tmp_path, refused):
    (tmp_path / "texts").mkdir()
    reviews(tmp_path / "texts" / "metadata.csv")
    assert isinstance(load(tmp_path / "texts").train.inputs, Texts)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "metadata.csv").write_text("filename,label\na.png,a\nb.png,b\n")
    refused(r"\(found: 'filename'\); .* or call that of image files 'file'", load, tmp_path / "photos")
    numbers(tmp_path / "people.csv")
    assert load(str(tmp_path / "people.csv"), label="city", groups="none").class_names == ["oslo", "rome"]
    refused("no option of a table is called 'lable'; did you mean 'label'", load, tmp_path / "people.csv", lable="city")
    refused("missing .* must be one of median, mean, refuse, got 'zero'", load, tmp_path / "people.csv", missing="zero")


def census(path, rows=60):
    """Numbers and texts, some of them missing, as pandas writes them, with its index."""
    draw = np.random.default_rng(1)
    made = [
        {
            "": str(i),
            "age": "" if i % 11 == 3 else f"{draw.normal(40, 9):.3f}",
            "work, kind": ("private", "state", "")[i % 3],
            "name": f"person {i}",
            "sex": ("f", "m")[i // 2 % 2],
            "empty": "",
            "note": "" if i % 7 else "x",
            "income": ("low", "high")[i % 2],
        }
        for i in range(rows)
    ]
    write(path, made)
    path.write_text(path.read_text().replace("work, kind", '"work, kind"', 1))
    return path, made


def test_texts_of_few_values_are_features_and_what_is_used_as_what_is_said(tmp_path):
    path, _ = census(tmp_path / "census.csv")
    data = table(path, label="income", ignore="note")
    values = ["(missing)", "private", "state"]
    assert data.feature_names == [
        "age",
        "age is missing",
        *(f"work, kind={value}" for value in values),
        "sex=f",
        "sex=m",
    ]
    assert data.train.groups is None
    assert data.notes == [
        "label: income",
        "numbers: age",
        "categories: 'work, kind' (3 values), sex (2 values)",
        "ignored: name (60 different texts), empty (no number in the training rows), 1 without a name, such as the "
        "index that pandas writes",
        "no groups: they can be made of 'work, kind', sex, e.g. groups='label,work, kind'; the network is then not "
        "shown that column",
    ]
    one_hot = torch.cat([split.inputs[:, 2:] for split in data.splits.values()])
    assert one_hot.unique().tolist() == [0, 1]
    assert one_hot.sum(0).tolist() == [20, 20, 20, 30, 30]
    grouped = table(path, label="income", groups="label,work, kind", attributes="note,sex", categories="age")
    assert grouped.attribute_names == {"note": ["(missing)", "x"], "sex": ["f", "m"], "work, kind": values}
    assert grouped.group_names[0] == "high, work, kind (missing)"
    assert all(name.startswith("age=") for name in grouped.feature_names)


def test_new_rows_go_through_what_was_fitted_on_training(tmp_path):
    path, _ = census(tmp_path / "census.csv")
    data = table(path, label="income", ignore="note")
    again = preprocessing_from_dict(json.loads(json.dumps(data.preprocessing.to_dict())))
    assert again == data.preprocessing
    new = [{"age": None, "work, kind": "", "sex": "m"}, {"age": 50, "work, kind": "army", "sex": None}]
    median = (again.medians[0] - again.mean[0]) / again.std[0]
    expected = [[median, 1, 1, 0, 0, 0, 1], [(50 - again.mean[0]) / again.std[0], 0, 0, 0, 0, 0, 0]]
    write(tmp_path / "new.csv", [{"age": "", "WORK": "", "sex": "m"}, {"age": "50", "WORK": "army", "sex": ""}])
    text = (tmp_path / "new.csv").read_text().replace("WORK", '"work, kind"')
    (tmp_path / "new.csv").write_text(text)
    for raw in (new, tmp_path / "new.csv", [[None, "", "m"], [50.0, "army", None]]):
        inputs = read_examples(again, raw, data.class_names).inputs
        np.testing.assert_allclose(inputs.numpy(), expected, rtol=1e-6)


def test_a_frame_and_a_data_set_are_read_like_the_file(tmp_path):
    pd = pytest.importorskip("pandas", reason="needs pandas: pip install 'evenly[pandas]'")
    path, rows = census(tmp_path / "census.csv")
    options = {"label": "income", "ignore": "note", "groups": "label,sex"}
    expected = table(path, seed=3, **options)
    data = Data.from_pandas(pd.read_csv(path, index_col=0), seed=3, **options)
    assert data.fingerprint() == expected.fingerprint()
    assert data.preprocessing == expected.preprocessing
    assert data.options["seed"] == 3

    class Stored:  # as in the library datasets
        column_names = ("age", "income", "sex", "work, kind", "note")
        features = dict.fromkeys(column_names) | {"income": Named(("high", "low"))}

        def __init__(self, rows):
            self.rows = rows

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, name):
            cells = [row[name] for row in self.rows]
            if name == "income":
                return [("high", "low").index(cell) for cell in cells]
            return [float(cell) if cell else None for cell in cells] if name == "age" else cells

    data = Data.from_datasets(Stored(rows), seed=3, **options)
    assert data.class_names == ["high", "low"]
    assert data.train.labels.tolist() == expected.train.labels.tolist()
    assert set(data.feature_names) == set(expected.feature_names)
    parts = Data.from_datasets({"train": Stored(rows[:40]), "test": Stored(rows[40:])}, **options)
    assert {name: len(split) for name, split in parts.splits.items()} == {"train": 40, "test": 20}


class Named:
    """The type of a column of numbered classes."""

    def __init__(self, names):
        self.names = names


# Texts


def test_texts_stay_as_they_are_and_other_columns_are_attributes(tmp_path):
    data = table(reviews(tmp_path / "reviews.csv"))
    assert isinstance(data.train.inputs, Texts)
    assert data.train.example_shape == ()
    assert data.recipe["model"] == "bag_of_words"
    everything = sorted(text for split in data.splits.values() for text in split.texts)
    assert everything == sorted(f"a {('bad', 'good')[i % 2]} {i}, one" for i in range(40))
    for split in data.splits.values():
        for text, label, kind in zip(split.texts, split.labels, split.attributes["kind"], strict=True):
            i = int(text.split()[2].rstrip(","))
            assert label == i % 2
            assert data.attribute_names["kind"][kind] == ("film", "book", "song")[i // 2 % 3]
    assert len(data.group_names) == 6
    # 60/20/20 of each of the six groups, to within one
    for g in range(6):
        counts = [int((split.groups == g).sum()) for split in data.splits.values()]
        assert abs(counts[0] - 0.6 * sum(counts)) <= 1
        assert min(counts) >= 1


def test_overlapping_groups_of_columns_of_yes_and_no(tmp_path):
    rows = [
        {"text": f"t{i}", "label": "ab"[i % 2], "old": str(i // 2 % 2), "tall": ("no", "Yes")[i // 4 % 2]}
        for i in range(80)
    ]
    data = table(write(tmp_path / "a.csv", rows), groups="label,old+tall")
    assert data.measured_names == ["a, old", "b, old", "a, tall", "b, tall"]
    assert data.group_count == 8
    for split in data.splits.values():
        members = [rows[int(text[1:])] for text in split.texts]
        expected = [
            [row["label"] == k and row[name] in ("1", "Yes") for name in ("old", "tall") for k in "ab"]
            for row in members
        ]
        assert split.evaluation_groups.tolist() == expected
        assert split.groups.bincount(minlength=8).min() >= 1


def test_a_change_of_a_text_changes_the_fingerprint(refused):
    assert Texts(["ab", "c"]).fingerprint() != Texts(["a", "bc"]).fingerprint()
    assert Texts(["ab", "c"]).fingerprint() == Texts(["ab", "c"]).fingerprint()
    refused("texts must be strings, got a float at 1", Texts, ["a", 2.0])


def test_columns_of_other_names_and_packed_files(tmp_path):
    plain = "comment,Label,When\n" + "".join(f"word {i},{'BAD' if i % 2 else 'FINE'},{i}\n" for i in range(60))
    with gzip.open(tmp_path / "c.csv.gz", "wt", encoding="utf-8") as file:
        file.write(plain)
    data = load(tmp_path / "c.csv.gz", text="comment")
    assert data.name == "c"
    assert data.class_names == ["BAD", "FINE"]
    assert data.train.groups is None  # sixty values of When are no groups
    assert sum(map(len, data.splits.values())) == 60


# Errors

PLAIN = "x,label\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(10))
TEXTS = "text,label\nu,a\nv,b\n"
SPLIT = "x,label,split\n1,a,train\n2,b,train\n"
REFUSED = [
    (
        "x,income,y\n" + "1.5,a,3\n2.5,b,4\n" * 4,
        {},
        r"has no column 'label' \(found: 'x', 'income', 'y'\); name the right one, e.g. label=income",
    ),
    (PLAIN, {"label": "y"}, "has no column 'y'"),
    ("x,label\n1,a\n2,a\n", {}, "label is 'a' in every row of .*; there is nothing to tell apart: name"),
    (
        "x,label\n" + "".join(f"{i},{i / 7}\n" for i in range(10)),
        {},
        "label has 10 values in 10 rows of .*, too many for classes; name another column",
    ),
    ("x,label\n1,a\n2,\n", {}, "line 3 of .* has no label; fill it in or remove the row"),
    ("text,label\nx,a\n  ,b\n", {}, "line 3 of .* has no text; fill it in or remove the row"),
    (PLAIN, {"text": "comment"}, "has no column 'comment'"),
    (PLAIN, {"groups": "place"}, "called 'place' in .*; there are: label, x"),
    (PLAIN, {"attributes": "place"}, "no column for attributes is called 'place' in .*; there are: x"),
    (PLAIN, {"categories": "place"}, "no column for categories is called 'place' in .*; there are: x"),
    ("c,label\nu,a\nv,b\n", {}, r"neither a column of texts .* \(found: 'c'\); name the texts with text=COLUMN"),
    (
        "x,label\n1,a\n2,b\n3,a\noops,b\n",
        {},
        "column 'x' of .* holds numbers, but 'oops' in line 5; correct it, or give categories=x or attributes=x",
    ),
    ("x,label\n1,a\n2,b\n3,a\n-inf,b\n", {}, "'-inf' in line 5"),
    (PLAIN, {"validation": 0.01}, "0.01 of 10 examples leaves the validation split empty"),
    (PLAIN + "3,c\n", {}, "class 'c' has no example in the (train|validation) split"),
    (PLAIN, {"text": "label"}, "column 'label' of .* is the label and cannot serve as text as well; name"),
    (PLAIN, {"text": "LABEL"}, "column 'LABEL' of .* is the label and cannot serve as text"),
    (PLAIN, {"split": "label"}, "is the label and cannot serve as split as well; .* with split=COLUMN"),
    (PLAIN.replace("label", "split"), {"label": "split"}, "'split' of .* is the label and cannot serve as split"),
    (SPLIT, {"text": "split"}, "column 'split' of .* is the split and cannot serve as text"),
    (PLAIN, {"split": "part"}, "has no column 'part'"),
    (PLAIN, {"attributes": "x,label"}, "'label' of .* is the label and cannot serve as attributes"),
    (TEXTS, {"attributes": "text"}, "is the text and cannot serve as attributes"),
    (PLAIN, {"attributes": "x,x"}, "attributes 'x,x' name 'x' twice; name each column once"),
    (TEXTS, {"groups": "text"}, "is the text and cannot serve as groups as well"),
    (
        PLAIN.replace("label", "stars"),
        {"label": "stars", "groups": "stars"},
        "is the label and cannot serve as groups as well; call it label there, e.g. groups=label,place",
    ),
    (PLAIN, {"groups": "x,x"}, "groups 'x,x' cannot be read; name columns once each"),
    ("file,label\na.png,a\nb.png,b\n", {}, "lists files; give its folder, with the table in it as"),
]


@pytest.mark.parametrize(("text", "options", "message"), REFUSED)
def test_refusals(tmp_path, refused, text, options, message):
    (tmp_path / "a.csv").write_text(text)
    refused(message, load, tmp_path / "a.csv", **options)
