"""`images` by a list: tables, CoOp's split files, and what was saved for Hugging Face."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.data.catalogue import DataRequest, Hints
from platform.data.checking import check_folder, require_one_label
from platform.data.own_lists import SavedImages
from platform.errors import DataError
from tests.drawn._pictures import write_picture
from tests.trunk.loaders._refusing import load, paths, refused

NAME = "images"
SAVED = Path(__file__).resolve().parents[2] / "vectors" / "saved_images"
"""Six training and four test images as `datasets` 5.2 saved them."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Eight images in one heap."""
    for number in range(8):
        write_picture(tmp_path / "root" / "images" / f"{number}.png", number % 2, number, size=16)
    return tmp_path / "root"


def write(root: Path, text: str, name: str = "list.csv", encoding: str = "utf-8") -> Path:
    (root / name).write_bytes(text.encode(encoding))
    return root


def table(*extra: str, header: str = "path,label") -> str:
    rows = [f"images/{n}.png,{'cat' if n % 2 else 'dog'}" for n in range(8)]
    more = extra or ("",) * 8
    return "\n".join([header, *(f"{row}{end}" for row, end in zip(rows, more, strict=True))]) + "\n"


def test_a_table_of_paths_and_labels(root: Path):
    data = load(NAME, write(root, table()))
    assert data.classes == ("cat", "dog")
    assert (data.train.num_examples, data.test.num_examples) == (6, 2)
    for path, label in zip(paths(data.train), data.train.labels.tolist(), strict=True):
        assert label == (0 if int(path[-5]) % 2 else 1)
    assert "as table: 2 classes" in data.recognised[0]


@pytest.mark.parametrize(("encoding", "sign"), [("utf-8", ";"), ("utf-8-sig", "\t")])
def test_marks_of_byte_order_signs_quotes_and_empty_lines(root: Path, encoding: str, sign: str):
    text = table(header="Path,LABEL").replace(",", sign).replace("dog", '"dog ""x"", y"')
    data = load(NAME, write(root, "\r\n".join([*text.splitlines(), "", ""]), encoding=encoding))
    assert data.classes == ("cat", 'dog "x", y')


def test_a_split_column_is_what_holds(root: Path):
    splits = (",train", ",Train", ",test", ",test", ",val", ",validation", ",train", ",train")
    data = load(NAME, write(root, table(*splits, header="path,label,split")))
    assert paths(data.test) == ("images/3.png", "images/2.png")
    assert [paths(data.train)[row] for row in data.validation] == ["images/5.png", "images/4.png"]
    assert data.train.num_examples == 6


def test_domains_and_clients(root: Path):
    own = [f",{'ab'[n // 4]}" for n in range(8)]
    data = load(NAME, write(root, table(*own, header="path,label,domain")))
    assert data.domains == ("a", "b")
    both = [f"{one},c{n % 2},old" for n, one in enumerate(own)]
    data = load(NAME, write(root, table(*both, header="path,label,domain,client,age")))
    assert data.domains == ("c0", "c1")
    assert "not read: column 'age'" in data.recognised


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("file,kind\nimages/0.png,a\n", "has no column path"),
        ("path,label\nimages/0.png\n", "line 2 of "),
        ("path,label\n../0.png,a\n", "lists the path '../0.png'"),
        ("path,label\nimages/9.png,a\n", "lists 'images/9.png', which"),
        ("path,label\nimages/0.png,-1\n", "the label -1"),
        ("path,label\nimages/0.png,a\nimages/0.png,a\n", "lists 'images/0.png' 2 times"),
        ("path,label\nimages/0.png,Cat\nimages/1.png,cat\n", "in two spellings"),
        ("path,label,split\nimages/0.png,a,\nimages/1.png,a,test\n", "has no split for 'images/0"),
        ('path,label\n"images/0.png,a\n', "no table at line"),
    ],
)
def test_tables_that_are_refused(root: Path, text: str, sentence: str):
    assert sentence in refused(NAME, write(root, text))


def test_a_listed_image_behind_a_link_that_leaves(root: Path, tmp_path: Path):
    write_picture(tmp_path / "out" / "0.png", 0, 0)
    (root / "more").symlink_to(tmp_path / "out")
    assert "leaves" in refused(NAME, write(root, "path,label\nmore/0.png,a\n"))


