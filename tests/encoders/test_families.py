"""Every family of models, small and with random weights: fit, predict, the paper's step, export."""

import importlib.util
import json
import sys
import textwrap

import numpy as np
import open_clip
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.func import functional_call, jacrev

from kalmanclip import KalmanCLIP
from kalmanclip.cli.export import export
from kalmanclip.encoders import DualEncoder, LowRankConfig, SimilarityJacobian, as_backbone, load_backbone
from kalmanclip.encoders.attach import AttachedTower
from kalmanclip.errors import ModelError

TEXT = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
PLAIN = {"image_size": 32, "patch_size": 16, "width": 32, "head_width": 16, "layers": 2}
WORDS = ["a", "photo", "of", "cat", "dog", "moon", "."]

TIMM = {  # architecture, image size, what makes it small
    "ViT": ("vit_tiny_patch16_224", 32, {"depth": 2}),
    "ViT, average pool": ("vit_medium_patch16_gap_256", 32, {"depth": 2}),
    "relative positions": ("vit_relpos_small_patch16_224", 32, {"depth": 2}),
    "SigLIP": ("vit_base_patch16_siglip_224", 32, {"depth": 2, "embed_dim": 96, "num_heads": 4}),
    "EVA02": ("eva02_base_patch16_clip_224", 32, {"depth": 2, "embed_dim": 96, "num_heads": 4}),
    "PE": ("vit_pe_core_tiny_patch16_384", 32, {"depth": 2}),
    "MobileCLIP-B": ("vit_base_mci_224", 32, {"depth": 2}),
    "MobileCLIP-S": ("fastvit_mci0", 64, {"layers": (1, 1, 1, 1)}),
    "ConvNeXt": ("convnext_tiny", 64, {"depths": (1, 1, 1, 1), "dims": (16, 32, 48, 64)}),
    "Swin": ("swin_tiny_patch4_window7_224", 56, {"depths": (1, 1), "num_heads": (2, 4), "embed_dim": 32}),
    "ViTamin": ("vitamin_small_224", 64, {"depth": 2}),
}
HF = {
    "RoBERTa": {"model_type": "roberta", "max_position_embeddings": 20, "pad_token_id": 1},
    "XLM-RoBERTa": {"model_type": "xlm-roberta", "max_position_embeddings": 20, "pad_token_id": 1},
    "mT5": {
        "model_type": "mt5",
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 64,
        "num_heads": 2,
        "num_layers": 2,
        "pad_token_id": 1,
    },
    "NLLB": {
        **{"model_type": "m2m_100", "d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "pad_token_id": 1},
        **{"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    },
}
FAMILIES = [*TIMM, *HF, "CoCa", "custom blocks", "transformers CLIP", "transformers SigLIP"]


def tokenizer_files(folder):
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        cls_token="<s>",
        sep_token="</s>",
    )
    fast.save_pretrained(folder)
    return fast


def transformers_folder(kind, folder):
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {
        **size,
        "max_position_embeddings": 16,
        "vocab_size": 64,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 1,
    }
    prefix = "CLIP" if kind == "transformers CLIP" else "Siglip"
    config = getattr(transformers, f"{prefix}Config")(
        text_config=text, vision_config={**size, "image_size": 32, "patch_size": 16}, projection_dim=24
    )
    torch.manual_seed(0)
    getattr(transformers, f"{prefix}Model")(config).save_pretrained(folder)
    tokenizer = tokenizer_files(folder)
    if prefix == "CLIP":
        images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
        processor = transformers.CLIPProcessor(images, tokenizer)
    else:
        images = transformers.SiglipImageProcessor(size={"height": 32, "width": 32})
        processor = transformers.SiglipProcessor(images, tokenizer)
    processor.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def backbone_of(tmp_path_factory):
    """Names to backbones, each built once."""
    folder, found = tmp_path_factory.mktemp("families"), {}
    create, patch = timm.create_model, pytest.MonkeyPatch()

    def small(name, **options):
        size, smaller = next((size, more) for arch, size, more in TIMM.values() if arch == name)
        options.pop("img_size", None)
        sized = name.startswith(("vit", "eva", "swin"))
        return create(name, **options, **smaller, **({"img_size": size} if sized else {}))

    patch.setattr(timm, "create_model", small)

    def config_of(family, place):
        if family in TIMM:
            arch, size, _ = TIMM[family]
            head = {
                "timm_proj": None if family in ("EVA02", "PE", "MobileCLIP-S", "MobileCLIP-B") else "linear",
                "timm_pool": {"SigLIP": "map", "PE": "map", "ViT": "token", "EVA02": "token"}.get(family, "avg"),
            }
            text = TEXT | (
                {"no_causal_mask": True, "pool_type": "last", "proj_bias": True} if family == "SigLIP" else {}
            )
            more = {"init_logit_bias": -10, "custom_text": True} if family == "SigLIP" else {}
            return {"vision_cfg": {"timm_model_name": arch, "image_size": size, **head}, "text_cfg": text, **more}
        if family in HF:
            size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
            place.mkdir(exist_ok=True)
            tokenizer_files(place)
            config = {"vocab_size": 64, **(size if "roberta" in HF[family]["model_type"] else {}), **HF[family]}
            (place / "config.json").write_text(json.dumps(config))
            text = {"hf_model_name": str(place), "hf_tokenizer_name": str(place), "hf_model_pretrained": False}
            text |= {"hf_proj_type": "mlp", "hf_pooler_type": "mean_pooler", "context_length": 16}
            return {"vision_cfg": PLAIN, "text_cfg": text}
        if family == "CoCa":
            vision = {**PLAIN, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
            text = {**TEXT, "embed_cls": True, "output_tokens": True}
            return {
                "vision_cfg": vision,
                "text_cfg": text,
                "multimodal_cfg": TEXT | {"mlp_ratio": 4},
                "custom_text": True,
            }
        return {"vision_cfg": {**PLAIN, "qk_norm": True}, "text_cfg": TEXT}

    def backbone_of(family):
        if family not in found:
            slug = f"small-{FAMILIES.index(family)}"  # by a name with "siglip" open_clip would download a tokenizer
            if family.startswith("transformers"):
                found[family] = load_backbone(transformers_folder(family, folder / slug))
            else:
                if family in HF:
                    pytest.importorskip("transformers")
                path = folder / f"{slug}.json"
                path.write_text(json.dumps({"embed_dim": 24} | config_of(family, folder / slug)))
                open_clip.add_model_config(path)
                found[family] = load_backbone(f"{slug}:random")
        return found[family]

    yield backbone_of
    patch.undo()


def pictures():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)) for _ in range(6)]


