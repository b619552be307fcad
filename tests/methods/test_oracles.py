"""One independent answer per method: closed forms, plain loops, limiting cases, other libraries."""

import dataclasses
import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from kalmanclip.data import FewShotTask, load_image, read_folder
from kalmanclip.encoders import DualEncoder, LowRankConfig, features
from kalmanclip.encoders.features import text_weights
from kalmanclip.encoders.preprocess import RandomCrop
from kalmanclip.errors import DataError, ModelError
from kalmanclip.methods import Kalman
from kalmanclip.methods.baselines.ape import APET, APETConfig, channel_criterion
from kalmanclip.methods.baselines.base import ZeroShot
from kalmanclip.methods.baselines.clip_adapter import CLIPAdapter, CLIPAdapterConfig
from kalmanclip.methods.baselines.clip_lora import CLIPLoRA, CLIPLoRAConfig
from kalmanclip.methods.baselines.coop import CoOp, CoOpConfig, Prompts
from kalmanclip.methods.baselines.gda import GDA, GDAConfig
from kalmanclip.methods.baselines.linear_probe import LinearProbe, LinearProbeConfig
from kalmanclip.methods.baselines.lp_plus_plus import LPPlusPlus, LPPlusPlusConfig, lipschitz_constant
from kalmanclip.methods.baselines.tip_adapter import (
    TipAdapter,
    TipAdapterConfig,
    TipAdapterF,
    TipAdapterFConfig,
    search_cache,
)
from kalmanclip.methods.baselines.training import Recipe, coop_epochs, coop_recipe, train


def image_features(backbone, *arguments, **options):
    """Of the frozen towers."""
    return features.image_features(DualEncoder(backbone), *arguments, **options)


@pytest.fixture(scope="module")
def task(shapes):
    images = read_folder(shapes)
    return FewShotTask(images.subset(i for i in range(15) if i % 5 < 3), seed=1)


@pytest.fixture(scope="module")
def f(tiny, task):
    return image_features(tiny, task.train.sources)


@pytest.fixture(scope="module")
def y(task):
    return torch.tensor(task.train.labels)


@pytest.fixture(scope="module")
def zero_shot(tiny, task):
    method = ZeroShot(tiny)
    method.fit(task)
    return method.logits(task.train.sources)


# zero-shot and features


def test_zero_shot_is_the_untouched_kalman_model(tiny, task):
    templates = ("a photo of a {}.", "a drawing of a {}.")
    kalman, plain = Kalman(tiny), ZeroShot(tiny)
    kalman.set_classes(task.class_names, templates)
    plain.fit(dataclasses.replace(task, templates=templates))
    assert torch.allclose(plain.logits(task.train.sources), kalman.logits(task.train.sources), atol=1e-4)


def test_text_weights_by_open_clip(tiny, task):
    for name, row in zip(task.class_names, text_weights(tiny, task.class_names, ["a photo of a {}."]), strict=True):
        with torch.no_grad():
            t = tiny.model.encode_text(tiny.tokenizer([f"a photo of a {name}."]))[0]
        assert torch.allclose(row, t / t.norm(), atol=1e-5)


def test_random_crops_depend_on_the_picture_the_seed_and_the_pass(tiny, task):
    def cropped(sources, seed, epoch):
        return image_features(tiny, sources, crop=RandomCrop(tiny, (0.5, 1.0), seed, epoch))

    sources = task.train.sources[:3]
    one = cropped(sources, 0, 0)
    assert torch.allclose(cropped(sources[::-1], 0, 0).flip(0), one, atol=1e-5)
    assert not torch.allclose(cropped(sources, 0, 1), one, atol=1e-3)
    assert not torch.allclose(cropped(sources, 1, 0), one, atol=1e-3)


@pytest.mark.parametrize("size", [(64, 64), (300, 20), (1, 50)])
def test_crops_stay_inside_and_have_the_asked_area(tiny, size):
    crop, generator = RandomCrop(tiny, (0.5, 1.0), 0, 0), random.Random(0)
    for _ in range(50):
        left, upper, right, lower = crop._box(size, generator)
        assert 0 <= left < right <= size[0]
        assert 0 <= upper < lower <= size[1]
        if size == (64, 64):
            assert 0.47 < (right - left) * (lower - upper) / 64**2 <= 1