def test_a_list_that_says_other_things_than_folders(root: Path):
    for number in range(4):
        for name in ("cat", "dog"):
            write_picture(root / name / f"{number}.png", 0, number)
    shutil.rmtree(root / "images")
    write(root, "path,label\ncat/0.png,hen\ncat/1.png,hen\ndog/0.png,fox\n")
    assert "say different things" in refused(NAME, root)
    assert load(NAME, root, hints=Hints(layout="class_folders")).classes == ("cat", "dog")
    assert load(NAME, root, hints=Hints(layout="table")).classes == ("fox", "hen")


def test_a_split_file(root: Path):
    rows = [[f"{n}.png", n % 2, ("a_dog", "cat")[n % 2]] for n in range(8)]
    text = json.dumps({"train": rows[:4], "val": rows[4:6], "test": rows[6:]})
    data = load(NAME, write(root, text, "split_own.json"))
    assert data.classes == ("a dog", "cat")
    assert paths(data.test) == ("6.png", "7.png")
    assert [paths(data.train)[row] for row in data.validation] == ["4.png", "5.png"]
    assert "as split_file: 2 classes" in data.recognised[0]


def test_all_wrong_labels_of_a_saved_set_are_told_at_once(tmp_path: Path):
    root = saved(tmp_path / "set", [0, 7, 1, -3], names=["cat", "dog"])
    with pytest.raises(DataError) as caught:
        load(NAME, root)
    told = caught.value.faults
    assert ["row 1 of" in told[0], "row 3 of" in told[1], len(told)] == [True, True, 2]


def test_what_datasets_saved(tmp_path: Path):
    pytest.importorskip("pyarrow")
    data = load(NAME, SAVED)
    assert data.classes == ("cat", "dog")
    assert (data.train.num_examples, data.test.num_examples) == (6, 4)
    # The i-th image is one shade: ten times its number.
    for part, split, first in (("train", data.train, 0), ("test", data.test, 100)):
        rows = range(split.num_examples)
        shades = (int(image[0, 0, 0]) for image in split.images[np.array(rows)])
        named = {f"{part}/data-00000-of-00001.arrow/{n}": first + 10 * n for n in rows}
        assert dict(zip(paths(split), shades, strict=True)) == named
    assert require_one_label(data, np.arange(6), np.arange(4)) == ()
    assert check_folder(NAME, DataRequest(root=SAVED), lambda done, total: None).is_sound


def saved(root: Path, labels: list[Any], *, names: list[str]) -> Path:
    """A data set of one split, written as `save_to_disk` does."""
    pa = pytest.importorskip("pyarrow")
    root.mkdir()
    pictures = root.parent / "pictures"
    for number in range(len(labels)):
        write_picture(pictures / f"{number}.png", number, number, size=8)
    values = [
        {"bytes": (pictures / f"{n}.png").read_bytes(), "path": None} for n in range(len(labels))
    ]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {"image": pa.array(values, kind), "label": labels}
    with pa.OSFile(str(root / "data-0.arrow"), "wb") as file:
        made = pa.table(columns)
        with pa.ipc.new_stream(file, made.schema) as stream:
            stream.write_table(made)
    label = {"_type": "ClassLabel", "names": names}
    features = {"image": {"_type": "Image"}, "label": label}
    (root / "dataset_info.json").write_text(json.dumps({"features": features}))
    (root / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
    return root


def test_damaged_arrow_files_are_read_or_refused(tmp_path: Path):
    root = saved(tmp_path / "set", [0, 1] * 5, names=["cat", "dog"])
    whole = load(NAME, root)
    assert isinstance(whole.train.images, SavedImages)
    assert (whole.train.num_examples, whole.test.num_examples) == (8, 2)
    data = bytearray((root / "data-0.arrow").read_bytes())
    for size in (0, 10, 200, -10):
        (root / "data-0.arrow").write_bytes(data[:size])
        assert "is no Arrow stream" in refused(NAME, root)
    for position in range(0, len(data), 47):
        changed = bytearray(data)
        changed[position] ^= 0xFF
        (root / "data-0.arrow").write_bytes(changed)
        try:
            load(NAME, root)
        except Exception as error:
            assert str(error).startswith("task.root: "), (position, error)


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("state.json", '{"_data_files": [{"filename": "../x.arrow"}]}', "names '../x.arrow'"),
        ("state.json", "{}", "lists no image"),
        ("dataset_info.json", "{}", "has no features"),
        ("dataset_dict.json", '{"splits": ["../up"]}', "names '../up'"),
    ],
)
def test_saved_data_sets_that_are_refused(tmp_path: Path, file: str, text: str, sentence: str):
    root = saved(tmp_path / "set", [0, 1], names=["cat", "dog"])
    (root / file).write_text(text)
    assert sentence in refused(NAME, root)