LABELS = ["cat", "dog", "moon"] * 2


@pytest.mark.parametrize("family", FAMILIES)
def test_jacobian_equals_jacrev_and_the_merged_model_equals_the_adapted_one(backbone_of, family):
    backbone = backbone_of(family)
    backbone.model.double()
    try:
        config = LowRankConfig(placement="towers", rank=1, targets=("q", "k", "v", "out", "mlp"), last_blocks=1)
        encoder = DualEncoder(backbone, config)
        assert any(isinstance(tower, AttachedTower) for tower in (encoder.image, encoder.text))
        torch.manual_seed(1)
        size = backbone.image_size
        tokens = encoder.tokenize(["a photo of a cat .", "dog", "a moon"])
        texts = encoder.text.prefix(tokens)
        unit = torch.nn.functional.normalize

        def plain(model):
            with torch.no_grad():
                return unit(model.encode_image(pixels), dim=-1) @ unit(model.encode_text(tokens), dim=-1).mT

        pixels = torch.randn(2, 3, size, size, dtype=torch.float64)
        images = encoder.image.prefix(pixels)
        untouched = encoder(images, texts).detach()
        torch.testing.assert_close(untouched, plain(backbone.model), rtol=0, atol=1e-10)
        encoder.theta.copy_(0.3 * torch.randn(encoder.n))
        assert (encoder(images, texts) - untouched).abs().max() > 1e-4
        exact = jacrev(lambda t: functional_call(encoder, encoder.named_views(t), (images, texts)))(encoder.theta)
        rows = SimilarityJacobian(encoder, images, texts).rows(torch.eye(3, dtype=torch.float64).expand(2, 3, 3))
        torch.testing.assert_close(rows, exact.flatten(0, 1), rtol=1e-7, atol=1e-10)
        for column, layer in zip(rows.abs().sum(0).split(encoder.groups), encoder.layers(), strict=True):
            assert column.max() > 0, layer
        torch.testing.assert_close(plain(encoder.merged()), encoder(images, texts).detach(), rtol=0, atol=1e-10)
    finally:
        backbone.model.float()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_joint_preset_learns_and_is_saved_and_exported(backbone_of, family, tmp_path):
    """Its logits are the sum of two classifiers', of adapted and of untouched embeddings."""
    backbone = backbone_of(family)
    clf = KalmanCLIP(backbone, preset="joint", options={"steps": 1, "low_rank.rank": 1, "crops": 1})
    clf.fit(pictures(), LABELS)
    probabilities = clf.predict_proba(pictures())
    residuals = KalmanCLIP(backbone, preset="residuals", options={"crops": 1}).fit(pictures(), LABELS)
    assert np.isfinite(probabilities).all()
    assert np.abs(probabilities - residuals.predict_proba(pictures())).max() > 1e-6
    again = KalmanCLIP.load(clf.save(tmp_path / "a"), model=backbone)
    np.testing.assert_allclose(again.predict_proba(pictures()), probabilities, atol=1e-6)
    clf.export(tmp_path / "plain")
    logits = 0
    for folder in (tmp_path / "plain", tmp_path / "plain" / "untouched"):
        plain = load_backbone(str(folder) if family.startswith("transformers") else f"local-dir:{folder}")
        with torch.no_grad():
            x = torch.stack([backbone.preprocess(picture) for picture in pictures()])
            f = torch.nn.functional.normalize(plain.model.encode_image(x), dim=-1)
        logits = logits + plain.logit_scale * f @ load_file(folder / "classifier.safetensors")["weight"].T
    np.testing.assert_allclose(logits.softmax(dim=1).numpy(), probabilities, atol=1e-4)


