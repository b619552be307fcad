"""One file of a disk cache: the activations of one batch of images.

A shard is a safetensors file: the tensors ``0``, ``1``, ... are the activations, and its metadata say whose they are
and hold a checksum. It is written completely or not at all. It is read into memory and not mapped: a mapped file that
somebody cuts short would end the process.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import torch
from safetensors.torch import load, save

from kalmanclip.encoders.towers import Activations
from kalmanclip.files import write_atomic


class DamagedShard(Exception):
    """A file that is not, or no longer, the shard that it should be."""


def write_shard(path: Path, key: str, product: str, rows: Activations) -> None:
    """Writes the activations (B, ...) of a batch.

    Args:
        path: its folder exists.
        key: whose activations, as `read_shard` will ask.
        product: what they are, for a person who wonders.
        rows: on the CPU.

    Raises:
        KalmanClipError: the file system refuses.
    """
    columns = {str(i): column.contiguous() for i, column in enumerate(rows)}
    checksum = _checksum(tuple(columns.values()))
    write_atomic(path, save(columns, {"key": key, "product": product, "crc32": checksum}))


def read_shard(path: Path, key: str) -> Activations:
    """The activations (B, ...) of a batch, on the CPU.

    Raises:
        DamagedShard: the file does not hold what was written for this key.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    try:
        columns = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        # a copy: what torch allocates is aligned, as it would be fresh from the model, and sums may round by that
        rows = tuple(columns[str(i)].clone() for i in range(len(columns)))
        intact = bool(rows) and (metadata["key"], metadata["crc32"]) == (key, _checksum(rows))
    except Exception as error:  # safetensors and json have many ways to say it
        raise DamagedShard(f"it is cut short or no shard: {error}") from error
    if not intact:
        raise DamagedShard("it belongs to other images, or its checksum is wrong")
    return rows


def _checksum(rows: Activations) -> str:
    total = 0
    for column in rows:
        total = zlib.crc32(column.reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"
