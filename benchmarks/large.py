"""A fit of class residuals with very many images and classes: seconds by stage, and peak memory beside its formula.

    python -m benchmarks.large --images 8000 --classes 100 --json results/large.jsonl
    python -m benchmarks.large --device cuda --images 100000 --classes 1000 --model ViT-B-16:random \\
        --precision bfloat16 --pictures 20000 --json results/large-cuda.jsonl

*Learning* is measured on made-up embeddings, of ``--images`` images. With ``--pictures`` a *whole fit* from so many
made-up JPEG files is added: seconds of reading (decoding and encoding overlap) and of learning, then decoding and
encoding each alone. What is slower alone is what bounds reading. Where torchvision has it, its decoder is measured on
the same files, on the processor and on the GPU (nvJPEG): it is not used, since its pixels differ from Pillow's.

Every stage is printed, and added to the file, as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.measure import by_stage, peak_memory
from benchmarks.pictures import make_pictures
from kalmanclip.data import FewShotTask, read_folder
from kalmanclip.encoders import Backbone, load_backbone
from kalmanclip.encoders.features import ENCODE_BATCH, decoded
from kalmanclip.encoders.towers import ImageEncoder
from kalmanclip.methods import ClassResiduals
from kalmanclip.methods.residuals import ClassResidualsConfig, ResidualBelief, held_out_parts
from kalmanclip.process import prepare_process

ALONE = 4096  # files that decoding alone is measured on
BATCH = 2**22  # numbers of a batch of the search for the mode; four such are there at once
DRAWS = 2**24  # logits that are drawn at a time; four such are there at once
SMALL = 12  # numbers of each crop besides: labels, weights and positions
PRIORS = 14  # that are tried, about: each leaves its weights and its metric


def expected_bytes(images: int, crops: int, width: int, classes: int, held: Sequence[int]) -> int:
    """The formula of docs/performance.md, with the terms that do not grow with the number of images.

    Args:
        images: N.
        crops: V, of each.
        width: d.
        classes: C.
        held: images held out, by parts.
    """
    samples = images * crops
    most = samples - crops * min(held, default=0)  # learned at once, with the metric and the similarities
    copies = samples * width * (1 + len(held))  # of the embeddings: given, and as the parts have them
    search = most * (width + classes + SMALL) + 4 * BATCH
    averaging = 5 * sum(held) * classes + 4 * min(DRAWS, 64 * max(held, default=0) * classes)
    beliefs = PRIORS * len(held) * width * (classes + width) + 24 * width * classes  # and the search's last steps
    return 4 * (max(copies + max(search, averaging), samples * (2 * width + classes + SMALL) + 4 * BATCH) + beliefs)


def learn(images: int, classes: int, width: int, scale: float, device: str) -> dict[str, Any]:
    """Learn from made-up embeddings; seconds and bytes, the embeddings among them."""
    config = ClassResidualsConfig()
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(classes, width, generator=generator), dim=1)
    texts = F.normalize(centres + 0.1 * torch.randn(classes, width, generator=generator), dim=1)
    labels = torch.arange(images) % classes
    crops = torch.randn(images, len(config.weights), width, generator=generator).mul_(0.05)  # of one image
    crops += (centres[labels] + 0.15 * torch.randn(images, width, generator=generator)).unsqueeze(1)  # of one class
    crops, labels = F.normalize(crops, dim=2).to(device), labels.to(device)
    belief = ResidualBelief(config, scale)
    belief.set_classes([str(c) for c in range(classes)], texts.to(device))
    held = [len(part) for _, part in held_out_parts(labels, config.folds)]
    taken, peak = _timed_with_peak(lambda: belief.learn(crops, labels), device)
    peak += crops.nbytes
    expected = expected_bytes(images, crops.shape[1], width, classes, held)
    found = {"learn_s": taken, "folds": len(held), "priors": len(belief.held_out_log_likelihood)}
    return found | {"peak_bytes": peak, "formula_bytes": expected, "peak_by_formula": peak / expected}


def _timed_with_peak(call: Callable[[], object], device: str) -> tuple[float, int]:
    """Seconds of a call (on a processor: of its time), and bytes that tensors took beyond those before it."""
    if device == "cpu":
        begin = time.process_time()
        peak = peak_memory(call, device, warm=True)
        return time.process_time() - begin, peak
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, begin = torch.cuda.memory_allocated(), time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin, torch.cuda.max_memory_allocated() - before


def fit(backbone: Backbone, folder: Path, device: str) -> dict[str, Any]:
    """A whole fit from JPEG files: seconds by stage, and the most memory that GPU and process held."""
    with suppress(OSError):  # where the system can forget the most so far
        Path("/proc/self/clear_refs").write_text("5")
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    stages, progress = by_stage()
    ClassResiduals(backbone).fit(FewShotTask(read_folder(folder)), progress)
    _wait(device)
    whole = time.perf_counter() - begin
    found: dict[str, Any] = {"fit_s": whole, "stages_s": {**stages, "the rest": whole - sum(stages.values())}}
    if device != "cpu":
        found["gpu_peak_bytes"] = torch.cuda.max_memory_allocated()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return found | {"process_peak_bytes": int(status["VmHWM"].split()[0]) << 10}


def alone(backbone: Backbone, files: Sequence[Path], device: str) -> dict[str, Any]:
    """Decoding and encoding alone: images a second, and by which of them a pass over the images is bounded."""
    rates: dict[str, Any] = {}
    list(decoded(backbone, files[:16]))  # not counted: threads, allocators
    rates["decode_per_s"] = len(files) / _seconds(lambda: [None for _ in decoded(backbone, files)], device)
    size = min(ENCODE_BATCH, len(files))
    side = backbone.image_size
    batch = torch.randn(size, 3, side, side, device=device, dtype=backbone.dtype)
    encode = ImageEncoder(backbone.model)
    with torch.no_grad():
        encode(batch)
        rounds = max(1, len(files) // size)
        rates["encode_per_s"] = rounds * size / _seconds(lambda: [encode(batch) for _ in range(rounds)], device)
    bounded = "decoding" if rates["decode_per_s"] < rates["encode_per_s"] else "encoding"
    rates |= {"bounded_by": bounded, "files": len(files)}
    # whole batches at once on the GPU; one file after the other, in as many threads as processors, without one
    rates["torchvision_cpu_per_s"] = _torchvision(files, "cpu")
    if device != "cpu":
        rates["torchvision_cuda_per_s"] = _torchvision(files, device)
    return rates


def _torchvision(files: Sequence[Path], device: str) -> float | str:
    """Images a second of torchvision's decoder, from files that were read before; a sentence where it is not there."""
    try:
        from torchvision.io import decode_jpeg
        from torchvision.io.image import ImageReadMode

        data = [torch.from_numpy(np.fromfile(file, dtype=np.uint8)) for file in files]
        if device != "cpu":
            parts = [data[i : i + 128] for i in range(0, len(data), 128)]
            decode_jpeg(parts[0], mode=ImageReadMode.RGB, device=device)
            call = lambda: [len(decode_jpeg(p, mode=ImageReadMode.RGB, device=device)) for p in parts]  # noqa: E731
            return len(data) / _seconds(call, device)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            one = lambda d: len(decode_jpeg(d, mode=ImageReadMode.RGB))  # noqa: E731
            return len(data) / _seconds(lambda: list(pool.map(one, data)), device)
    except (ImportError, RuntimeError) as problem:
        return f"not there: {str(problem).splitlines()[0]}"


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _seconds(call: Callable[[], object], device: str) -> float:
    _wait(device)
    begin = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - begin


