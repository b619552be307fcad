"""Files of the cache: what is written comes back to the last bit, and anything else is noticed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from kalmanclip.encoders.cache import DamagedShard, read_shard, write_shard
from kalmanclip.errors import KalmanClipError

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shards")


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "a.safetensors"
    write_shard(path, "key", "words", (torch.arange(12.0).reshape(3, 4), torch.ones(3, 2, 2)))
    return path


@given(
    count=st.integers(1, 5),
    shapes=st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=12),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_all_activations_come_back_to_the_last_bit(folder, count, shapes, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = tuple(torch.randn(count, *shape, generator=generator).to(dtype) for shape in shapes)
    write_shard(folder / "one.safetensors", "key", "words", rows)
    back = read_shard(folder / "one.safetensors", "key")
    assert [column.dtype for column in back] == [dtype] * len(rows)
    assert all(torch.equal(a, b) for a, b in zip(rows, back, strict=True))


def test_columns_that_lie_across_memory(tmp_path):
    across = torch.arange(12.0).reshape(4, 3).mT
    write_shard(tmp_path / "a.safetensors", "key", "words", (across,))
    assert torch.equal(read_shard(tmp_path / "a.safetensors", "key")[0], across)


def test_a_file_that_is_cut_short_anywhere(shard):
    whole = shard.read_bytes()
    for length in range(len(whole)):
        shard.write_bytes(whole[:length])
        with pytest.raises(DamagedShard):
            read_shard(shard, "key")


def test_a_flipped_bit_in_the_numbers(shard):
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DamagedShard, match="checksum"):
        read_shard(shard, "key")


def test_a_shard_under_the_name_of_another(shard):
    with pytest.raises(DamagedShard, match="other images"):
        read_shard(shard, "another key")


def test_a_safetensors_file_that_is_no_shard(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(DamagedShard):
        read_shard(tmp_path / "model.safetensors", "key")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(KalmanClipError, match="cannot write"):
        write_shard(tmp_path / "none" / "a.safetensors", "key", "words", (torch.ones(1),))
    with pytest.raises(FileNotFoundError):
        read_shard(tmp_path / "none" / "a.safetensors", "key")
