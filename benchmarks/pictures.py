"""Made-up pictures: smooth colours with edges and grain, about as large as photographs when compressed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

TEXTURES = 32


def make_pictures(folder: Path, count: int, classes: int, size: tuple[int, int]) -> list[Path]:
    """Writes JPEG files of that width and height into one folder per class, evenly; returns their paths."""
    generator = np.random.default_rng(0)
    textures = [_texture(generator, size) for _ in range(min(count, TEXTURES))]
    files = []
    for i in range(count):
        place = folder / f"number {i % classes:04d}"
        place.mkdir(exist_ok=True)
        files.append(place / f"{i}.jpg")

    def write(i: int) -> None:
        # every file is different, and none costs more than compressing it
        rolled = np.roll(textures[i % len(textures)], (7 * i, 13 * i), axis=(0, 1))
        Image.fromarray(rolled).save(files[i], quality=90)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, range(count)))
    return files


def _texture(generator: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Smooth colours with edges and a little grain, (height, width, 3): compresses about as well as a photograph."""
    total = np.zeros((size[1], size[0], 3))
    for cells, weight in ((4, 0.6), (24, 0.4)):
        coarse = Image.fromarray(generator.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        total += weight * np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), dtype=float)
    total += generator.normal(0, 4, total.shape)
    return total.clip(0, 255).astype(np.uint8)
