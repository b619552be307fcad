"""Draws that somebody published: the first K of each class of the seed's list."""

import json

import pytest
from PIL import Image

from kalmanclip.data import FewShotTask, few_shot_task, read_folder, read_shot_lists, sample_shots
from kalmanclip.errors import DataError


@pytest.fixture
def folder(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for i in range(8):
            Image.new("RGB", (8, 8)).save(tmp_path / "train" / name / f"{i}.png")
    return tmp_path


def write(folder, size, seed, lines):
    (folder / f"shot{size}_seed{seed}.txt").write_text("\n".join(lines) + "\n")


def lines(*numbers):
    return [f"{name}/{i}.png" for name in ("cat", "dog") for i in numbers]


def drawn(folder, shots, seed=1):
    train = read_folder(folder / "train")
    return few_shot_task(train, None, None, shots, seed, shot_lists=read_shot_lists(folder, train))


def numbers(images):
    return [f"{path.parent.name}/{path.name}" for path in images.sources]


def test_the_first_of_each_class_in_the_shortest_list_that_is_long_enough(folder):
    write(folder, 4, 1, lines(7, 5, 3, 1))
    write(folder, 2, 1, lines(6, 0))
    write(folder, 4, 2, lines(0, 1, 2, 3))
    expected = {1: [6], 2: [6, 0], 3: [7, 5, 3], 4: [7, 5, 3, 1]}
    for shots, wanted in expected.items():
        task = drawn(folder, shots)
        assert numbers(task.train) == lines(*wanted)
        assert task.draw.shot_list == f"shot{2 if shots < 3 else 4}_seed1.txt"
        assert task.validation.counts() == [min(shots, 4)] * 2
        assert not set(task.train.sources) & set(task.validation.sources)


def test_without_a_list_of_that_seed_or_size_images_are_drawn(folder):
    write(folder, 2, 1, lines(6, 0))
    train = read_folder(folder / "train")
    for shots, seed in ((3, 1), (1, 2)):
        task = drawn(folder, shots, seed)
        assert task.train.sources == sample_shots(train, shots, seed).sources
        assert task.draw.shot_list is None
    assert drawn(folder, None).draw.shot_list is None


def test_a_draw_is_made_again_from_its_record_alone(folder):
    write(folder, 2, 1, lines(6, 0))
    task = drawn(folder, 2)
    record = json.loads(json.dumps(task.to_dict()))
    (folder / "shot2_seed1.txt").unlink()
    assert FewShotTask.from_dict(record, read_folder(folder / "train")).train.sources == task.train.sources


def test_lists_may_have_windows_paths_and_empty_lines(folder):
    (folder / "shot1_seed1.txt").write_bytes(b"\xef\xbb\xbfcat\\3.png\r\n\r\ndog\\4.png\r\n")
    assert numbers(drawn(folder, 1).train) == ["cat/3.png", "dog/4.png"]


def test_bad_lists_are_named(folder):
    write(folder, 1, 1, ["cat/0.png", "dog/99.png"])
    with pytest.raises(DataError, match=r"shot1_seed1\.txt names 1 images that are not in train/: dog/99\.png"):
        drawn(folder, 1)
    write(folder, 1, 1, ["cat/0.png"])
    with pytest.raises(DataError, match=r"fewer than 1 images of 1 classes \('dog'\)"):
        drawn(folder, 1)
    write(folder, 1, 1, [])
    with pytest.raises(DataError, match="empty"):
        drawn(folder, 1)


def test_the_developer_data_have_them(shared_data):
    folder = shared_data / "pets"
    train = read_folder(folder / "train")
    task = few_shot_task(train, None, None, 16, 1, shot_lists=read_shot_lists(folder, train))
    listed = (folder / "shot16_seed1.txt").read_text().split("\n")
    assert sorted(numbers(task.train)) == sorted(line for line in listed if line)
