"""A folder with a metadata.csv: labels, splits and attributes by name; paths that leave the folder are refused."""

import json

import pytest
from PIL import Image

from evenly.data import load
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
        members = list(reversed(range(4 * part, 4 * part + 4)))
        assert split.inputs[:, 0, 0, 0].tolist() == members
        assert split.labels.tolist() == [1 - i % 2 for i in members]
        assert split.attributes["place"].tolist() == [i // 2 % 2 for i in members]
        assert [int(data.attribute_names["year"][k]) for k in split.attributes["year"]] == [
            (10, 9, -1)[i % 3] for i in members
        ]
        assert split.groups is None


def test_groups_are_label_and_attribute_on_request(tmp_path, refused):
    data = image_folder(birds(tmp_path), groups="label,place")
    assert list(data.group_names) == ["land, place sea", "land, place wood", "water, place sea", "water, place wood"]
    for split in data.splits.values():
        assert split.groups.tolist() == (2 * split.labels + split.attributes["place"]).tolist()
    message = "no attribute to group by is called 'palce'; there are: label, place, year"
    refused(message, image_folder, tmp_path, groups="palce")


def test_tables_of_hugging_face_are_read_and_a_blank_attribute_is_a_value(tmp_path):
    birds(tmp_path)
    rows = [line.split(",") for line in (tmp_path / "metadata.csv").read_text().splitlines()]
    rows[3][3] = ""
    (tmp_path / "metadata.csv").write_text("\n".join(",".join(row) for row in rows).replace("file,", "file_name,", 1))
    data = load(tmp_path)
    assert data.attribute_names["place"] == ["(missing)", "sea", "wood"]
    assert sum(int((split.attributes["place"] == 0).sum()) for split in data.splits.values()) == 1
    (tmp_path / "metadata.csv").unlink()
    lines = [json.dumps(dict(zip(["file_name", *rows[0][1:]], row, strict=True))) for row in rows[1:]]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    assert load(tmp_path).fingerprint() == data.fingerprint()


def test_whole_labels_keep_their_order_as_numbers_and_splits_are_drawn(tmp_path):
    rows = "".join(f" images/{i}.png , {(2, 10)[i % 2]} \n" for i in range(20))
    data = image_folder(write(tmp_path, "\ufefffile , label\n\n" + rows, 20))
    assert list(data.class_names) == ["2", "10"]
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 12, "validation": 4, "test": 4}
    assert [i % 2 for i in data.train.inputs[:, 0, 0, 0].tolist()] == data.train.labels.tolist()


REFUSED = [
    ("", "has no column 'file' .found: nothing"),
    ("file,class\nimages/0.png,a\n", "has no column 'label' .found: 'class'"),
    ("file,label\nimages/0.png,a,b\n", "line 2 of .* has 3 cells for 2 columns"),
    ("file,label\nimages/0.png,\n", "line 2 of .* has no label; fill it in or remove the row"),
    ("file,label\n,a\n", "line 2 of .* has no file; fill it in"),
    ("file,label,split\nimages/0.png,a,\n", "line 2 of .* has no split; fill it in or remove the row"),
    ("file,label,split\nimages/0.png,a,dev\n", "split 'dev' in line 2 .* is not known; use train, validation, test"),
    ("file,label\n/etc/passwd,a\n", "file '/etc/passwd' in line 2 .* lies outside .*; give a path inside it"),
    ("file,label\nimages/0.png,a\nimages/../../x.png,a\n", "'images/../../x.png' in line 3 .* outside"),
    ("file,label\nimages/0.png,a\nimages/./0.png,b\n", "file 'images/./0.png' is in lines 2 and 3 of .*; keep one of"),
    (
        "file,label\nimages/0.png,a\nimages,b\n",
        "1 of 2 images .* cannot be read: 'images' .* remove them, or leave .* with skip_bad=True",
    ),
    ("file,label\nimages/0.png,a\nimages/7.png,b\n", r"cannot be read: 'images/7.png' \(no such file\)"),
    ("file,label,split\nimages/0.png,a,train\nimages/1.png,b,test\n", "class '.' has no example in the .* split"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_refusals(tmp_path, refused, text, message):
    refused(message, image_folder, write(tmp_path, text, 2))


def test_a_row_may_not_leave_the_folder_through_a_link(tmp_path, refused):
    Image.new("L", (2, 2)).save(tmp_path / "secret.png")
    root = write(tmp_path / "root", "file,label\nimages/0.png,a\nimages/link.png,b\n", 2)
    (root / "images" / "link.png").symlink_to(tmp_path / "secret.png")
    refused("'images/link.png' in line 3 .* lies outside", image_folder, root)