# the training loop


def test_rates_of_the_recipes():
    coop = coop_recipe(32)
    rates = [coop.rate(step, steps=40, per_epoch=4) for step in range(40)]
    assert rates[:4] == [1e-5] * 4
    assert rates[4:8] == pytest.approx([2e-3] * 4)
    assert rates[8:12] == pytest.approx([1e-3 * (1 + math.cos(math.pi / 10))] * 4)
    lora = Recipe(lr=2e-4, final_lr=1e-6)
    assert lora.rate(0, 100, 10) == pytest.approx(2e-4)
    assert lora.rate(50, 100, 10) == pytest.approx((2e-4 + 1e-6) / 2)
    linear = Recipe(decay="linear")
    assert [linear.rate(s, 4, 2) for s in range(4)] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])
    assert [coop_epochs(k) for k in (1, 2, 4, 8, 16)] == [50, 100, 100, 200, 200]


@pytest.mark.parametrize("recipe", [Recipe("sgd", weight_decay=0.1), Recipe(weight_decay=0.1, eps=1e-4)])
def test_the_loop_is_torchs_optimiser_and_scheduler(recipe):
    recipe = dataclasses.replace(recipe, batch_size=2)
    target = torch.arange(6.0)
    ours = torch.zeros(1, requires_grad=True)
    seen = []
    train([ours], recipe, 6, 7, lambda i, epoch: (seen.append(i), (ours - target[i]).square().mean())[1], seed=0)
    assert len(seen) == 7
    assert sorted(torch.cat(seen[:3]).tolist()) == list(range(6))
    theirs = torch.zeros(1, requires_grad=True)
    kind = torch.optim.SGD if recipe.optimizer == "sgd" else torch.optim.AdamW
    extra = {"momentum": 0.9} if recipe.optimizer == "sgd" else {"eps": 1e-4}
    optimiser = kind([theirs], lr=1e-3, weight_decay=0.1, **extra)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 7)
    for i in seen:
        optimiser.zero_grad()
        (theirs - target[i]).square().mean().backward()
        optimiser.step()
        scheduler.step()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)


# linear probe


def test_the_regression_is_stationary_and_its_limit_is_zero_shot(tiny, task, f, y):
    probe = LinearProbe(tiny, LinearProbeConfig(l2=1.0, crops=0))
    probe.fit(task)
    W, ones = probe.W.clone().requires_grad_(), torch.ones(len(f))
    (gradient,) = torch.autograd.grad(probe.objective(W, f, y, ones, 1.0), W)
    assert gradient.abs().max() < 1e-3
    # by hand: the pull balances the cross-entropy's derivative
    p = probe.score(f).softmax(dim=1)
    by_hand = probe.T - probe.scale * (p - F.one_hot(y, 3)).mT @ f / len(f)
    assert torch.allclose(probe.W, by_hand, atol=1e-3)
    assert torch.allclose(probe.regress(f, y, ones, 1e9), probe.T, atol=1e-5)


# GDA


def test_gda_is_shrunken_lda(tiny, task, f, y):
    """Scikit-learn's discriminant with the equivalent shrinkage, up to a factor and a constant per row."""
    method = GDA(tiny, GDAConfig(crops=0))
    method.fit(task)
    n, d = f.shape
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=d / (n - 1 + d), priors=np.full(3, 1 / 3))
    lda.fit(f.double().numpy(), y.numpy())
    # scikit-learn divides the scatter by N, the estimator by N - 1, and multiplies the precision by d / (N - 1 + d)
    factor = d / (n - 1 + d) * (n - 1) / n
    ours = method.discriminant(f).double()
    theirs = factor * torch.from_numpy(lda.decision_function(f.double().numpy()))
    ours, theirs = (x - x.mean(dim=1, keepdim=True) for x in (ours, theirs))
    assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * theirs.abs().max().item())
    assert torch.allclose(method.score(f), method.zero_shot(f) + 0.1 * method.discriminant(f))


def test_gda_with_one_image_per_class_goes_by_distance(tiny, task, f):
    one = FewShotTask(task.train.subset([0, 3, 6]))
    method = GDA(tiny, GDAConfig(crops=0))
    method.fit(one)
    nearest = torch.cdist(f, f[[0, 3, 6]]).argmin(dim=1)
    assert torch.equal(method.discriminant(f).argmax(dim=1), nearest)


