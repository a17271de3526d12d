"""The rows of a table: read as they are spelled, numbers as Python reads them, faults by their line."""

import csv
import gzip
import json

import numpy as np
import pytest

from evenly.data.rows import Rows, read_rows, rows_of


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_cells_are_stripped_and_lines_are_those_of_the_file(tmp_path, name):
    text = '\ufefftext , label\n\n"two\nlines, one cell", a\n , \n x ,b \n \n'
    opened = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "wt", encoding="utf-8", newline="") as file:
        file.write(text)
    rows = read_rows(tmp_path / name)
    assert rows.columns == {"text": ["two\nlines, one cell", "x"], "label": ["a", "b"]}
    assert [rows.line(0), rows.line(1)] == [4, 6]


def test_a_column_is_found_by_its_name_or_the_only_one_like_it(tmp_path):
    (tmp_path / "a.csv").write_text("Text,label,Label\nx,1,2\n")
    rows = read_rows(tmp_path / "a.csv")
    assert rows.called("text") == "Text"
    assert rows.called("label") == "label"
    assert rows.called("LABEL") is None
    assert rows.take("text") == ["x"]
    assert rows.names == list(rows.columns) == ["label", "Label"]


def test_numbers_are_those_that_python_reads(tmp_path):
    """To the last bit, in every spelling, in the order of the file, over several blocks."""
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.normal(size=(300, 2)) * 10.0 ** draw.integers(-300, 300, (300, 2)), [[1e-320, 5e-324]]])
    cells = [[repr(value) for value in row] for row in x.tolist()]
    cells[0], cells[1], cells[2] = [" 1e3", "\t-0.1 "], ["NA", "?"], ["", '" nan "']
    (tmp_path / "a.csv").write_text("a,b,label\r\n" + "".join(f"{a},{b},{i % 2}\r\n" for i, (a, b) in enumerate(cells)))
    rows = read_rows(tmp_path / "a.csv", texts=["label"])
    x[0], x[1], x[2] = [1e3, -0.1], np.nan, np.nan
    assert rows.number_names == ["a", "b"]
    assert rows.numbers.flags.c_contiguous
    np.testing.assert_array_equal(rows.numbers, x)
    assert rows.columns == {"label": [str(i % 2) for i in range(301)]}


def test_a_text_below_many_numbers_makes_a_column_of_texts(tmp_path, monkeypatch):
    monkeypatch.setattr("evenly.data.rows.BLOCK", 1 << 12)
    lines = [f"{i},{i % 7},{'ab'[i % 2]}" for i in range(5000)]
    lines[4321] = "4321,inf,a"
    lines[4000] = "x,1,a"
    (tmp_path / "a.csv").write_text("n,m,label\n" + "\n".join(lines))
    rows = read_rows(tmp_path / "a.csv", texts=["label"])
    assert (list(rows.columns), rows.number_names) == (["n", "m", "label"], [])
    assert [rows.columns["n"][i] for i in (0, 4000, 4999)] == ["0", "x", "4999"]
    assert rows.line(4000) == 4002
    assert len(rows) == 5000


def test_columns_left_out_or_without_a_name_are_not_read(tmp_path):
    (tmp_path / "a.csv").write_text(",x,y,label\n0,1,what,a\n1,2,,b\n")
    rows = read_rows(tmp_path / "a.csv", texts=["label"], leave_out=["y"])
    assert (rows.names, rows.number_names, rows.unnamed) == (["x", "label"], ["x"], 1)


def test_a_long_cell_is_read_and_the_limit_of_csv_stays(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + "x" * 200_000 + ",1\n")
    csv.field_size_limit(131_072)
    rows = read_rows(tmp_path / "a.csv")
    assert len(rows.columns["text"][0]) == 200_000
    assert rows.line(0) == 2
    assert csv.field_size_limit() == 131_072


