"""Classify pictures by an exported adapter, without torch and without kalmanclip: onnxruntime, numpy and pillow.

    kalmanclip export pets.adapter -o pets-onnx/ --format onnx
    python examples/onnx_predict.py pets-onnx/ new.jpg another.png

This file can be copied into any program.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

AT_ONCE = 16  # pictures in memory


class OnnxClassifier:
    """An exported adapter.

    Args:
        folder: with ``classifier.onnx`` and ``classifier.json``.
    """

    def __init__(self, folder: Path) -> None:
        self.about: dict[str, Any] = json.loads((folder / "classifier.json").read_text(encoding="utf-8"))
        if (self.about["format"], self.about["version"]) != ("kalmanclip-onnx", 1):
            raise ValueError(f"{folder} is of another format or version than this program.")
        self.class_names: list[str] = self.about["class_names"]
        self.session = onnxruntime.InferenceSession(str(folder / "classifier.onnx"))

    def prepare(self, image: Image.Image) -> np.ndarray:
        """Return the bytes (h, w, 3) that the graph takes of a picture: upright, resized, its centre."""
        steps = self.about["preparation"]
        image = ImageOps.exif_transpose(image)
        if image.has_transparency_data:  # on white
            colours = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours)
        image = image.convert("RGB")
        width, height = image.size
        if steps["resize"]:
            height, width = steps["resize"]
        elif width <= height:
            width, height = steps["resize_short_side"], int(steps["resize_short_side"] * height / width)
        else:
            width, height = int(steps["resize_short_side"] * width / height), steps["resize_short_side"]
        image = image.resize((width, height), Image.Resampling[steps["interpolation"].upper()])
        if steps["center_crop"]:
            h, w = steps["center_crop"]
            left, top = round((width - w) / 2), round((height - h) / 2)
            image = image.crop((left, top, left + w, top + h))
        return np.asarray(image)

    def __call__(self, images: list[Image.Image]) -> dict[str, np.ndarray]:
        """Return ``probabilities`` (N, C), and ``ood_score`` (N,) if the adapter has one, of N pictures."""
        names = self.about["outputs"]
        pixels = np.stack([self.prepare(image) for image in images])
        return dict(zip(names, self.session.run(names, {"pixels": pixels}), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="Classify pictures by an exported adapter.")
    parser.add_argument("model", type=Path, help="the folder that `kalmanclip export --format onnx` wrote")
    parser.add_argument("pictures", type=Path, nargs="+")
    parser.add_argument("--false-alarms", default="0.05", help="0.01, 0.05 or 0.1 (default: %(default)s); 0: never")
    arguments = parser.parse_args()
    classify = OnnxClassifier(arguments.model)
    threshold = classify.about["ood_thresholds"].get(arguments.false_alarms)
    for start in range(0, len(arguments.pictures), AT_ONCE):
        files = arguments.pictures[start : start + AT_ONCE]
        found = classify([Image.open(file) for file in files])
        for i, (file, p) in enumerate(zip(files, found["probabilities"], strict=True)):
            if threshold is not None and found["ood_score"][i] > threshold:
                print(f"{file}\tnone of these")
            else:
                print(f"{file}\t{classify.class_names[p.argmax()]}\t{p.max():.4f}")


if __name__ == "__main__":
    main()