def test_gda_needs_every_class(tiny, task):
    with pytest.raises(DataError, match="none of triangle"):
        GDA(tiny, GDAConfig(crops=0)).fit(FewShotTask(task.train.subset(range(6))))


# Tip-Adapter


def test_tip_adapter_by_plain_loops(tiny, task, f, y, zero_shot):
    method = TipAdapter(tiny, TipAdapterConfig(crops=0, alpha=1.3, beta=2.5))
    method.fit(task)
    logits = method.logits(task.train.sources)
    for i in range(9):
        for c in range(3):
            votes = sum(math.exp(-2.5 * (1 - float(f[i] @ f[j]))) for j in range(9) if y[j] == c)
            assert logits[i, c].item() == pytest.approx(zero_shot[i, c].item() + 1.3 * votes, rel=1e-4)


def test_keys_are_means_of_augmented_passes(tiny, task):
    method = TipAdapter(tiny, TipAdapterConfig(crops=3))
    method.fit(task)
    passes = [image_features(tiny, task.train.sources, crop=RandomCrop(tiny, (0.5, 1.0), 1, v)) for v in range(3)]
    assert torch.allclose(method.K, F.normalize(sum(passes) / 3, dim=1), atol=1e-5)


def test_the_grid_by_plain_loops():
    generator = torch.Generator().manual_seed(0)
    clip, affinity = torch.randn(20, 3, generator=generator), torch.rand(20, 6, generator=generator)
    V, labels = F.one_hot(torch.arange(6) % 3).float(), torch.randint(3, (20,), generator=generator)
    best = (-1, None)
    for i in range(5):
        for j in range(4):
            beta, alpha = i * (7 - 0.1) / 5 + 0.1, j * (3 - 0.1) / 4 + 0.1
            logits = clip + alpha * torch.exp(-(beta - beta * affinity)) @ V
            right = sum(int(a == b) for a, b in zip(logits.argmax(1), labels, strict=True))
            if right > best[0]:
                best = (right, (alpha, beta))
    found = search_cache(lambda beta: torch.exp(beta * (affinity - 1)) @ V, clip, labels, (7.0, 3.0), (5, 4))
    assert found == pytest.approx(best[1])


def test_training_starts_at_the_keys_of_tip_adapter(tiny, task):
    plain = TipAdapter(tiny, TipAdapterConfig(crops=0))
    trained = TipAdapterF(tiny, TipAdapterFConfig(crops=0, train_crops=0, epochs=1))
    plain.fit(task)
    trained.fit(task)
    moved = (plain.K - trained.K).abs().max().item()
    assert 0 < moved < 2e-3  # one step of AdamW with rate 1e-3


# CLIP-Adapter


def test_clip_adapter_without_its_adapter_is_zero_shot(tiny, task, zero_shot):
    method = CLIPAdapter(tiny, CLIPAdapterConfig(ratio=0.0, epochs=1, crops=0))
    method.T = text_weights(tiny, task.class_names, task.templates)
    method.D, method.U, method.ratio = torch.randn(128, 512), torch.randn(512, 128), 0.0
    assert torch.allclose(method.logits(task.train.sources), zero_shot, atol=1e-4)


def test_clip_adapter_on_embeddings_that_are_not_normalised(tiny, task):
    """As published: the adapter sees raw embeddings; the logits are the same."""
    method = CLIPAdapter(tiny, CLIPAdapterConfig(epochs=2, crops=0))
    method.fit(task)
    with torch.no_grad():
        raw = tiny.model.encode_image(torch.stack([tiny.preprocess(load_image(s)) for s in task.train.sources]))
        adapted = torch.relu(torch.relu(raw @ method.D.T) @ method.U.T)
        blend = 0.2 * adapted + 0.8 * raw
        published = tiny.logit_scale * blend / blend.norm(dim=1, keepdim=True) @ method.T.T
    assert torch.allclose(method.logits(task.train.sources), published, atol=1e-3)


# LP++


def test_the_lipschitz_constant_by_power_iteration(f):
    v = torch.ones(f.shape[1], dtype=torch.float64)
    for _ in range(2000):
        v = f.double().T @ (f.double() @ v)
        v /= v.norm()
    largest = float(v @ (f.double().T @ (f.double() @ v)))
    assert lipschitz_constant(f, torch.ones(len(f))) == pytest.approx(largest / (4 * len(f)), rel=1e-6)