@pytest.mark.parametrize("preset", ["default", "head", "paper"])
@pytest.mark.parametrize("family", FAMILIES)
def test_fit_predict_export(backbone_of, family, preset, tmp_path):
    backbone = backbone_of(family)
    clf = KalmanCLIP(backbone, preset=preset, options={"low_rank.last_blocks": 1} if preset == "paper" else None)
    clf.fit(pictures(), LABELS)
    probabilities = clf.predict_proba(pictures())
    assert probabilities.shape == (6, 3)
    assert np.isfinite(probabilities).all()
    untouched = KalmanCLIP(backbone).set_classes(list(clf.classes_)).predict_proba(pictures())
    assert np.abs(probabilities - untouched).max() > 1e-6
    if preset == "head" and family == "transformers SigLIP":
        with pytest.raises(ModelError, match=r"last projection was not recognised.*save"):
            clf.export(tmp_path / "plain")
        return  # its image tower ends with a residual, into which nothing can be folded
    folder = clf.export(tmp_path / "plain")
    name = str(folder) if family.startswith("transformers") else f"local-dir:{folder}"
    again = load_backbone(name)
    with torch.no_grad():
        x = torch.stack([backbone.preprocess(picture) for picture in pictures()])
        f = torch.nn.functional.normalize(again.model.encode_image(x), dim=-1)
    logits = again.logit_scale * f @ clf.class_weights().T
    np.testing.assert_allclose(logits.softmax(dim=1).numpy(), probabilities, atol=1e-4)


