"""What the package does with a classifier that asks two image towers, the untouched one and an adapted one."""

import numpy as np
import pytest
import torch
from PIL import Image
from tests.test_onnx import example, small  # noqa: F401 (a fixture)

from kalmanclip import KalmanCLIP
from kalmanclip.data import read_folder
from kalmanclip.encoders.features import frozen_activations
from kalmanclip.methods import ClassResidualsConfig, JointConfig


@pytest.fixture(scope="module")
def clf(shapes):
    images = read_folder(shapes)
    config = JointConfig(steps=2, residuals=ClassResidualsConfig(crops=1))
    fitted = KalmanCLIP(small(), config).fit(images.subset([0, 1, 2, 5, 6, 7, 10, 11, 12]))
    assert fitted.method_.encoder.theta.abs().max() > 0
    return fitted


@pytest.fixture(scope="module")
def pictures(shapes):
    return read_folder(shapes).sources


def test_plain_towers_add_up_to_the_logits(clf, pictures):
    x = torch.stack([clf.backbone_.preprocess(Image.open(path)) for path in pictures])
    towers = clf.method_.plain_towers()
    assert [tower.untouched for tower in towers] == [True, False]
    with torch.no_grad():
        logits = [
            clf.backbone_.logit_scale * tower.model.encode_image(x, normalize=True) @ tower.weights.mT
            for tower in towers
        ]
    torch.testing.assert_close(sum(logits), clf.method_.logits(pictures), atol=1e-3, rtol=0)
    assert (logits[0] - logits[1]).abs().max() > 1e-3


def test_a_graph_of_both_says_what_the_estimator_says(example, clf, pictures, tmp_path):  # noqa: F811
    assert clf.export_onnx(tmp_path) <= 1e-4
    found = example.OnnxClassifier(tmp_path)([Image.open(path) for path in pictures])
    expected = clf.predict_full(pictures, how="mean")
    np.testing.assert_allclose(found["probabilities"], expected.at_mean.numpy(), atol=1e-4)
    np.testing.assert_allclose(found["ood_score"], expected.ood_score.numpy(), atol=1e-4)


def test_labels_to_ask_for_are_chosen_by_the_untouched_one(clf, pictures):
    found = clf.suggest(pictures, 4)
    (seen,) = frozen_activations(clf.method_.encoder, pictures)
    rest = [i for i in range(len(pictures)) if i not in (0, 1, 2, 5, 6, 7, 10, 11, 12)]
    assert set(found.positions) <= set(rest)
    assert len(found.positions) == 4
    with torch.no_grad():
        f = clf.method_._untouched().encode_images(seen)
        torch.testing.assert_close(clf.method_.joint_logits(seen).variance(), clf.method_.residuals.variance(f))


def test_labels_are_checked_without_adapting_a_tower(clf, shapes):
    images = read_folder(shapes)
    found = clf.check_labels(images)
    alone = KalmanCLIP(clf.backbone_, ClassResidualsConfig(crops=1)).check_labels(images)
    np.testing.assert_array_equal(found.wrong, alone.wrong)
