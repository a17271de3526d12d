"""A folder with a metadata.csv: labels, splits and attributes by name; paths that leave the folder are refused."""

import pytest
from PIL import Image

from evenly import EvenlyError
from evenly.data.images import image_folder

SPLIT = ("train", "val", "test")


def write(root, text, count=0):
    root.mkdir(exist_ok=True)
    for i in range(count):
        (root / "images").mkdir(exist_ok=True)
        Image.new("L", (2, 2), i).save(root / "images" / f"{i}.png")
    (root / "metadata.csv").write_text(text, encoding="utf-8")
    return root


def birds(root):
    """Twelve images: i's label, place and split are known; rows are in reverse order."""
    rows = [
        f"images/{i}.png,{('water', 'land')[i % 2]},{SPLIT[i // 4]},{('sea', 'wood')[i // 2 % 2]},{(10, 9, -1)[i % 3]}"
        for i in reversed(range(12))
    ]
    return write(root, "file,label,split,place,year\n" + "\n".join(rows) + "\n", 12)


def test_labels_splits_and_attributes_are_numbered_and_named(tmp_path):
    data = image_folder(birds(tmp_path))
    assert list(data.class_names) == ["land", "water"]
    assert {name: list(values) for name, values in data.attribute_names.items()} == {
        "place": ["sea", "wood"],
        "year": ["-1", "9", "10"],
    }
    for part, name in enumerate(("train", "validation", "test")):
        split = data.splits[name]
        of = list(reversed(range(4 * part, 4 * part + 4)))
        assert split.inputs[:, 0, 0, 0].tolist() == of
        assert split.labels.tolist() == [1 - i % 2 for i in of]
        assert split.attributes["place"].tolist() == [i // 2 % 2 for i in of]
        assert [int(data.attribute_names["year"][k]) for k in split.attributes["year"]] == [
            (10, 9, -1)[i % 3] for i in of
        ]
        assert split.groups is None


def test_groups_are_label_and_attribute_on_request(tmp_path):
    data = image_folder(birds(tmp_path), groups="label,place")
    assert list(data.group_names) == ["land, place sea", "land, place wood", "water, place sea", "water, place wood"]
    for split in data.splits.values():
        assert split.groups.tolist() == (2 * split.labels + split.attributes["place"]).tolist()
    with pytest.raises(EvenlyError, match=r"no attribute to group by is called 'palce'; there are: label, place, year"):
        image_folder(tmp_path, groups="palce")


def test_whole_labels_keep_their_order_as_numbers_and_splits_are_drawn(tmp_path):
    rows = "".join(f"images/{i}.png,{(2, 10)[i % 2]}\n" for i in range(20))
    data = image_folder(write(tmp_path, "\ufefffile,label\n\n" + rows, 20))
    assert list(data.class_names) == ["2", "10"]
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 12, "validation": 4, "test": 4}
    assert all(
        i % 2 == label for i, label in zip(data.train.inputs[:, 0, 0, 0].tolist(), data.train.labels, strict=True)
    )


def test_spaces_around_cells_and_capital_splits_are_taken(tmp_path):
    rows = "".join(f" images/{i}.png , {'ab'[i % 2]} , Train \n" for i in range(4))
    data = image_folder(write(tmp_path, "file , label, split\n" + rows, 4))
    assert list(data.class_names) == ["a", "b"]
    assert len(data.train) == 4


REFUSED = {
    "no columns": ("", "has no column 'file' .found: nothing"),
    "no label": ("file,class\nimages/0.png,a\n", "has no column 'label' .found: 'class'"),
    "no rows": ("file,label\n", "has a header and no rows"),
    "a column twice": ("file,label,x,x\nimages/0.png,a,1,2\n", "2 columns called 'x'"),
    "a column without a name": ("file,label,\nimages/0.png,a,1\n", "1 columns called ''"),
    "a short row": ("file,label\nimages/0.png,a\nimages/1.png\n", "line 3 of .* has 1 cells for 2 columns"),
    "a long row": ("file,label\nimages/0.png,a,b\n", "line 2 of .* has 3 cells for 2 columns"),
    "an empty label": ("file,label\nimages/0.png,\n", "line 2 of .* has no label; fill it in or remove the row"),
    "an empty attribute": ("file,label,x\nimages/0.png,a,\n", "line 2 of .* has no x"),
    "another split": (
        "file,label,split\nimages/0.png,a,dev\n",
        "split 'dev' in line 2 .* is not known; use train, validation, test",
    ),
    "an absolute path": (
        "file,label\n/etc/passwd,a\n",
        "file '/etc/passwd' in line 2 .* lies outside .*; give a path inside it",
    ),
    "a path upwards": (
        "file,label\nimages/0.png,a\nimages/../../x.png,a\n",
        "'images/../../x.png' in line 3 .* outside",
    ),
    "no path": ("file,label\n,a\n", "line 2 of .* has no file; fill it in"),
    "the same file twice": (
        "file,label\nimages/0.png,a\nimages/./0.png,b\n",
        "file 'images/./0.png' is in lines 2 and 3 of .*; keep one of them",
    ),
    "an open quote": ('file,label\n"images/0.png,a\n', "cannot be read as a table"),
    "no split": ("file,label,split\nimages/0.png,a,\n", "line 2 of .* has no split; fill it in or remove the row"),
    "a row of a folder": (
        "file,label\nimages/0.png,a\nimages,b\n",
        "1 of 2 images in .* cannot be read: 'images' .* mend or remove them, or leave them out with skip_bad=True",
    ),
    "a file that is not there": (
        "file,label\nimages/0.png,a\nimages/7.png,b\n",
        r"1 of 2 images .* cannot be read: 'images/7.png' \(no such file\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_a_table_in_one_line(tmp_path, case):
    text, message = REFUSED[case]
    with pytest.raises(EvenlyError, match=message) as refusal:
        image_folder(write(tmp_path, text, 2))
    assert "\n" not in str(refusal.value)


def test_refuses_a_table_that_is_not_utf8(tmp_path):
    write(tmp_path, "", 1)
    (tmp_path / "metadata.csv").write_bytes("file,label\nimages/0.png,Bär\n".encode("latin-1"))
    with pytest.raises(EvenlyError, match=r"cannot be read as a table .*UTF-8"):
        image_folder(tmp_path)


def test_a_row_may_not_leave_the_folder_through_a_link(tmp_path):
    Image.new("L", (2, 2)).save(tmp_path / "secret.png")
    root = write(tmp_path / "root", "file,label\nimages/0.png,a\nimages/link.png,b\n", 2)
    (root / "images" / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(EvenlyError, match=r"'images/link.png' in line 3 .* lies outside"):
        image_folder(root)


def test_a_class_missing_from_a_split_is_refused(tmp_path):
    text = "file,label,split\nimages/0.png,a,train\nimages/1.png,b,train\nimages/2.png,b,test\n"
    with pytest.raises(EvenlyError, match=r"class 'a' has no image in the test split"):
        image_folder(write(tmp_path, text, 3))