@pytest.mark.parametrize("family", ["SigLIP", "Swin", "ConvNeXt", "transformers SigLIP"])
def test_a_filter_in_the_tower_beside_residuals(backbone_of, family):
    """Rank 2 in all maps of all blocks, also where one map is given the same token for every image."""
    options = {"steps": 1, "residuals.crops": 0}
    clf = KalmanCLIP(backbone_of(family), preset="joint", options=options).fit(pictures(), LABELS)
    assert (clf.method_.filter.steps, clf.method_.filter.skipped) == (3, 0)  # every image is seen three times
    assert clf.method_.encoder.theta.norm() > 0
    assert np.isfinite(clf.predict_proba(pictures())).all()


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in HF])
def test_onnx(backbone_of, family, tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    assert KalmanCLIP(backbone_of(family)).fit(pictures(), LABELS).export_onnx(tmp_path) <= 1e-4


def test_the_bias_of_a_sigmoid_model_is_exported(backbone_of, tmp_path):
    backbone = backbone_of("SigLIP")
    clf = KalmanCLIP(backbone).fit(pictures(), LABELS)
    again = load_backbone(f"local-dir:{clf.export(tmp_path / 'plain')}")
    assert again.model.logit_bias.item() == backbone.model.logit_bias.item() == -10


@pytest.mark.parametrize("family", ["ViT", "transformers CLIP"])
def test_a_model_in_memory_is_a_backbone(backbone_of, family, tmp_path):
    named = backbone_of(family)
    model = named.model if family == "ViT" else named.model.hf
    clf = KalmanCLIP(model).fit(pictures(), LABELS)
    expected = KalmanCLIP(named).fit(pictures(), LABELS)
    np.testing.assert_allclose(clf.predict_proba(pictures()), expected.predict_proba(pictures()), atol=1e-6)
    again = KalmanCLIP.load(clf.save(tmp_path / "a"), model=model)
    np.testing.assert_allclose(again.predict_proba(pictures()), clf.predict_proba(pictures()), atol=1e-6)
    if family == "ViT":
        with pytest.raises(ModelError, match="model in memory"):
            KalmanCLIP.load(tmp_path / "a")


def test_what_is_no_model_is_refused():
    with pytest.raises(ModelError, match="not Linear"):
        as_backbone(torch.nn.Linear(2, 2))


def test_without_transformers_the_message_names_the_extra(monkeypatch):
    def create(*args, **options):
        raise ModuleNotFoundError("No module named 'transformers'")

    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(open_clip, "create_model_and_transforms", create)
    for name in ("ViT-B-16-SigLIP:webli", "openai/clip-vit-base-patch32"):
        with pytest.raises(ModelError, match=r"pip install 'kalmanclip\[transformers\]'"):
            load_backbone(name)


def test_a_tokenizer_that_cannot_be_had_is_named(monkeypatch, tmp_path):
    """Also where the weights are there: it is not they that are missing."""
    pytest.importorskip("transformers")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(open_clip, "create_model_and_transforms", lambda *args, **options: pytest.fail("built"))
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(b"")
    for name in ("ViT-B-16-SigLIP:random", f"ViT-B-16-SigLIP:{weights}"):
        with pytest.raises(ModelError, match=r"tokenizer .*'timm/ViT-B-16-SigLIP'.*HF_HOME"):
            load_backbone(name)


def test_export_on_the_command_line_of_a_transformers_model(backbone_of, tmp_path, capsys):
    clf = KalmanCLIP(backbone_of("transformers CLIP")).fit(pictures(), LABELS)
    clf.save(tmp_path / "a")
    for _ in range(2):  # what it wrote itself, it may replace
        export(tmp_path / "a", tmp_path / "plain")
        assert "AutoModel.from_pretrained" in capsys.readouterr().out


def test_the_code_that_export_prints_for_two_models(backbone_of, tmp_path, monkeypatch, capsys):
    clf = KalmanCLIP(backbone_of("custom blocks"), preset="joint", options={"steps": 1, "crops": 1})
    clf.fit(pictures(), LABELS)
    monkeypatch.setattr("kalmanclip.cli.export.load", lambda *_: clf)
    export(tmp_path / "a", tmp_path / "plain")
    said = capsys.readouterr().out.splitlines()
    code = textwrap.dedent("\n".join(line for line in said if line.startswith("  ")))
    pictures()[0].save(tmp_path / "new.png")
    names = {}
    exec(code.replace("new.jpg", str(tmp_path / "new.png")), names)
    np.testing.assert_allclose(names["probabilities"].numpy(), clf.predict_proba(pictures()[:1]), atol=1e-4)
    residuals = KalmanCLIP(clf.backbone_, preset="residuals", options={"crops": 1}).fit(pictures(), LABELS)
    residuals.export(tmp_path / "plain")
    assert not (tmp_path / "plain" / "untouched").exists()  # what is there belongs together