def test_it_bounds_the_curvature_in_one_class():
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(12, 4, generator=generator), torch.randint(3, (12,), generator=generator)
    bound = lipschitz_constant(x, torch.ones(12))
    for spread in (0.0, 0.1, 1.0):
        W = spread * torch.randn(3, 4, generator=generator)

        def one_class(w, W=W):
            return F.cross_entropy(x @ torch.cat([w.unsqueeze(0), W[1:]]).T, labels)

        hessian = torch.autograd.functional.hessian(one_class, W[0])
        assert torch.linalg.eigvalsh(hessian).max() <= bound * (1 + 1e-5)


def test_lp_plus_plus_starts_at_sums_and_similarities(tiny, task, f, y):
    method = LPPlusPlus(tiny, LPPlusPlusConfig())
    method.T = text_weights(tiny, task.class_names, task.templates)
    method.start(f, y, torch.ones(len(f)))
    alphas = []
    for c in range(3):
        assert torch.allclose(method.W[c], sum(f[i] for i in range(9) if y[i] == c), atol=1e-5)
        alphas.append(250 * np.mean([float(f[i] @ method.T[c]) for i in range(9) if y[i] == c]))
    assert method.alpha.tolist() == pytest.approx([np.mean(alphas)] * 3, rel=1e-4)


def test_the_best_epoch_on_validation_is_kept(tiny, task, shapes):
    held_out = read_folder(shapes).subset(i for i in range(15) if i % 5 >= 3)
    short, longer = (LPPlusPlusConfig(epochs=n) for n in (1, 40))
    scores = []
    for config in (short, longer):
        method = LPPlusPlus(tiny, config)
        method.fit(dataclasses.replace(task, validation=held_out))
        predicted = method.logits(held_out.sources).argmax(dim=1)
        scores.append(int((predicted == torch.tensor(held_out.labels)).sum()))
    assert scores[1] >= scores[0]


# APE-T


def test_the_criterion_by_plain_loops():
    T = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    none, labels = T[:0], torch.empty(0, dtype=torch.long)
    criterion = channel_criterion(T, none, labels, 0.2, 0.8)
    for k in range(6):
        pairs = [float(T[i, k] * T[j, k]) for i in range(4) for j in range(4) if i != j]
        expected = 0.8 * float(T[:, k].var()) - 0.2 * np.mean(pairs)
        assert criterion[k].item() == pytest.approx(expected, abs=1e-6)


def test_ape_t_by_plain_loops(tiny, task, f, y):
    method = APET(tiny, APETConfig(crops=0, train_crops=0, epochs=3, channels=0.5))
    method.fit(task)
    assert method.chosen.shape == (256,)
    assert method.r.abs().max() > 0
    residue = torch.zeros_like(method.T)
    residue[:, method.chosen] = method.r
    T, K = method.T + residue, f + residue[y]
    for i in range(2):
        for c in range(3):
            votes = sum(float(method.v[j]) * math.exp(-(1 - float(f[i] @ K[j]))) for j in range(9) if y[j] == c)
            expected = tiny.logit_scale * float(f[i] @ T[c]) + 2.0 * votes
            assert method.score(f)[i, c].item() == pytest.approx(expected, rel=1e-4)


def test_ape_t_starts_at_tip_adapter(tiny, task, f):
    plain = TipAdapter(tiny, TipAdapterConfig(crops=0, alpha=2.0))
    plain.fit(task)
    method = APET(tiny, APETConfig(crops=0))
    method.T, method.K, method.V, method.alpha, method.beta = plain.T, plain.K, plain.V, 2.0, 1.0
    method.trainable()
    assert torch.allclose(method.score(f), plain.score(f), atol=1e-5)


# CLIP-LoRA


SMALL = LowRankConfig(placement="towers", last_blocks=1, rank=2, scale=0.5)


def test_the_published_placement(tiny):
    """Rank 2 on q, k, v of all blocks of both towers."""
    assert CLIPLoRA(tiny).encoder.n == 12 * 3 * 2 * (192 + 192) + 4 * 3 * 2 * (128 + 128)


