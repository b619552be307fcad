"""Models that are in memory already, or come from transformers, as backbones.

`as_backbone` takes an open_clip model, or a `CLIPModel` or `SiglipModel` of transformers. `TransformersCLIP` gives the
latter the few names by which this package asks an open_clip model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import open_clip
from open_clip.transform import PreprocessCfg, image_transform_v2
from torch import Tensor, nn

from kalmanclip.encoders.preprocess import Preprocess
from kalmanclip.errors import ModelError

if TYPE_CHECKING:
    from kalmanclip.encoders.backbone import Backbone

IN_MEMORY = "in-memory:"
"""How the name of a backbone begins that cannot be loaded by its name."""

_CLIP_VOCABULARY = 49408


class TransformersCLIP(nn.Module):
    """A `CLIPModel` or `SiglipModel` of transformers, asked as if it were open_clip's.

    Args:
        hf: the model; its weights are shared.
        processor: its image processor and tokenizer.
    """

    def __init__(self, hf: Any, processor: Any) -> None:
        super().__init__()
        self.hf = hf
        self.processor = processor

    @property
    def visual(self) -> Any:
        """The image tower, without its projection."""
        return self.hf.vision_model

    @property
    def text(self) -> Any:
        """The text tower, without its projection."""
        return self.hf.text_model

    @property
    def projections(self) -> dict[str, nn.Linear]:
        """The linear map that a tower ends with, by tower; the image tower of SigLIP ends with none."""
        found = {
            "image": getattr(self.hf, "visual_projection", None),
            "text": getattr(self.hf, "text_projection", None) or getattr(self.hf.text_model, "head", None),
        }
        return {tower: linear for tower, linear in found.items() if linear is not None}

    @property
    def logit_scale(self) -> Tensor:
        """The logarithm of 1 / tau."""
        return self.hf.logit_scale

    def encode_image(self, images: Tensor) -> Tensor:
        """Return embeddings (N, d), not normalised."""
        return _tensor(self.hf.get_image_features(pixel_values=images))

    def encode_text(self, tokens: Tensor) -> Tensor:
        """Return embeddings (N, d), not normalised. What pads a text comes after its end, as in training."""
        return _tensor(self.hf.get_text_features(input_ids=tokens))

    def tokenize(self, texts: list[str]) -> Tensor:
        """Return tokens (N, L)."""
        length = self.hf.config.text_config.max_position_embeddings
        encoded = self.processor.tokenizer(
            texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt"
        )
        tokens: Tensor = encoded["input_ids"]
        return tokens

    def preprocess(self) -> Preprocess:
        """Return what its image processor does, as open_clip's transform."""
        images = self.processor.image_processor
        size, crop = images.size, getattr(images, "crop_size", None)
        shortest = size.get("shortest_edge") if hasattr(size, "get") else None
        side = (crop["height"], crop["width"]) if shortest and crop else (size["height"], size["width"])
        if shortest and shortest != min(side):
            raise ModelError(f"An image processor that resizes to {shortest} and crops to {side} is not supported.")
        config = PreprocessCfg(
            size=side,
            mean=tuple(images.image_mean),
            std=tuple(images.image_std),
            interpolation="bilinear" if int(images.resample) == 2 else "bicubic",
            resize_mode="shortest" if shortest else "squash",
        )
        return Preprocess(image_transform_v2(config, is_train=False))


def _tensor(features: Any) -> Tensor:
    found: Tensor = features if isinstance(features, Tensor) else features.pooler_output
    return found


def as_backbone(
    model: Any,
    preprocess: Callable[..., Tensor] | None = None,
    tokenizer: Callable[[list[str]], Tensor] | None = None,
    processor: Any = None,
) -> Backbone:
    """Return a model that is in memory as a frozen backbone; it is put into evaluation mode, without gradients.

    Args:
        model: of open_clip, or a `CLIPModel` or `SiglipModel` of transformers. Its weights are shared, not copied.
        preprocess: PIL image to tensor (3, h, w); None: what the model itself says.
        tokenizer: list of texts to tokens (N, L); None: CLIP's own, where the model's vocabulary is CLIP's.
        processor: of a transformers model; None: the one that belongs to the name it was loaded by.

    Raises:
        ModelError: it is neither, or it does not say what is left out here.
    """
    from kalmanclip.encoders.backbone import Backbone

    name = f"{IN_MEMORY}{type(model).__name__}"
    if hasattr(model, "get_image_features") and hasattr(model, "vision_model"):
        source = getattr(model.config, "_name_or_path", "")
        model = TransformersCLIP(model, processor or _processor(source))
        name, preprocess, tokenizer = source or name, preprocess or model.preprocess(), tokenizer or model.tokenize
    elif not all(hasattr(model, part) for part in ("encode_image", "encode_text", "visual", "logit_scale")):
        raise ModelError(
            f"A backbone is a name, an open_clip model or a CLIPModel or SiglipModel of transformers, not "
            f"{type(model).__name__}."
        )
    if preprocess is None:
        config = getattr(model.visual, "preprocess_cfg", None)
        if not config:
            raise ModelError("The model does not say how images are prepared: give as_backbone its preprocess.")
        preprocess = Preprocess(image_transform_v2(PreprocessCfg(**config), is_train=False))
    if tokenizer is None:
        text = getattr(model, "text", model)
        if getattr(text, "vocab_size", None) != _CLIP_VOCABULARY:
            raise ModelError("The model's vocabulary is not CLIP's: give as_backbone its tokenizer.")
        tokenizer = open_clip.SimpleTokenizer(context_length=text.context_length)
    model.eval().requires_grad_(False)
    return Backbone(name, model, preprocess, tokenizer)


def load_transformers(name: str, device: Any) -> Backbone:
    """Load a CLIP or SigLIP of transformers by its name on the Hub or its folder.

    Raises:
        ModelError: transformers is not installed, the model is not at hand, or it is of another kind.
    """
    transformers = _transformers()
    try:
        model = transformers.AutoModel.from_pretrained(name, use_safetensors=True)
    except Exception as problem:
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
        raise ModelError(
            f"transformers could not load {name!r} ({reason}). Check the name or the folder; without a network, give "
            "a folder that holds the model. 'tiny' is embedded and always works offline."
        ) from problem
    return as_backbone(model.to(device))


def _processor(source: str) -> Any:
    transformers = _transformers()
    try:
        return transformers.AutoProcessor.from_pretrained(source)
    except Exception as problem:
        raise ModelError(
            f"The processor (tokenizer and image preparation) of the transformers model {source!r} was not found: "
            "give as_backbone(model, processor=...)."
        ) from problem


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as problem:
        raise ModelError(needs_transformers("This model")) from problem
    return transformers


def needs_transformers(what: str) -> str:
    """Return the message for what cannot be done without transformers."""
    return f"{what} needs the package transformers, which is not installed: pip install 'kalmanclip[transformers]'."
