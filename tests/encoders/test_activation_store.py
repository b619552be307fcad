"""Frozen activations in memory: computed once where there is room, and the same where there is none."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kalmanclip import process
from kalmanclip.data import FewShotTask, from_lists
from kalmanclip.encoders import features, towers
from kalmanclip.encoders.features import ActivationStore
from kalmanclip.methods import Kalman, preset

COUNT = 7


class Encoder:
    """Activations that say which image they are of, in batches of three; remembers what it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, positions):
        self.asked.append(list(positions))
        for part in torch.tensor(list(positions)).split(3):
            yield part.float().unsqueeze(1).expand(-1, 4).contiguous(), part


def filled(limit):
    encode = Encoder()
    store = ActivationStore(encode, COUNT, limit)
    return store, encode, list(store.fill())


@pytest.mark.parametrize("limit", [None, COUNT * 24])
def test_all_images_are_encoded_once(limit):
    store, encode, told = filled(limit)
    assert told == [3, 6, 7]
    picked = torch.tensor([5, 0, 5, 6])
    rows, numbers = store[picked]
    assert numbers.tolist() == picked.tolist()
    assert torch.equal(rows, picked.float().unsqueeze(1).expand(-1, 4))
    assert encode.asked == [list(range(COUNT))]


def test_beyond_the_limit_they_are_encoded_again():
    store, encode, told = filled(COUNT * 24 - 1)
    assert told == []
    rows, numbers = store[torch.tensor([5, 0, 2, 6])]
    assert numbers.tolist() == rows[:, 0].tolist() == [5, 0, 2, 6]
    assert encode.asked == [list(range(COUNT)), [5, 0, 2, 6]]


@pytest.mark.parametrize(("free", "kept"), [(2 * COUNT * 24, True), (2 * COUNT * 24 - 2, False)])
def test_they_may_take_half_of_what_is_free(free, kept, monkeypatch):
    monkeypatch.setattr(features, "free_bytes", lambda device: free)
    assert bool(filled(None)[2]) == kept


def test_what_the_device_has_no_room_for_lies_in_the_computers_memory(monkeypatch):
    asked = []

    def free(device):
        asked.append(device.type)
        return 0 if device.type == "meta" else 1 << 30

    class Elsewhere(Encoder):
        def __call__(self, positions):
            for batch in super().__call__(positions):
                yield tuple(t.to("meta") for t in batch)

    monkeypatch.setattr(features, "free_bytes", free)
    store = ActivationStore(Elsewhere(), COUNT)
    kept = store._allocated(next(Elsewhere()(range(COUNT))))
    assert asked == ["meta", "cpu"]
    assert [(t.device.type, *t.shape) for t in kept] == [("cpu", COUNT, 4), ("cpu", COUNT)]


def counted(monkeypatch, kind):
    """How many rows the frozen part of a tower has been asked for, as a list that grows."""
    rows, prefix = [], kind.prefix

    def count(self, inputs):
        rows.append(len(inputs))
        return prefix(self, inputs)

    monkeypatch.setattr(kind, "prefix", count)
    return rows


@pytest.mark.parametrize("name", ["paper", "head"])
def test_a_fit_runs_the_frozen_parts_once_per_image_and_prompt(name, tiny, monkeypatch):
    rng = np.random.default_rng(0)
    images = from_lists(list(rng.integers(0, 255, (9, 32, 32, 3), dtype=np.uint8)), ["cat", "dog", "bird"] * 3)
    task = FewShotTask(images, templates=("a photo of a {}.", "{}"), seed=0)
    kinds = (towers.ImageTransformerTower, towers.TextTransformerTower) if name == "paper" else (towers.HeadTower,)
    method = Kalman(tiny, replace(preset(name), epochs=3, batch_size=4))
    seen = [counted(monkeypatch, kind) for kind in kinds]
    method.fit(task)
    assert len(method.history) == 9
    assert sorted(n for rows in seen for n in rows) == [6, 9]
    monkeypatch.setattr(features, "free_bytes", lambda device: 0)
    again = Kalman(tiny, method.config)
    again.fit(task)
    assert sum(n for rows in seen for n in rows) == 2 * (9 + 6) + 3 * 9 + 9  # now in every step, and for the OOD score
    assert torch.allclose(again.encoder.theta, method.encoder.theta, atol=1e-4 * method.encoder.theta.abs().max())


def test_free_memory_is_what_the_system_says(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(process, "_CGROUP", tmp_path)
    assert process.free_bytes() > 0  # by whatever else the system says
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemFree: 100 kB\nMemAvailable: 300 kB\n")
    assert process.free_bytes() == 300 << 10
    (tmp_path / "memory.current").write_text("5000\n")
    (tmp_path / "memory.stat").write_text("anon 4000\ninactive_file 700\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert process.free_bytes(torch.device("cpu")) == 300 << 10
    (tmp_path / "memory.max").write_text("9000\n")
    assert process.free_bytes() == 4700
    (tmp_path / "memory.max").write_text("3000\n")
    assert process.free_bytes() == 0
