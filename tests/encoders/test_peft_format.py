"""What peft makes of low-rank parameters written in its layout, against our own towers."""

import json
import warnings

import open_clip
import pytest
import torch
from safetensors.torch import save_file
from tests.encoders.test_families import TEXT, backbone_of  # noqa: F401

from kalmanclip.encoders import DualEncoder, LowRankConfig, load_backbone
from kalmanclip.encoders.peft_format import CONFIG, WEIGHTS, peft_adapter

TOWERS = {"placement": "towers", "last_blocks": 1, "rank": 2, "scale": 0.7}
CONFIGS = {
    "head": LowRankConfig(rank=2, scale=0.7),
    "q, k, v": LowRankConfig(**TOWERS),
    "all": LowRankConfig(**TOWERS, targets=("q", "v", "out", "mlp")),
    "out": LowRankConfig(**TOWERS, targets=("out",)),
    "q, v, mlp": LowRankConfig(**TOWERS, targets=("q", "v", "mlp")),
    "image": LowRankConfig(**TOWERS, towers=("image",), targets=("k", "mlp")),
}
CASES = [(family, kind) for family in ("transformers CLIP", "transformers SigLIP", "tiny") for kind in CONFIGS]
NO_PLACE = {  # heads that are no linear map; the output projection of torch's attention, also in SigLIP's pool
    (family, kind) for family in ("tiny", "transformers SigLIP") for kind in ("head", "all", "out")
}


def learned(backbone, config):
    encoder = DualEncoder(backbone, config)
    encoder.theta.copy_(0.2 * torch.randn(encoder.n, generator=torch.Generator().manual_seed(1)))
    return encoder


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_peft_computes_the_same_embeddings(backbone_of, tiny, family, kind, tmp_path):  # noqa: F811
    peft = pytest.importorskip("peft")
    backbone = tiny if family == "tiny" else backbone_of(family)
    encoder = learned(backbone, CONFIGS[kind])
    found = peft_adapter(encoder, "base")
    if (family, kind) in NO_PLACE:
        assert found is None
        return
    config, tensors = found
    (tmp_path / CONFIG).write_text(json.dumps(config))
    save_file(tensors, tmp_path / WEIGHTS)
    fresh = load_backbone(backbone.name)
    hf = family.startswith("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of missing keys
        model = peft.PeftModel.from_pretrained(fresh.model.hf if hf else fresh.model, tmp_path)
    if hf:
        fresh.model.hf = model
    pixels = torch.randn(2, 3, backbone.image_size, backbone.image_size, generator=torch.Generator().manual_seed(2))
    tokens = encoder.tokenize(["a photo of a cat .", "dog"])
    unit = torch.nn.functional.normalize
    with torch.no_grad():
        towers = fresh.model if hf else model
        image, text = unit(towers.encode_image(pixels), dim=-1), unit(towers.encode_text(tokens), dim=-1)
        torch.testing.assert_close(image, encoder.image(*encoder.image.prefix(pixels)), rtol=0, atol=1e-5)
        torch.testing.assert_close(text, encoder.text(*encoder.text.prefix(tokens)), rtol=0, atol=1e-5)
        assert (image - unit(backbone.model.encode_image(pixels), dim=-1)).abs().max() > 1e-3


def test_a_weight_that_is_used_without_calling_its_module_has_no_place(tmp_path):
    """A ResNet's pool hands its weights to a function, which a wrapped module would not notice."""
    vision = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8}
    (tmp_path / "small-resnet.json").write_text(json.dumps({"embed_dim": 24, "vision_cfg": vision, "text_cfg": TEXT}))
    open_clip.add_model_config(tmp_path / "small-resnet.json")
    backbone = load_backbone("small-resnet:random")
    assert peft_adapter(learned(backbone, CONFIGS["q, k, v"]), "base") is None
    text_alone = LowRankConfig(**TOWERS, towers=("text",))
    assert peft_adapter(learned(backbone, text_alone), "base") is not None
