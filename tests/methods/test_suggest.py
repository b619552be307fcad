"""What to label next, asked of fitted classifiers."""

import pytest
import torch

from kalmanclip import KalmanCLIP
from kalmanclip.data import read_folder
from kalmanclip.encoders.features import frozen_activations
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.methods.suggest import ACQUISITIONS, choose


@pytest.fixture(scope="module")
def pool(shapes):
    return read_folder(shapes).sources


@pytest.fixture(scope="module")
def clf(tiny, shapes):
    """Has seen one image of each shape."""
    images = read_folder(shapes)
    first = images.subset([0, 5, 10])
    return KalmanCLIP(tiny, prior_std=0.15, options={"crops": 0}).fit(first)


@pytest.fixture(scope="module")
def seen(clf, pool):
    """The pool as the classifier sees it."""
    return list(frozen_activations(clf.method_.encoder, pool))


@pytest.mark.parametrize("by", ACQUISITIONS)
def test_every_image_is_chosen_at_most_once(clf, seen, by):
    positions, scores = choose(clf.method_, seen, 5, by)
    assert len(set(positions)) == len(scores) == 5
    assert sorted(choose(clf.method_, seen, 50, by)[0]) == list(range(15))
    assert choose(clf.method_, seen, 5, by) == (positions, scores)


def test_images_with_a_label_are_left_out(clf, pool, seen):
    found = clf.suggest(pool, 50)
    assert sorted(found.positions) == [i for i in range(15) if i not in (0, 5, 10)]
    assert found.images == [pool[i] for i in found.positions]
    rest = [i for i in range(15) if i not in (0, 5, 10)]
    positions, scores = choose(clf.method_, [(seen[0][0][rest],)], 50)
    assert found.positions == [rest[i] for i in positions]
    assert found.scores == pytest.approx(scores, rel=1e-4)


def test_probabilities_and_expected_accuracy_are_those_of_predictions(clf, pool):
    found = clf.suggest(pool, 1)
    p = clf.predict_full(pool).probabilities
    torch.testing.assert_close(found.probabilities, p)
    rest = [i for i in range(15) if i not in (0, 5, 10)]
    assert found.expected_accuracy == pytest.approx(float(p[rest].amax(dim=1).mean()), rel=1e-5)


def test_entropy_and_margin_are_those_of_predictions(clf, pool, seen):
    p = clf.predict_full(pool, how="sampled").probabilities.double()
    entropy, two = -(p * p.log()).sum(dim=1), p.sort(dim=1, descending=True).values
    assert choose(clf.method_, seen, 1, "entropy")[1] == pytest.approx([float(entropy.max())], rel=1e-4)
    assert choose(clf.method_, seen, 1, "margin")[1] == pytest.approx(
        [1 - float((two[:, 0] - two[:, 1]).min())], rel=1e-4
    )


def test_copies_of_one_image_are_not_all_chosen_first(clf, seen):
    """After one of them the others tell less: the batch goes elsewhere. The top of a list does not."""
    f = seen[0][0]
    copies = [(torch.cat([f[[1]]] * 3 + [f[[2, 6, 7, 11, 12]]]),)]
    positions, scores = choose(clf.method_, copies, 8)
    assert scores == sorted(scores, reverse=True)
    assert max(i for i in range(8) if positions[i] < 3) > 3


def test_low_rank_parameters_choose_by_draws(tiny, shapes, pool):
    clf = KalmanCLIP(tiny, preset="head", epochs=1).fit(read_folder(shapes).subset([0, 5, 10]))
    assert len(clf.suggest(pool[:4], 3, by="batchbald").positions) == 3
    with pytest.raises(ConfigError, match="class residuals"):
        clf.suggest(pool, 3, by="filter")


def test_bad_calls(clf, tiny, pool):
    with pytest.raises(ConfigError, match="filter, epig"):
        clf.suggest(pool, 3, by="best")
    with pytest.raises(ConfigError, match="at least one"):
        clf.suggest(pool, 0)
    with pytest.raises(DataError, match="no images"):
        clf.suggest([], 3)
    with pytest.raises(ConfigError, match="call fit first"):
        KalmanCLIP(tiny).set_classes(["a", "b"]).suggest(pool, 3)


def test_a_pool_of_known_images_has_nothing_to_suggest(clf, pool):
    found = clf.suggest([pool[0], pool[5]], 3)
    assert (found.positions, found.images, found.expected_accuracy) == ([], [], 1.0)
