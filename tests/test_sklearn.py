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
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import check_is_fitted, validate_data

from kalmanclip import KalmanCLIP
from kalmanclip.data import read_folder
from kalmanclip.errors import ConfigError, DataError

QUICK = {"prior_std": 0.15, "options": {"crops": 0}}


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


TABLES = "about the values, columns or memory of a table of numbers, which a list of images does not have"
NOT_APPLICABLE = {
    "check_complex_data": TABLES,
    "check_dataframe_column_names_consistency": TABLES,
    "check_dtype_object": TABLES,
    "check_estimator_sparse_array": TABLES,
    "check_estimator_sparse_matrix": TABLES,
    "check_estimator_sparse_tag": TABLES,
    "check_estimators_dtypes": TABLES,
    "check_estimators_empty_data_messages": TABLES,
    "check_estimators_nan_inf": TABLES,
    "check_f_contiguous_array_estimator": TABLES,
    "check_fit1d": TABLES,
    "check_fit2d_1feature": TABLES,
    "check_fit2d_1sample": TABLES,
    "check_fit2d_predict1d": TABLES,
    "check_n_features_in": TABLES,
    "check_n_features_in_after_fitting": TABLES,
    "check_positive_only_tag_during_fit": TABLES,
    "check_readonly_memmap_input": TABLES,
    "check_classifiers_train": "asks for a good classifier of tables; stripes of grey are no photographs",
}
"""Checks that are left out, and why."""


def checks(model="tiny"):
    """Return scikit-learn's checks by name, with the estimator each is about."""
    found = {}
    for estimator, check in estimator_checks_generator(RowsAsPictures(model, **QUICK)):
        name = getattr(check, "func", check).__name__
        if name not in NOT_APPLICABLE:
            found.setdefault(name, []).append((estimator, check))
    return found


@pytest.mark.filterwarnings("ignore:The labels are numbers without names")
@pytest.mark.parametrize("name", checks())
def test_checks_of_scikit_learn(tiny, name):
    for estimator, check in checks(tiny)[name]:
        check(estimator)


def test_the_constructor_stores_its_arguments_and_nothing_else():
    options = {"low_rank.rank": 2}
    clf = KalmanCLIP("nonsense", preset="nonsense", prior_std=-1, options=options, templates=["no place"])
    assert vars(clf) == clf.get_params()
    assert clf.get_params()["options"] is options
    assert is_classifier(clf)
    assert repr(clf) == (
        "KalmanCLIP(model='nonsense', options={'low_rank.rank': 2}, preset='nonsense',\n"
        "           prior_std=-1, templates=['no place'])"
    )
    with pytest.raises(ConfigError):
        clf.fit(["a.png", "b.png"], ["a", "b"])


def test_copies_share_a_loaded_backbone_and_forget_the_fit(tiny, labelled):
    fitted = KalmanCLIP(tiny, **QUICK).fit(*labelled)
    copy = clone(fitted)
    assert copy.model is tiny
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        check_is_fitted(copy)
    with pytest.raises(NotFittedError):
        copy.predict(labelled[0])
    assert "Backbone(name='tiny')" in repr(fitted)
    again = pickle.loads(pickle.dumps(KalmanCLIP("tiny", **QUICK)))
    assert again.get_params() == KalmanCLIP("tiny", **QUICK).get_params()


def test_set_params_counts_at_the_next_fit(tiny, labelled):
    clf = KalmanCLIP(tiny, **QUICK).fit(*labelled)
    assert clf.set_params(prior_std=0.05) is clf
    assert clf.config_.prior_std == 0.15
    assert clf.fit(*labelled).config_.prior_std == 0.05


def test_cross_validation_search_and_pipeline(tiny, labelled):
    images, labels = labelled
    clf = KalmanCLIP(tiny, **QUICK)
    by_itself = cross_val_score(clf, images, labels, cv=3)
    np.testing.assert_array_equal(cross_val_score(clf, images, labels, cv=3, scoring="accuracy"), by_itself)
    assert np.isfinite(cross_val_score(clf, np.array(images), labels, cv=3, scoring="neg_log_loss")).all()
    pipeline = Pipeline([("nothing", FunctionTransformer()), ("clip", KalmanCLIP(tiny))])
    grid = [{"clip__preset": ["default"], "clip__prior_std": [0.1, 0.3]}, {"clip__preset": ["head"]}]
    search = GridSearchCV(pipeline, grid, cv=2).fit(images, labels)
    assert len(search.cv_results_["params"]) == 3
    assert set(search.predict(images)) <= set(labels)
    assert list(search.classes_) == ["circle", "square", "triangle"]


def test_images_of_any_kind_in_lists_and_arrays(tiny, labelled):
    paths, labels = labelled
    pictures = [Image.open(path).convert("RGB") for path in paths]
    boxed = np.empty(len(pictures), dtype=object)
    boxed[:] = pictures
    expected = KalmanCLIP(tiny, **QUICK).fit(paths, labels).predict_proba(paths)
    for X in (np.array(paths), np.array([str(path) for path in paths]), boxed, np.stack(pictures)):
        np.testing.assert_allclose(KalmanCLIP(tiny, **QUICK).fit(X, labels).predict_proba(X), expected, atol=1e-5)


NAMES = ["circle", "square", "triangle"]


def spelled(labels, labels_as):
    return [labels_as[NAMES.index(label)] for label in labels]


@pytest.mark.parametrize(
    "labels_as", [["b_circle", "A_square", "c_triangle"], [0, 1, 2], [30, -1, 7], [True, False, True]], ids=str
)
@pytest.mark.filterwarnings("ignore:The labels are numbers without names")
def test_labels_come_back_as_they_were_given(tiny, labelled, tmp_path, labels_as):
    images, labels = labelled[0], spelled(labelled[1], labels_as)
    clf = KalmanCLIP(tiny, **QUICK).fit(images, np.array(labels))
    np.testing.assert_array_equal(clf.classes_, np.unique(labels))
    assert set(clf.predict(images).tolist()) <= set(labels)
    assert clf.score(images, labels) == np.mean(clf.predict(images) == labels) > 0.5
    again = KalmanCLIP.load(clf.save(tmp_path / "a"), tiny)
    np.testing.assert_array_equal(again.classes_, clf.classes_)
    assert again.classes_.dtype.kind == clf.classes_.dtype.kind
    again.partial_fit(images[:2], labels[:2])
    np.testing.assert_array_equal(again.classes_, clf.classes_)
    assert KalmanCLIP.fuse([clf, clf]).classes_.tolist() == clf.classes_.tolist()
    assert set(clf.calibrate(images, labels).predict_sets(images[:1], 0.8)[0]) <= set(labels)


def test_numbers_have_names_or_a_warning(tiny, labelled):
    images, labels = labelled[0], [NAMES.index(label) for label in labelled[1]]
    clf = KalmanCLIP(tiny, **QUICK).fit(images, labels, NAMES)
    assert (clf.classes_.tolist(), clf.class_names_) == ([0, 1, 2], NAMES)
    with pytest.warns(UserWarning, match="numbers without names"):
        bare = KalmanCLIP(tiny, **QUICK).fit(images, [10 * label for label in labels])
    assert (bare.classes_.tolist(), bare.class_names_) == ([0, 10, 20], ["0", "10", "20"])
    bare.partial_fit(images[:1], [40])
    assert bare.classes_.tolist() == [0, 10, 20, 40]
    with pytest.raises(DataError, match="none of the known classes"):
        bare.score(images[:1], [50])