def table() -> str:
    """Learning on a processor, by numbers of images and classes, from results/large.jsonl."""
    from benchmarks import table as tables

    lines = []
    for line in (tables.RESULTS / "large.jsonl").read_text().splitlines():
        row = json.loads(line)
        cells = [f"{row['images']:,}", f"{row['classes']:,}", str(row["folds"]), f"{row['peak_bytes'] / 1e6:.0f} MB"]
        cells += [f"{row['peak_by_formula']:.2f}", f"{1e3 * row['learn_s'] / row['images']:.1f} ms"]
        lines.append(cells)
    heads = ["images", "classes", "parts held out", "peak", "/ formula", "processor time of an image"]
    return tables.markdown(heads, lines)


def gpu_table() -> str:
    """What was measured on a GPU, from results/large-cuda.jsonl."""
    from benchmarks import table as tables

    rows = {
        row["stage"]: row for row in map(json.loads, (tables.RESULTS / "large-cuda.jsonl").read_text().splitlines())
    }
    learning, alone = rows["learning"], rows["alone"]
    size = f"{learning['images']:,} images of six crops, {learning['classes']:,} classes"
    lines = [
        [f"learning from embeddings: {size}", f"{learning['learn_s']:.0f} s"],
        ["most that tensors held at once", f"{learning['peak_bytes'] / 1e9:.2f} GB"],
        ["the same / formula", f"{learning['peak_by_formula']:.3f}"],
    ]
    names = {
        "encode_per_s": f"encoding alone, {alone['model'].partition(':')[0]} in {alone['precision']}",
        "decode_per_s": f"reading alone: Pillow in {alone['threads']} threads, resizing and copying, too",
        "torchvision_cpu_per_s": f"decoding alone by torchvision in {alone['threads']} threads",
        "torchvision_cuda_per_s": "decoding alone by torchvision on the GPU (nvJPEG)",
    }
    lines += [[f"{name}, of {alone['files']:,} files", f"{alone[key]:,.0f} a second"] for key, name in names.items()]
    return tables.markdown([learning["device"], ""], lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure one size, stage by stage, and print each as JSON."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--images", type=int, default=4200, help="embeddings to learn from; 0: none")
    command.add_argument("--classes", type=int, default=100)
    command.add_argument("--pictures", type=int, default=0, help="JPEG files of a whole fit; 0: none")
    command.add_argument("--size", type=int, default=224, help="width and height of a picture")
    command.add_argument("--model", default="tiny")
    command.add_argument("--precision", default="float32")
    command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    command.add_argument("--json", type=Path, help="add the results to this file, one stage a line")
    given = command.parse_args(arguments)
    prepare_process()
    backbone = load_backbone(given.model, given.device, given.precision)
    machine: dict[str, Any] = {"classes": given.classes, "model": given.model, "precision": given.precision}
    machine |= {"device": torch.cuda.get_device_name() if given.device != "cpu" else "cpu"}
    machine |= {"threads": torch.get_num_threads(), "torch": torch.__version__}

    def tell(stage: str, images: int, found: dict[str, Any]) -> None:
        line = {"stage": stage, "images": images, **machine, **found}
        print(json.dumps(line, indent=2), flush=True)
        if given.json:
            with given.json.open("a") as file:
                file.write(json.dumps(line) + "\n")

    if given.images:
        made = learn(given.images, given.classes, backbone.width, backbone.logit_scale, given.device)
        tell("learning", given.images, made)
    if given.pictures:
        with tempfile.TemporaryDirectory() as place:
            files = make_pictures(Path(place), given.pictures, given.classes, (given.size, given.size))
            tell("alone", given.pictures, alone(backbone, files[:ALONE], given.device))
            tell("fit", given.pictures, fit(backbone, Path(place), given.device))


if __name__ == "__main__":
    main()
