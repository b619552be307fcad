"""That the estimator is a scikit-learn classifier: its own checks, copies, search, pipelines, labels of any kind."""

import pickle

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

from kalmanclip import KalmanCLIP
from kalmanclip.data import read_folder
from kalmanclip.encoders import load_backbone
from kalmanclip.errors import ConfigError, DataError

QUICK = {"prior_std": 0.15, "options": {"classes.views": 0}}


@pytest.fixture(scope="module")
def labelled(shapes):
    """Paths and labels, in an order that mixes the classes."""
    images = read_folder(shapes)
    order = np.random.default_rng(0).permutation(len(images))
    return [images.sources[i] for i in order], [images.class_names[images.labels[i]] for i in order]


class RowsAsPictures(KalmanCLIP):
    """Rows of numbers, which scikit-learn's checks are made of, as pictures of grey stripes."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array, tags.input_tags.string = True, False, False
        return tags

    def fit(self, X, y=None):
        X, y = validate_data(self, X, y)
        return super().fit(stripes(X), y)

    def predict_full(self, X, **options):
        check_is_fitted(self)
        return super().predict_full(stripes(validate_data(self, X, reset=False)), **options)

    def score(self, X, y=None, sample_weight=None):
        return float(np.average(self.predict(X) == y, weights=sample_weight))


def stripes(X):
    grey = (255 / (1 + np.exp(-np.asarray(X, dtype=float)))).astype(np.uint8)
    return [np.repeat(np.repeat(row[None], 16, axis=0), -(-16 // len(row)), axis=1) for row in grey]
