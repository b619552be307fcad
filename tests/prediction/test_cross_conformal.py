"""Sets of classes from images that were held out in turn, against their definitions written out image by image."""

import numpy as np
import pytest

from kalmanclip.prediction.conformal import KINDS, Calibration, nonconformity

N, NEW, CLASSES, FOLDS = 30, 12, 4, 3


def draws(seed, ties=False):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(CLASSES), (FOLDS, N + NEW))
    if ties:
        p = np.round(4 * p) + 1
        p = p / p.sum(axis=2, keepdims=True)
    return p, rng.integers(0, CLASSES, N), np.arange(N) % FOLDS


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("coverage", [0.6, 0.9])
def test_a_set_holds_what_a_test_of_exchangeability_does_not_refuse(kind, coverage, ties):
    """The same by p-values: a class is left out if too few held-out images fit their own as badly."""
    p, y, fold = draws(3, ties)
    held, new = p[fold, np.arange(N)], p[0, N:]
    sets = Calibration.of(held, y, kind).sets(new, coverage)
    scores = [nonconformity(held[i : i + 1], kind)[0, y[i]] for i in range(N)]
    for image, row in zip(new, sets, strict=True):
        for c, inside in enumerate(row):
            as_bad = sum(score >= nonconformity(image[None], kind)[0, c] for score in scores)
            assert inside == (1 + as_bad > (1 - coverage) * (N + 1) + 1e-9 or c == image.argmax())


def by_definition(p, y, fold, kind, coverage, counted):
    """Equation 12 of Romano, Sesia and Candes (2020), one held-out image after the other, without noise."""
    sets = np.zeros((NEW, CLASSES), dtype=bool)
    for j in range(NEW):
        for c in range(CLASSES):
            better = total = 0
            for i in range(N):
                if counted(y[i], c):
                    own = nonconformity(p[fold[i], i][None], kind)[0, y[i]]
                    better += own < nonconformity(p[fold[i], N + j][None], kind)[0, c]
                    total += 1
            sets[j, c] = better < coverage * (total + 1) - 1e-9
    return sets


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_class", [False, True])
def test_cv_plus_by_its_definition(kind, ties, by_class):
    p, y, fold = draws(5, ties)
    average = np.random.default_rng(1).dirichlet(np.ones(CLASSES), NEW)  # whatever the classifier itself says
    calibration = Calibration.of(p[fold, np.arange(N)], y, kind, fold)
    sets = calibration.sets(average, 0.5, by_class, by_fold=p[:, N:])
    expected = by_definition(p, y, fold, kind, 0.5, lambda own, c: own == c or not by_class)
    assert 0 < expected.mean() < 1
    expected[np.arange(NEW), average.argmax(axis=1)] = True
    np.testing.assert_array_equal(sets, expected)


def test_coverage_where_classifiers_learn_from_the_images():
    """Nearest means of few images: CV+ covers what was asked for, on average over draws."""
    rates, n, new, d = [], 24, 200, 5
    for seed in range(60):
        rng = np.random.default_rng(seed)
        y = np.arange(n + new) % CLASSES
        x = rng.normal(size=(n + new, d)) + 1.2 * np.eye(CLASSES, d)[y]

        def said(kept, images, x=x, y=y):
            means = np.stack([x[kept][y[kept] == c].mean(axis=0) for c in range(CLASSES)])
            logits = -3 * ((x[images][:, None] - means) ** 2).sum(axis=2)  # too sure of itself
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            return p / p.sum(axis=1, keepdims=True)

        fold = np.arange(n) // CLASSES % FOLDS
        kept = [np.where(fold != k)[0] for k in range(FOLDS)]
        held = np.concatenate([said(kept[fold[i]], [i]) for i in range(n)])
        test = np.arange(n, n + new)
        calibration = Calibration.of(held, y[:n], folds=fold)
        sets = calibration.sets(said(np.arange(n), test), 0.8, by_fold=[said(k, test) for k in kept])
        rates.append(sets[np.arange(new), y[test]].mean())
    error = np.std(rates) / np.sqrt(len(rates))
    assert 0.8 - 3 * error < np.mean(rates) < 0.9
