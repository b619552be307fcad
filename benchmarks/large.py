"""A fit of class residuals with very many images and classes: seconds by stage, and peak memory beside its formula.

    python -m benchmarks.large --images 2000 --classes 100
    python -m benchmarks.large --images 100000 --classes 1000 --models ViT-B-16:random --device cuda

Learning is measured on made-up embeddings of full number, decoding and encoding on at most ``--pictures`` made-up JPEG
files, from which the seconds of all images and crops are reckoned. On a GPU, decoding by nvJPEG is measured, too, where
torchvision has it. Nothing but torch, torchvision, open_clip and what those need has to be installed.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from kalmanclip.encoders import Backbone, load_backbone
from kalmanclip.encoders.features import decoded
from kalmanclip.encoders.towers import ImageEncoder
from kalmanclip.methods.residuals import ClassResidualsConfig, ResidualBelief, held_out_parts
from kalmanclip.process import prepare_process

MATRICES = 6  # of samples times classes that the search for the mode holds at once


def expected_bytes(samples: int, width: int, classes: int, folds: int) -> int:
    """The formula of docs/performance.md: embeddings, their copies, and similarities, in float32."""
    search = (folds + 3) * width + MATRICES * classes
    statistics = (folds + 5) * width  # two copies of the embeddings are in float64
    return 4 * samples * max(search, statistics)


def learn(images: int, classes: int, width: int, scale: float, device: str) -> dict[str, Any]:
    """Learn from made-up embeddings; seconds and bytes."""
    config = ClassResidualsConfig()
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(classes, width, generator=generator), dim=1)
    labels = (torch.arange(images) % classes).to(device)
    crops = torch.randn(images, len(config.weights), width, generator=generator).mul_(0.05).to(device)
    crops = crops.add_(centres.to(device)[labels].unsqueeze(1)).div_(crops.norm(dim=2, keepdim=True))
    belief = ResidualBelief(config, scale)
    belief.set_classes([str(c) for c in range(classes)], centres.to(device))
    before = _bytes_now(device)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    belief.learn(crops, labels)
    if device != "cpu":
        torch.cuda.synchronize()
    taken = time.perf_counter() - begin
    peak = _peak_bytes(device) - before + crops.nbytes  # the embeddings count, too
    folds = len(held_out_parts(labels, config.folds))
    expected = expected_bytes(images * crops.shape[1], width, classes, folds)
    return {"learn_s": taken, "peak_bytes": peak, "formula_bytes": expected, "peak_by_formula": peak / expected}


def _bytes_now(device: str) -> int:
    if device != "cpu":
        return torch.cuda.memory_allocated()
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


def _peak_bytes(device: str) -> int:
    if device != "cpu":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def read(backbone: Backbone, pictures: int, size: int, device: str) -> dict[str, Any]:
    """Decode and encode made-up pictures; images a second."""
    rates: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = _made_up(Path(folder), pictures, size)
        list(decoded(backbone, files[:16]))  # not counted: threads, allocators
        rates["decode_per_s"] = pictures / _seconds(lambda: [None for _ in decoded(backbone, files)], device)
        if device != "cpu":
            rates["decode_nvjpeg_per_s"] = _nvjpeg(files, device)
    batch = torch.randn(64, 3, backbone.image_size, backbone.image_size, device=device, dtype=backbone.dtype)
    encode = ImageEncoder(backbone.model)
    with torch.no_grad():
        encode(batch)
        rounds = max(1, pictures // len(batch))
        rates["encode_per_s"] = rounds * len(batch) / _seconds(lambda: [encode(batch) for _ in range(rounds)], device)
    return rates


def _nvjpeg(files: list[Path], device: str) -> float | str:
    from torchvision.io import decode_jpeg

    data = [torch.from_numpy(np.fromfile(file, dtype=np.uint8)) for file in files]
    try:
        decode_jpeg(data[:16], device=device)
        parts = [data[i : i + 64] for i in range(0, len(data), 64)]
        return len(data) / _seconds(lambda: [decode_jpeg(part, device=device) for part in parts], device)
    except RuntimeError as problem:
        return f"not there: {str(problem).splitlines()[0]}"


def _seconds(call: Any, device: str) -> float:
    begin = time.perf_counter()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _made_up(folder: Path, count: int, size: int) -> list[Path]:
    """Write JPEG files of smooth colours with grain, about as large as photographs."""
    random = np.random.default_rng(0)
    files = []
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((size, size))
        grain = random.integers(-12, 13, (size, size, 3))
        files.append(folder / f"{number}.jpg")
        Image.fromarray((np.asarray(coarse) + grain).clip(0, 255).astype(np.uint8)).save(files[-1], quality=85)
    return files


def main(arguments: list[str] | None = None) -> None:
    """Measure one size, and print it as JSON."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--images", type=int, default=2000)
    command.add_argument("--classes", type=int, default=100)
    command.add_argument("--pictures", type=int, default=512, help="files that reading is measured on; 0: not at all")
    command.add_argument("--size", type=int, default=400, help="width and height of a picture")
    command.add_argument("--models", default="tiny", metavar="MODEL")
    command.add_argument("--precision", default="float32")
    command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    command.add_argument("--json", type=Path, help="add the result to this file, one line each")
    given = command.parse_args(arguments)
    prepare_process()
    backbone = load_backbone(given.models, given.device, given.precision)
    found: dict[str, Any] = {"images": given.images, "classes": given.classes, "model": given.models}
    found |= {"device": torch.cuda.get_device_name() if given.device != "cpu" else "cpu", "precision": given.precision}
    found |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
    # first: the most that the process has held so far must not be that of another stage
    found |= learn(given.images, given.classes, backbone.width, backbone.logit_scale, given.device)
    if given.pictures:
        found |= read(backbone, given.pictures, given.size, given.device)
        crops = len(ClassResidualsConfig().weights)
        # the centre crop and the random crops each come from a decoding of their own
        found |= {"decode_s": 2 * given.images / found["decode_per_s"]}
        found |= {"encode_s": crops * given.images / found["encode_per_s"]}
    print(json.dumps(found, indent=2))
    if given.json:
        with given.json.open("a") as file:
            file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
