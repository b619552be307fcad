"""CLIP-SVD: only singular values move, by the derivative of the loss, from zero-shot CLIP."""

import copy
import dataclasses

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F

from kalmanclip.data import FewShotTask
from kalmanclip.encoders.features import decoded
from kalmanclip.errors import ConfigError, ModelError
from kalmanclip.methods.baselines.base import ZeroShot
from kalmanclip.methods.baselines.clip_svd import (
    CLIPSVD,
    CLIPSVDConfig,
    Similarities,
    expose_singular_values,
    fix_singular_values,
)

TEMPLATES = ("a photo of a {}.", "a drawing of a {}.")
MATRICES = ("attn.in_proj_weight", "attn.out_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


@pytest.fixture(scope="module")
def few(task):
    return FewShotTask(task.train, templates=TEMPLATES, seed=1)


@pytest.fixture(scope="module")
def exact(tiny):
    """The backbone in float64."""
    return dataclasses.replace(tiny, model=copy.deepcopy(tiny.model).double())


def squares(name, weight):
    """The matrices that a weight holds: q, k and v are three."""
    weight = weight.detach().double().numpy()
    return np.split(weight, 3) if "in_proj" in name else [weight]


def both_towers(*models):
    return zip(*([m.visual.transformer, m.transformer] for m in models), strict=True)


def test_untouched_singular_values_are_zero_shot(exact, few):
    model = copy.deepcopy(exact.model)
    expose_singular_values(model)
    (images,) = decoded(exact, few.train.sources)
    with torch.no_grad():
        ours = exact.logit_scale * Similarities(exact, model, few)(images)
    plain = ZeroShot(exact)
    plain.fit(few)
    assert torch.allclose(ours, plain.logits(few.train.sources), atol=1e-5)


def test_weights_have_the_singular_values_they_are_given(exact):
    """Against numpy's decomposition of q, k, v, the output and the MLP of every block, in both towers."""
    model = copy.deepcopy(exact.model)
    exposed = expose_singular_values(model)
    # all and none else: 12 blocks of width 192 and 4 of width 128, six matrices each
    assert sum(values.s.numel() for values in exposed) == 12 * 6 * 192 + 4 * 6 * 128
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for values in exposed:
            values.s *= 1 + 0.3 * torch.rand(values.s.shape, generator=generator)
    given = [row.detach().numpy() for values in exposed for row in values.s]
    fix_singular_values(model)
    after = dict(model.named_parameters())
    for name, before in exact.model.named_parameters():
        assert torch.equal(before, after[name]) != name.endswith(MATRICES)
    for old, new in both_towers(exact.model, model):
        for i, block in enumerate(old.resblocks):
            for name in MATRICES:
                pair = (squares(name, m.get_parameter(name)) for m in (block, new.resblocks[i]))
                for W, changed in zip(*pair, strict=True):
                    U, _, V = np.linalg.svd(W, full_matrices=False)
                    np.testing.assert_allclose(changed, U @ np.diag(given.pop(0)) @ V, atol=1e-9)
    assert not given


def test_the_derivative_by_finite_differences(exact, few):
    model = copy.deepcopy(exact.model)
    exposed = expose_singular_values(model)
    few = FewShotTask(few.train.subset([0, 3, 6]))
    similarities, y = Similarities(exact, model, few), torch.tensor(few.train.labels)
    (images,) = decoded(exact, few.train.sources)

    def loss():
        return F.cross_entropy(exact.logit_scale * similarities(images), y)

    loss().backward()
    generator = torch.Generator().manual_seed(0)
    for k in (0, 1, 2, 47, -16, -3, -2, -1):  # each kind of matrix, first and last block, both towers
        s = exposed[k].s
        direction = torch.randn(s.shape, generator=generator).to(s)
        with torch.no_grad():
            s += 1e-5 * direction
            above = loss()
            s -= 2e-5 * direction
            below = loss()
            s += 1e-5 * direction
        expected = (above - below).item() / 2e-5
        assert (s.grad * direction).sum().item() == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_one_published_step(exact, few):
    """AdamW's first step is the rate, against the derivative's sign, after the decay."""
    before = exact.hash
    method = CLIPSVD(exact, CLIPSVDConfig(most_iterations=1))
    method.fit(few)
    shares = []
    for old, new in both_towers(exact.model, method.encoder.backbone.model):
        for i, block in enumerate(old.resblocks):
            for name in MATRICES:
                pair = (squares(name, m.get_parameter(name)) for m in (block, new.resblocks[i]))
                for W, changed in zip(*pair, strict=True):
                    U, s, V = np.linalg.svd(W, full_matrices=False)
                    inside = U.T @ changed @ V.T
                    np.testing.assert_allclose(inside, np.diag(np.diag(inside)), atol=1e-9)
                    steps = np.abs(np.diag(inside) - s * (1 - 5e-4 * 1e-2))
                    assert steps.max() <= 5e-4 * (1 + 1e-6)
                    shares.append(np.mean(steps > 4.9e-4))
    assert np.mean(shares) > 0.95
    # nothing else has changed, and nothing at all in the backbone
    after = dict(method.encoder.backbone.model.named_parameters())
    for name, parameter in exact.model.named_parameters():
        assert torch.equal(parameter, after[name]) != name.endswith(MATRICES)
    assert dataclasses.replace(exact).hash == before
    assert not any(p.requires_grad for p in method.encoder.backbone.model.parameters())


def test_steps_by_shots(tiny, task):
    told = []
    one = FewShotTask(task.train.subset([0, 3, 6]), seed=1)
    CLIPSVD(tiny, CLIPSVDConfig(iterations=2)).fit(one, lambda stage, done, total: told.append((stage, total)))
    assert ("training", 2) in told
    assert CLIPSVDConfig().iterations == 200


def test_other_towers_are_refused(tiny, few, monkeypatch):
    model = open_clip.CLIP(
        embed_dim=32,
        vision_cfg={"image_size": 64, "layers": [1, 1, 1, 1], "width": 16},
        text_cfg={"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    )
    with pytest.raises(ModelError, match=r"not ModifiedResNet .*Choose a ViT"):
        CLIPSVD(dataclasses.replace(tiny, model=model)).fit(few)
    monkeypatch.setattr(tiny.model, "text_pool_type", "none")
    with pytest.raises(ModelError, match="standard transformer blocks"):
        CLIPSVD(tiny).fit(few)


def test_bad_options():
    for bad in ({"iterations": 0}, {"most_iterations": -1}, {"optimizer": "best"}):
        with pytest.raises(ConfigError):
            CLIPSVDConfig(**bad)
