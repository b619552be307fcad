"""The corruptions of ImageNet-C, made on the fly: noise, blur, weather and digital damage in five strengths.

They come from the optional package `imagecorruptions-imaug` (``pip install "kalmanclip[corruptions]"``).
"""

import hashlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from typing import Any, cast

import numpy as np
from PIL import Image

from kalmanclip.data.images import ImageSource, LazyImage, content_identity, image_identity, load_image
from kalmanclip.data.labelled import LabelledImages
from kalmanclip.errors import ConfigError, ImageError

CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The 15 corruptions of ImageNet-C."""
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The 4 that ImageNet-C sets aside for choosing on."""
_ALL = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)

SEVERITIES = (1, 2, 3, 4, 5)
SIZE = 224
"""ImageNet-C was made at this size; the strengths mean what they mean there only at this size."""

_SMALLEST = 32  # the package refuses smaller images

# The package draws from numpy's global generator, which there is one of for all threads.
_GLOBAL_GENERATOR = threading.Lock()


@dataclass(frozen=True, eq=False)
class CorruptedImage(LazyImage):
    """An image with a corruption, computed when it is loaded: always the same for the same five values.

    Attributes:
        source: what `load_image` takes.
        corruption: a name of `CORRUPTIONS` or `EXTRA_CORRUPTIONS`.
        severity: 1 to 5.
        seed: of the noise, together with the image's identity, the corruption and the severity.
        size: the short side is resized to this (bicubic) and the middle cut out, before the corruption, so that its
            strength does not depend on how large the file happens to be; a backbone of this input size then sees
            the same section as of the clean image. None: the image as it is, at least 32 pixels each way.
    """

    source: ImageSource
    corruption: str
    severity: int
    seed: int = 0
    size: int | None = SIZE

    def __post_init__(self) -> None:
        _check(self.corruption, self.severity)
        if self.size is not None and self.size < _SMALLEST:
            raise ConfigError(f"size is {self.size}; corruptions need at least {_SMALLEST} pixels")

    @property
    def identity(self) -> str:
        """The identity of the image underneath and what is done to it."""
        return f"{image_identity(self.source)}:{self.corruption}:{self.severity}:{self.seed}:{self.size}"

    def content(self) -> str | None:
        """Return the pixels underneath, what is done to them (noise depends on the identity), and by which version."""
        beneath = content_identity(self.source)
        return None if beneath is None else f"{beneath}:{self.identity}:{_package_version()}"

    def load(self, max_pixels: int) -> Image.Image:
        """Return the corrupted image."""
        image = load_image(self.source, max_pixels=max_pixels)
        if self.size is not None:
            from torchvision.transforms import InterpolationMode, functional

            # With torchvision, the section is the one that preprocessing cuts out of the clean image.
            image = functional.resize(image, self.size, InterpolationMode.BICUBIC)
            image = functional.center_crop(image, [self.size, self.size])
        return corrupt(image, self.corruption, self.severity, self.identity)


def corrupt(image: Image.Image, corruption: str, severity: int, seed: str | int = 0) -> Image.Image:
    """Return a corrupted copy of an RGB image of at least 32 x 32: the same for the same arguments."""
    _check(corruption, severity)
    if min(image.size) < _SMALLEST:
        raise ImageError(
            f"the image has {image.width} x {image.height} pixels, but corruptions need {_SMALLEST}; give a size"
        )
    function = require_package()
    digest = hashlib.sha256(f"{seed}:{corruption}:{severity}".encode(errors="surrogateescape")).digest()
    with _seeded(int.from_bytes(digest[:4], "big")):
        pixels = function(np.asarray(image.convert("RGB")), corruption_name=corruption, severity=severity)
    return Image.fromarray(np.asarray(pixels, dtype=np.uint8))


def corrupted(
    images: LabelledImages, corruption: str, severity: int, seed: int = 0, size: int | None = SIZE
) -> LabelledImages:
    """Return all images with one corruption, as ImageNet-C does to a test set."""
    require_package()  # now, not at the first image
    sources: list[ImageSource] = [CorruptedImage(source, corruption, severity, seed, size) for source in images.sources]
    return LabelledImages(sources, images.labels, images.class_names)


def contaminate(
    images: LabelledImages,
    share: float,
    seed: int,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    size: int | None = SIZE,
) -> LabelledImages:
    """Return the images with a share of them corrupted, each by a random one of the corruptions and severities.

    Round(share * N) of the N images are chosen, whatever their class. The choice is nested: what is corrupted at
    10 % is corrupted, in the same way, at 20 %.

    Args:
        images: a training set.
        share: from 0 to 1.
        seed: of everything that is random here.
        corruptions: names to choose from.
        severities: strengths to choose from.
        size: see `CorruptedImage`.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"share is {share}; it must lie between 0 and 1")
    if not corruptions or not severities:
        raise ConfigError("there are no corruptions or no severities to choose from; give at least one of each")
    for corruption, severity in product(corruptions, severities):
        _check(corruption, severity)
    count = round(share * len(images))
    if count:
        require_package()
    sources = list(images.sources)
    # Only random() is promised to give the same numbers in every Python, so nothing else is used.
    draws = [random.Random(f"{seed}:contaminate:{position}") for position in range(len(images))]
    order = sorted(range(len(images)), key=lambda position: (draws[position].random(), position))
    for position in order[:count]:
        corruption = corruptions[int(draws[position].random() * len(corruptions))]
        severity = severities[int(draws[position].random() * len(severities))]
        sources[position] = CorruptedImage(sources[position], corruption, severity, seed, size)
    return LabelledImages(sources, images.labels, images.class_names)


def _check(corruption: str, severity: int) -> None:
    if corruption not in _ALL:
        raise ConfigError(f"there is no corruption {corruption!r}; known: {', '.join(_ALL)}")
    if severity not in SEVERITIES:
        raise ConfigError(f"severity is {severity!r}; use 1 (weak) to 5 (strong)")


def require_package() -> Callable[..., np.ndarray]:
    """Return the one function of the optional package; call it early, before other work, to see that it is there."""
    try:
        import imagecorruptions  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise ConfigError(
            f"corruptions need the optional package imagecorruptions-imaug, which cannot be imported ({error}); "
            'install it with pip install "kalmanclip[corruptions]"'
        ) from error
    return cast("Callable[..., np.ndarray]", imagecorruptions.corrupt)


@lru_cache(maxsize=1)
def _package_version() -> str:
    try:
        return version("imagecorruptions-imaug")
    except PackageNotFoundError:
        return "unknown"


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Make numpy's global randomness start from `seed`, and put it back afterwards.

    Most corruptions draw from the global generator. Impulse noise (in scikit-image) and glass blur ask for a new
    generator without a seed, which no global seed reaches, so these requests are answered with a seeded one.
    """
    with _GLOBAL_GENERATOR:
        state, fresh = np.random.get_state(), np.random.default_rng  # noqa: NPY002

        def seeded(given: Any = None) -> np.random.Generator:
            return fresh(seed if given is None else given)

        np.random.seed(seed)  # noqa: NPY002
        np.random.default_rng = seeded  # type: ignore[assignment]
        try:
            yield
        finally:
            np.random.default_rng = fresh
            np.random.set_state(state)  # noqa: NPY002