REFUSED = {
    "a column twice": (b"x,label,x\n1,a,2\n", "has 2 columns called 'x'; give each a name of its own"),
    "no rows": (b"x,label\n", "has a header and no rows; add a row for each example"),
    "empty rows": (b"x,label\n,\n\n", "has a header and no rows"),
    "a short row": (b"x,label\n1,a\n2\n", "line 3 of .* has 1 cells for 2 columns; correct it"),
    "a long row": (b'x,label\n"1\n",a\n2,b,c\n', "line 4 of .* has 3 cells for 2 columns; correct it"),
    "another encoding": (
        "x,label\n1,B\u00e4r\n".encode("latin-1"),
        "cannot be read as a table .*; save it as CSV in UTF-8",
    ),
    "wide characters": ("x,label\n1,a\n".encode("utf-16"), "cannot be read as a table .*; save it as CSV in UTF-8"),
    "an open quote": (b'x,label\n"1,a\n', "cannot be read as a table"),
    "an open quote at the end": (b'x,label\n1,"a\n', "cannot be read as a table"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_table_is_refused_in_a_line(tmp_path, case, refused):
    content, message = REFUSED[case]
    (tmp_path / "a.csv").write_bytes(content)
    refused(message, read_rows, tmp_path / "a.csv")


def test_a_file_that_is_not_there_or_not_packed_is_refused(tmp_path, refused):
    for name in ("a.csv", "a.csv.gz"):
        refused("there is no file .*; give a CSV file with a header", read_rows, tmp_path / name)
    (tmp_path / "folder.csv").mkdir()
    refused("cannot be read as a table", read_rows, tmp_path / "folder.csv")
    for content in (b"text,label\na,b\n", gzip.compress(b"text,label\n" * 99)[:-9]):
        (tmp_path / "a.csv.gz").write_bytes(content)
        refused("cannot be read as a table", read_rows, tmp_path / "a.csv.gz")


def test_an_empty_file_has_no_columns_and_a_zero_byte_is_a_character(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf")
    assert read_rows(tmp_path / "a.csv").names == []
    (tmp_path / "a.csv").write_bytes(b"text,label\na\0b,1\n")
    assert read_rows(tmp_path / "a.csv").columns["text"] == ["a\0b"]


def test_a_quote_within_a_cell_is_a_character_and_a_cell_may_end_in_a_new_line(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n5" pipe,"a\n"\n"say ""so""\n","b\nc\n"\n')
    assert read_rows(tmp_path / "a.csv").columns == {"text": ['5" pipe', 'say "so"'], "label": ["a", "b\nc"]}


def test_lines_of_json_are_rows(tmp_path, refused):
    path = tmp_path / "metadata.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ({"file_name": "a.png", "label": 1}, {"label": 0, "x": None})))
    rows = read_rows(path)
    assert rows.columns == {"file_name": ["a.png", ""], "label": ["1", "0"], "x": ["", ""]}
    assert rows.file_column == "file_name"
    for text in ("[1]", '{"a": 1}\n{', "\xff"):
        path.write_text(text, encoding="latin-1")
        refused("metadata.jsonl cannot be read after . rows .*; give a JSON object in each line", read_rows, path)


def test_rows_in_memory_are_read_like_those_of_a_file():
    columns = {
        "x": [1, None, 2.5],
        "y": np.array([1, 2, 3]),
        "z": ["a", None, " b"],
        "label": [0, 1, 0],
        "b": [True] * 3,
    }
    rows = rows_of(columns, texts=["label"])
    assert rows.number_names == ["x", "y"]
    np.testing.assert_array_equal(rows.numbers, [[1, 1], [np.nan, 2], [2.5, 3]])
    assert rows.columns == {"z": ["a", "", "b"], "label": ["0", "1", "0"], "b": ["True"] * 3}
    assert isinstance(rows, Rows)
    assert rows.line(2) == 3


def test_whole_numbers_among_texts_are_spelled_as_in_a_file():
    assert rows_of({"floor": [1.0, None, 2.5, 3]}, ["floor"]).columns == {"floor": ["1", "", "2.5", "3"]}


def test_rows_of_blanks_count_where_each_row_is_predicted(tmp_path):
    file = tmp_path / "new.csv"
    file.write_text("age,city\n40,Rome\n,\n\n20,Oslo\n")
    assert read_rows(file).columns["city"] == ["Rome", "Oslo"]
    assert read_rows(file, blank_rows=True).columns["city"] == ["Rome", "", "Oslo"]