def test_dropout_acts_in_training_only(tiny, task):
    method = CLIPLoRA(tiny, CLIPLoRAConfig(low_rank=SMALL, iterations=2, augment=False))
    method.fit(task)
    assert all(layer.dropout is None for layer in method.encoder.layers())


def test_q_k_and_v_have_a_dropout_mask_each(tiny):
    """By hand, from a generator of the same seed: three masks in turn, each for its own ``s B A``."""
    method = CLIPLoRA(tiny, CLIPLoRAConfig(low_rank=SMALL, dropout=0.25))
    layer = method.encoder.layers()[0]
    x = torch.randn(5, 7, layer.A.shape[1], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.B.copy_(torch.randn(layer.B.shape, generator=torch.Generator().manual_seed(1)))
        method._set_dropout(method._dropout(torch.Generator().manual_seed(3)))
        dropped = layer(x).chunk(3, dim=-1)
        generator = torch.Generator().manual_seed(3)
        masks = [(torch.rand(x.shape, generator=generator) >= 0.25).float() for _ in range(3)]
        for group, (found, mask) in enumerate(zip(dropped, masks, strict=True)):
            A, B = layer.A[2 * group : 2 * group + 2], layer.B[group]
            assert torch.allclose(found, 0.5 * (x * mask / 0.75) @ A.T @ B.T, atol=1e-4)
    assert not torch.equal(masks[0], masks[1])
    assert masks[2].mean().item() == pytest.approx(0.75, abs=0.02)


def test_clip_lora_is_its_merged_model(tiny, task, zero_shot):
    """Its logits are those of the plain model with the corrections folded in, and differ from zero-shot's."""
    method = CLIPLoRA(tiny, CLIPLoRAConfig(low_rank=SMALL, iterations=4, augment=False, optimizer="paper"))
    method.fit(task)
    logits = method.logits(task.train.sources)
    merged = dataclasses.replace(tiny, model=method.encoder.merged())
    plain = ZeroShot(merged)
    plain.fit(task)
    assert torch.allclose(plain.logits(task.train.sources), logits, atol=1e-3)
    assert not torch.allclose(logits, zero_shot, atol=1e-2)


def test_clip_lora_with_random_crops(tiny, task):
    config = CLIPLoRAConfig(low_rank=SMALL, iterations=1, batch_size=4)
    one, two = (CLIPLoRA(tiny, config) for _ in range(2))
    one.fit(task)
    two.fit(task)
    assert torch.equal(one.encoder.theta, two.encoder.theta)
    assert all(layer.B.abs().max() > 0 for layer in one.encoder.layers())  # the optimiser's views are theta


# CoOp


def test_a_real_prompts_words_as_context_give_its_zero_shot_weights(tiny, task):
    names = [*task.class_names, "tabby cat on a very old sofa"]
    words = tiny.tokenizer(["a photo of a"])[0, 1:5]
    context = tiny.model.token_embedding(words)
    weights = Prompts(tiny, names, 4)(context)
    assert torch.allclose(weights, text_weights(tiny, names, ["a photo of a {}."]), atol=1e-5)


def test_only_the_context_is_learned(tiny, task):
    before = tiny.hash
    method = CoOp(tiny, CoOpConfig(context=4, epochs=2, crops=0))
    method.fit(task)
    assert method.context.shape == (4, 128)
    start = 0.02 * torch.randn(4, 128, generator=torch.Generator().manual_seed(1))
    assert 0 < (method.context - start).abs().max() < 0.1
    assert dataclasses.replace(tiny).hash == before


def test_the_published_context(tiny, task):
    """M = 16 (Zhou et al. 2022, and the paper's baseline), drawn from N(0, 0.02^2)."""
    method = CoOp(tiny, CoOpConfig(epochs=1, crops=0))
    method.fit(task)
    assert method.context.shape == (16, 128)
    assert 0.015 < method.context.std().item() < 0.025


def test_towers_that_cannot_take_context(tiny, monkeypatch):
    monkeypatch.setattr(tiny.model, "text_pool_type", "none")
    with pytest.raises(ModelError, match="not supported"):
        Prompts(tiny, ["cat"], 4)


def test_no_room_for_the_context(tiny):
    with pytest.raises(ModelError, match="no room"):
        Prompts(tiny, ["cat"], 76)
