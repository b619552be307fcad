"""The estimator: scikit-learn's protocol over the methods that keep a belief. Nothing else reaches behind it."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.utils.multiclass import check_classification_targets

from kalmanclip.adapter import export_model, read_adapter, restore, save_adapter
from kalmanclip.config import flatten, merge, to_dict
from kalmanclip.data import (
    DEFAULT_TEMPLATES,
    FewShotTask,
    LabelledImages,
    class_name_from_folder,
    from_lists,
    hold_out,
    read_folder,
    read_images,
    sample_shots,
    validate_templates,
)
from kalmanclip.data.embedding import Embedding
from kalmanclip.data.images import ImageSource, image_identity
from kalmanclip.data.inputs import open_images, open_labelled
from kalmanclip.data.labelled import check_distinct, name_key, require_two_classes
from kalmanclip.encoders import Backbone, DualEncoder, as_backbone, load_backbone, supports_low_rank
from kalmanclip.encoders.backbone import usual_device
from kalmanclip.encoders.features import image_features
from kalmanclip.errors import AdapterError, ConfigError, DataError, RepeatedImagesWarning
from kalmanclip.files import check_path
from kalmanclip.filtering import Ranks
from kalmanclip.hub import HubMixin
from kalmanclip.methods import (
    PRESETS,
    Classifier,
    JointConfig,
    KalmanConfig,
    MethodConfig,
    Progress,
    make_classifier,
    method_name,
    usual_preset,
    with_options,
)
from kalmanclip.methods import preset as find_preset
from kalmanclip.methods.classifier import TrainingImages
from kalmanclip.methods.fusion import fuse_methods
from kalmanclip.methods.suggest import ImagePool, Suggestion, check_acquisition, read_pool, suggest, usual_acquisition
from kalmanclip.prediction import (
    FALSE_ALARMS,
    SAMPLES,
    Calibration,
    ExpectedAccuracy,
    LabelCheck,
    Prediction,
    Threshold,
)
from kalmanclip.process import shares_processors
from kalmanclip.progress import automatic

if TYPE_CHECKING:
    import pandas as pd

Images: TypeAlias = str | os.PathLike[str] | LabelledImages | Iterable[ImageSource] | Any
"""A folder, labelled images, or a list or array of paths, PIL images or arrays; what other libraries hold images in,
and embeddings (N, d) in their place: see `kalmanclip.data.inputs`."""


class NotFittedError(ConfigError, SklearnNotFittedError):
    """Something was asked of an estimator that has no classes yet."""


class KalmanCLIP(HubMixin, ClassifierMixin, BaseEstimator):
    """A CLIP classifier fine-tuned from a few images per class by Kalman updates of a Gaussian belief.

    On a CPU, by default, softmax regression over frozen embeddings, with a Gaussian belief about class residuals, by
    iterated Kalman updates (preset 'residuals'). With a GPU a Kalman filter adapts the image tower as well ('joint').
    The presets 'head', 'paper' and 'paper-literal' filter low-rank parameters alone, as the paper does.

    It is a scikit-learn classifier: `clone`, `cross_val_score`, `GridSearchCV` and `Pipeline` work, with ``X`` a list
    of images. The arguments are checked, and the weights loaded, by `fit`, `partial_fit` or `set_classes`.

    >>> clf = KalmanCLIP("tiny").fit("photos/")            # photos/cat/*.jpg, photos/dog/*.jpg
    >>> clf.predict(["new.jpg"])
    >>> clf.partial_fit("more_photos/")                    # learns on, without the old images
    >>> clf.save("pets.adapter"); KalmanCLIP.load("pets.adapter")

    Args:
        model: a backbone's name ('tiny', 'ViT-B-16:openai', ...; see `kalmanclip.encoders.backbone`) or a loaded one,
            which copies of the estimator share; or an open_clip model, or a CLIPModel or SiglipModel of transformers
            (see `kalmanclip.encoders.as_backbone`).
        config: all options of a method; None: those of ``preset``.
        preset: a name in `kalmanclip.methods.presets`, such as 'paper'. None, or 'default': 'joint' where the model is
            on a GPU and `fit` is given images, else 'residuals'.
        prior_std: how far similarities may move a priori; None: that of the preset, which may choose it on the images.
            With 'joint' those that low-rank parameters move; ``options={"residuals.prior_std": ...}`` for the others.
        epochs: passes over the images, for low-rank parameters; None: that of the preset.
        seed: of everything that is random; None: that of the preset.
        options: further options of the method by name, nested or dotted: ``{"low_rank.rank": 2}``.
        templates: prompt templates with one ``{}`` for the class name; several are averaged.
        descriptions: further prompts of single classes, by name, for class residuals: how each looks.
        device: 'cpu', 'cuda', ...; None takes a GPU when there is one.
        precision: what the frozen towers compute in, 'float32' or 'bfloat16' (half the memory, and faster on a GPU).
            What is learned is float32 in any case. Of a loaded backbone, leave it out.
        ranks: processes that fit together, each with a `KalmanCLIP` of its own; None: this one alone. See
            `kalmanclip.filtering.accelerated.distributed.join_ranks`.

    Attributes:
        classes_: the labels (C,) as they were given, in the order of the columns of `predict_proba`.
        method_: the method that was fitted.
        notes_: whatever else was saved with the adapter.
    """

    classes_: np.ndarray
    method_: Classifier
    notes_: dict[str, Any]
    _loaded_as: Any  # what `_loaded` was made of

    def __init__(
        self,
        model: str | Backbone | torch.nn.Module = "tiny",
        config: MethodConfig | None = None,
        *,
        preset: str | None = None,
        prior_std: float | None = None,
        epochs: int | None = None,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        templates: Sequence[str] = DEFAULT_TEMPLATES,
        descriptions: Mapping[str, Sequence[str]] | None = None,
        device: str | torch.device | None = None,
        precision: str | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.preset = preset
        self.prior_std = prior_std
        self.epochs = epochs
        self.seed = seed
        self.options = options
        self.templates = templates
        self.descriptions = descriptions
        self.device = device
        self.precision = precision
        self.ranks = ranks

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False  # X is a list of images
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "method_")

    @property
    def class_names_(self) -> list[str]:
        """The names of the classes, as prompts have them; `classes_` are the labels that stand for them."""
        return list(self._fitted().class_names)

    @property
    def config_(self) -> Any:
        """All options of the method."""
        return self._fitted().config

    @property
    def options_(self) -> dict[str, Any]:
        """All options of the method, by dotted name."""
        return flatten(to_dict(self.config_))

    @property
    def backbone_(self) -> Backbone:
        """The frozen CLIP."""
        return self._fitted().backbone

    @property
    def tuned_encoder_(self) -> DualEncoder | None:
        """The towers with the learned low-rank parameters; None where none were learned."""
        method = self._fitted()
        return method.encoder if method.fitted and method.encoder.n else None

    @property
    def calibration_(self) -> Calibration | None:
        """Of the sets of classes; None where there is none."""
        return self._fitted().calibration

    @property
    def expected_accuracy_(self) -> ExpectedAccuracy | None:
        """How many training images were right when they were held out in turn; None where none were.

        Its ``interval()`` is where the accuracy on new images like these is expected.
        """
        return self._fitted().expected_accuracy

    @property
    def training_images_(self) -> TrainingImages | None:
        """Names and class numbers of the images learned from; None where the method does not keep them."""
        return self._fitted().training_images

    @property
    def diagnostics_(self) -> dict[str, Any]:
        """What the fit has found, by name; what the method does not have is left out."""
        return self._fitted().diagnostics

    def ood_threshold(self, false_alarms: float = FALSE_ALARMS) -> float | None:
        """Return the out-of-distribution score above which images are flagged; None where there is none."""
        return self._fitted().ood_threshold(false_alarms)

    def ood_calibration(self, false_alarms: float = FALSE_ALARMS) -> Threshold | None:
        """Return that threshold, how it was found, and the interval of its false alarms; None where there is none."""
        return self._fitted().ood_calibration(false_alarms)

    def load_backbone(self) -> Backbone:
        """Return the frozen CLIP that the arguments name; `fit` does this by itself."""
        if isinstance(self.model, Backbone):
            if self.precision not in (None, self.model.precision):
                raise ConfigError(f"The backbone is loaded already, in {self.model.precision}: leave precision out.")
            return self.model
        if isinstance(self.model, torch.nn.Module):
            if self.precision is not None:
                raise ConfigError("The model is loaded already: leave precision out.")
            if getattr(self, "_loaded_as", None) is not self.model:
                self._loaded, self._loaded_as = as_backbone(self.model), self.model
            return self._loaded
        wanted: Any = (self.model, str(self.device), self.precision)
        if getattr(self, "_loaded_as", None) != wanted:
            device = usual_device() if self.device is None else self.device
            self._loaded = load_backbone(self.model, device, "float32" if self.precision is None else self.precision)
            self._loaded_as = wanted
        return self._loaded

    def set_classes(self, class_names: Sequence[str]) -> KalmanCLIP:
        """Name the classes without learning. Before `fit` this is the zero-shot classifier."""
        method = getattr(self, "method_", None) or self._new_method()
        method.set_classes(class_names, validate_templates(self.templates))
        self._set_state(method, list(class_names), getattr(self, "notes_", {}))
        return self

    @shares_processors
    def fit(
        self,
        X: Images,
        y: Iterable[Any] | None = None,
        class_names: Sequence[str] | None = None,
        *,
        shots: int | None = None,
        calibrate: int | None = None,
        progress: Progress = automatic,
        after_epoch: Callable[[int], None] | None = None,
    ) -> KalmanCLIP:
        """Learn from labelled images, from scratch.

        Args:
            X: a folder of class folders, `LabelledImages`, or a list or array of paths, PIL images or arrays; a data
                set of torchvision, PyTorch or Hugging Face, or a frame of pandas; or embeddings (N, d).
            y: one label per image, names or numbers, where ``X`` is a list.
            class_names: what numeric labels mean: ``class_names[0]`` is the name of label 0.
            shots: use only so many images of each class, drawn with the seed.
            calibrate: learn from all but so many images of each class, and calibrate `predict_sets` and `is_ood` on
                those. None: `predict_sets` on all images, each held out once, where the method does that (class
                residuals).
            progress: called as ``progress(stage, done, total)``.
            after_epoch: called after each pass with the number of finished passes; saving there makes a fit resumable.
        """
        before = dict(vars(self))
        templates = validate_templates(self.templates)
        train, labels = _labelled(X, y, class_names)
        method, held = self._new_method(train.sources), None
        seed = method.config.seed
        if calibrate is not None:
            train, held = hold_out(train, calibrate, seed)
        train = sample_shots(train, shots, seed)
        self._set_state(method, labels, {"learned_from": train.counts()})
        try:
            method.fit(FewShotTask(train, templates=templates, seed=seed), progress, after_epoch)
        except BaseException:
            if not method.fitted:  # an unreadable image must not cost what was there before
                self.__dict__ = before
            raise
        if held is not None:
            method.calibrate(held, progress=progress)
        return self

    @shares_processors
    def partial_fit(
        self,
        X: Images,
        y: Iterable[Any] | None = None,
        class_names: Sequence[str] | None = None,
        *,
        epochs: int = 1,
        progress: Progress = automatic,
        after_epoch: Callable[[int], None] | None = None,
    ) -> KalmanCLIP:
        """Learn on from more images; those learned before are not needed.

        Low-rank parameters are filtered on: their posterior so far is the prior now; under class residuals they stay as
        they are. Class residuals (the default) are fitted again from the prior, over the new images and over
        pseudo-images drawn from the sums that stand for the old ones. Classes not seen before are added; one class
        alone is enough. Without `fit` before it, it starts from the prior.

        Args:
            X: as in `fit`.
            y: as in `fit`. Numbers count in the classes so far, unless their labels are numbers, too.
            class_names: the classes from now on, instead of those so far and the new ones.
            epochs: passes over the images, for low-rank parameters.
            progress: called as ``progress(stage, done, total)``.
            after_epoch: called after each pass with the number of finished passes.

        Warns:
            RepeatedImagesWarning: some of the images were learned before; they count twice now.
        """
        before = dict(vars(self))
        X, y = open_labelled(X, y)
        known = self.class_names_ if hasattr(self, "method_") else []
        if isinstance(X, LabelledImages) and X.class_names not in (known, class_names and list(class_names)):
            y, X = [X.class_names[label] for label in X.labels], X.sources  # its numbers count in its own names
        new, labels = _labelled(X, y, class_names, known, list(getattr(self, "classes_", [])))
        method = getattr(self, "method_", None) or self._new_method()
        _warn_of_repeats(method, new.sources)
        notes = getattr(self, "notes_", {})
        if "learned_from" in notes or not method.fitted:
            seen = dict(zip(known, notes.get("learned_from", []), strict=False))
            counts = zip(new.class_names, new.counts(), strict=True)
            notes = notes | {"learned_from": [seen.get(name, 0) + count for name, count in counts]}
        self._set_state(method, labels, notes)
        try:
            method.update(new, epochs, progress, after_epoch, validate_templates(self.templates))
        except BaseException:
            if method.class_names != new.class_names:  # nothing was learned yet
                self.__dict__ = before
            raise
        return self

    @shares_processors
    def calibrate(
        self, X: Images, y: Iterable[Any] | None = None, *, kind: str = "lac", progress: Progress = automatic
    ) -> KalmanCLIP:
        """Calibrate `predict_sets` and `is_ood` on images that were not learned from; learning on takes it away.

        Args:
            X: as in `fit`, of the known classes.
            y: as in `fit`.
            kind: of the nonconformity score, one of `kalmanclip.prediction.conformal.KINDS`.
            progress: called as ``progress(stage, done, total)``.
        """
        self._fitted().calibrate(self._known(X, y), kind, progress)
        return self

    @shares_processors
    def check_labels(
        self,
        X: Images,
        y: Iterable[Any] | None = None,
        class_names: Sequence[str] | None = None,
        *,
        progress: Progress = automatic,
    ) -> LabelCheck:
        """Return which labels are probably wrong; the estimator itself learns nothing and stays as it is.

        Every image is predicted by class residuals that were learned from others; see `kalmanclip.methods.suspects`.

        Args:
            X: as in `fit`.
            y: as in `fit`.
            class_names: as in `fit`.
            progress: called as ``progress(stage, done, total)``.
        """
        images, _ = _labelled(X, y, class_names)
        require_two_classes(images.class_names, "the data", "Add images of another class.")
        if len(images) < 2:
            raise DataError("A label is checked by other images: give at least two.")
        method = self._new_method()
        method.set_classes(images.class_names, validate_templates(self.templates))
        return method.check_labels(images, progress)

    @shares_processors
    def predict_full(
        self,
        X: Images,
        *,
        how: str = "linearised",
        samples: int = SAMPLES,
        coverage: float | None = None,
        false_alarms: float | None = FALSE_ALARMS,
        neighbors: int = 0,
        zero_shot: bool = False,
        progress: Progress = automatic,
    ) -> Prediction:
        """Return all there is to say about images, from one pass over them; the other methods are views of it.

        Args:
            X: images, without labels.
            how: the average over the belief: 'linearised', 'sampled' or 'mean' (no average).
            samples: draws.
            coverage: of the sets of classes; None: no sets.
            false_alarms: the share of images like those learned from that may be flagged as out-of-distribution; None:
                no image is, and there is no score, which saves its time.
            neighbors: how many of the most similar training images to name, where they are known.
            zero_shot: whether the logits of the untouched model are computed, too.
            progress: called as ``progress(stage, done, total)``.
        """
        return self._fitted().predict(
            _sources(X),
            how=how,
            samples=samples,
            coverage=coverage,
            false_alarms=false_alarms,
            neighbors=neighbors,
            zero_shot=zero_shot,
            progress=progress,
        )

    def predict(self, X: Images, *, progress: Progress = automatic) -> np.ndarray:
        """Return the most probable label of each image (N,), at the mean of the belief."""
        best = self.predict_proba(X, progress=progress).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_frame(self, X: Images, *, probabilities: bool = False, **options: Any) -> pd.DataFrame:
        """Return a frame of pandas with one row per image, whose name is the index.

        Args:
            X: as in `predict`.
            probabilities: whether to add a column for each class.
            options: of `predict_full`.
        """
        sources = _sources(X)
        names = [os.fspath(x) if isinstance(x, (str, os.PathLike)) else image_identity(x) for x in sources]
        return self.predict_full(sources, **options).to_frame(names, probabilities)

    @shares_processors
    def embed(self, X: Images, *, tuned: bool = True, progress: Progress = automatic) -> np.ndarray:
        """Return unit-length embeddings of images (N, d). Before `fit` they are the frozen CLIP's.

        Args:
            X: as in `predict`.
            tuned: whether learned low-rank parameters count. Without them these are the frozen CLIP's, which `fit` and
                `predict` take in the place of images. Class residuals (the default) change no embedding.
            progress: called as ``progress(stage, done, total)``.
        """
        tower = self.tuned_encoder_ if tuned and hasattr(self, "method_") else None
        backbone = self.backbone_ if hasattr(self, "method_") else self.load_backbone()
        return image_features(tower or DualEncoder(backbone), _sources(X), progress).cpu().numpy()

    def predict_proba(self, X: Images, *, progress: Progress = automatic) -> np.ndarray:
        """Return class probabilities (N, C) at the mean of the belief: those of an exported classifier.

        `predict_full` averages over the belief, which changes them little where class residuals were learned.
        """
        return self.predict_full(X, how="mean", false_alarms=None, progress=progress).at_mean.numpy()

    def predict_sets(self, X: Images, coverage: float = 0.9, *, progress: Progress = automatic) -> list[list[Any]]:
        """Return for each image a set of labels, the most probable first, that holds the true one.

        The promise is for images like those calibrated on; `kalmanclip.prediction.conformal` says when it is proven.

        Args:
            X: as in `predict`.
            coverage: the probability with which a set holds the true label.
            progress: called as ``progress(stage, done, total)``.
        """
        found = self.predict_full(X, how="mean", coverage=coverage, false_alarms=None, progress=progress)
        sets = found.sets or []
        label = dict(zip(self.class_names_, self.classes_.tolist(), strict=True))
        return [[label[name] for name in names] for names in sets]

    def ood_score(self, X: Images, *, progress: Progress = automatic) -> np.ndarray:
        """Return the out-of-distribution score (N,): the larger, the less an image is like those learned from."""
        score = self._predict_ood(X, FALSE_ALARMS, progress).ood_score
        return np.empty(0) if score is None else score.numpy()

    def is_ood(self, X: Images, false_alarms: float = FALSE_ALARMS, *, progress: Progress = automatic) -> np.ndarray:
        """Return whether images show nothing that was learned, (N,) of truth values.

        A share ``false_alarms`` of images of known classes may be flagged by mistake.
        """
        flags = self._predict_ood(X, false_alarms, progress).is_ood
        return np.empty(0, dtype=bool) if flags is None else flags.numpy()

    def were_learned(self, X: Images) -> np.ndarray:
        """Return which images were learned from, (N,) of truth values, by their content.

        A copy with another name is found, one that was saved anew or cropped is not. How well a classifier does on
        images it has learned from says nothing about new ones.
        """
        return np.array(self._fitted().were_learned(_sources(X)), dtype=bool)

    def score(
        self,
        X: Images,
        y: Iterable[Any] | None = None,
        sample_weight: Sequence[float] | None = None,
        *,
        progress: Progress = automatic,
    ) -> float:
        """Return the top-1 accuracy in 0..1 on a folder of class folders, or a list of images with labels."""
        test = self._known(X, y)
        if sample_weight is not None and len(sample_weight) != len(test):
            raise DataError(f"{len(test)} images but {len(sample_weight)} weights; give one weight per image")
        found = self.predict_proba(test.sources, progress=progress).argmax(axis=1)
        return float(np.average(found == np.array(test.labels), weights=sample_weight))

    @shares_processors
    def read_pool(self, X: Images, *, progress: Progress = automatic) -> ImagePool:
        """Return images to choose from with `suggest`, read once; it stays valid while the classifier learns."""
        return read_pool(self._fitted(), _sources(X), progress)

    def suggest(
        self,
        X: Images | ImagePool,
        n: int = 20,
        *,
        by: str | None = None,
        seed: int = 0,
        progress: Progress = automatic,
    ) -> Suggestion:
        """Return which n images of a pool to label next, the one to label first at the front.

        Images that were learned from, by their names, are not suggested again. Label the others, give them to
        `partial_fit`, and ask again.

        Args:
            X: the pool: images without labels, or what `read_pool` made of them.
            n: how many.
            by: how they are chosen, one of `kalmanclip.methods.suggest.ACQUISITIONS`; None: 'filter' with class
                residuals, else 'batchbald'.
            seed: of what is random.
            progress: called as ``progress(stage, done, total)``.
        """
        by = usual_acquisition(self._fitted()) if by is None else by
        check_acquisition(self._fitted(), by, n)
        pool = X if isinstance(X, ImagePool) else self.read_pool(X, progress=progress)
        return suggest(self._fitted(), pool, n, by, seed)

    def save(self, folder: str | os.PathLike[str], notes: Mapping[str, Any] | None = None) -> Path:
        """Write the whole state (belief, noise, classes, options) to an adapter folder.

        Args:
            folder: created if need be; an adapter already there is replaced.
            notes: whatever else should be remembered, as JSON values; None: the notes so far.
        """
        method, folder = self._fitted(), check_path(folder, AdapterError)
        self.notes_ = dict(self.notes_ if notes is None else notes)
        labels = self.classes_.tolist()
        extra = {} if labels == method.class_names else {"labels": labels}
        return save_adapter(folder, method, self.notes_ | extra)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        model: str | Backbone | torch.nn.Module | None = None,
        *,
        device: str | torch.device | None = None,
        precision: str | None = None,
        ranks: Ranks | None = None,
    ) -> KalmanCLIP:
        """Read an adapter folder.

        Args:
            folder: what `save` wrote.
            model: the backbone, where it is not to be had by the name in the adapter.
            device: as in the constructor.
            precision: as in the constructor; it need not be that of the fit.
            ranks: as in the constructor; there may be more of them than in the fit, or fewer.
        """
        stored = read_adapter(check_path(folder, AdapterError))  # first: a damaged one is no reason to load a model
        description = stored.description
        estimator = cls(
            description["backbone"]["name"] if model is None else model,
            templates=description["templates"],
            device=device,
            precision=precision,
            ranks=ranks,
        )
        method = restore(stored, estimator.load_backbone(), ranks)
        notes = dict(description.get("notes", {}))
        labels = notes.pop("labels", method.class_names)
        estimator.config = method.config
        estimator._set_state(method, labels, notes)
        return estimator

    @classmethod
    def fuse(cls, parts: Sequence[KalmanCLIP]) -> KalmanCLIP:
        """Return one classifier that knows what several, learned apart, know: no image is needed again.

        Args:
            parts: fitted on the same backbone with the same templates; their classes may differ. See
                `kalmanclip.methods.fusion` for what else must agree.
        """
        if not isinstance(parts, Sequence) or not all(isinstance(part, KalmanCLIP) for part in parts):
            raise ConfigError("Fusing takes a list of fitted KalmanCLIP classifiers: fuse([one, other]).")
        method = fuse_methods([part._fitted() for part in parts])
        labels: dict[str, Any] = {}
        for part in reversed(parts):  # as the first writes them
            labels |= dict(zip(map(name_key, part.class_names_), part.classes_.tolist(), strict=True))
        fused = cls(method.backbone, method.config, templates=method.templates)
        fused._set_state(method, [labels[name_key(name)] for name in method.class_names], {"fused": len(parts)})
        return fused

    def merge(self) -> torch.nn.Module:
        """Return a plain open_clip model with the mean of the low-rank parameters folded into its weights.

        Class residuals are not part of the towers; `class_weights` has them. The preset 'joint' classifies by this
        model and the untouched one; `export` writes both.
        """
        return self._fitted().merged()

    def class_weights(self) -> torch.Tensor:
        """Return the classifier (C, d): unit-length image features times its transpose, over tau, are the logits.

        The features are those of `merge`. The preset 'joint', which looks at an image with two models, has none; see
        `export`.
        """
        return self._fitted().class_weights()

    def export(self, folder: str | os.PathLike[str]) -> Path:
        """Write the merged model as a folder that open_clip loads by itself (``local-dir:``), and the classifier.

        The preset 'joint' classifies by two models: the untouched one lies in ``folder/untouched``, with its share of
        the classifier; the logits are the sum of both.
        """
        return export_model(check_path(folder, AdapterError), self._fitted())

    def export_onnx(self, folder: str | os.PathLike[str]) -> float:
        """Write image tower, classifier and out-of-distribution score as one ONNX graph.

        Returns:
            The largest difference between its outputs and PyTorch's, on made-up pictures.
        """
        from kalmanclip.onnx_export import export_onnx  # an optional part

        return export_onnx(Path(folder), self._fitted())

    def _fitted(self) -> Classifier:
        method: Classifier | None = getattr(self, "method_", None)
        if method is None:
            raise NotFittedError("The classifier has no classes yet: call fit first.")
        return method

    def _set_state(self, method: Classifier, labels: Sequence[Any], notes: dict[str, Any]) -> None:
        mixed = len({isinstance(label, str) for label in labels}) > 1  # an array would turn numbers into strings
        self.method_, self.notes_ = method, notes
        self.classes_ = np.array([str(label) for label in labels] if mixed else list(labels))

    def _new_method(self, images: Sequence[ImageSource] = ()) -> Classifier:
        """Return an unfitted method, on the backbone that is loaded already if the arguments still name it.

        ``images``: all that are to be learned, where they are known.
        """
        if self.config is not None and self.preset is not None:
            raise ConfigError("Give either config or preset: each of them is a full set of options.")
        given = {name: getattr(self, name) for name in ("prior_std", "epochs", "seed")}
        if not isinstance(self.options, Mapping | None) or not all(
            isinstance(name, str) for name in self.options or ()
        ):
            raise ConfigError(
                f"options must be a table of names and values, such as {{'crops': 2}}, not {self.options!r}."
            )
        options = dict(self.options or {}) | {name: value for name, value in given.items() if value is not None}
        backbone, chosen = self.load_backbone(), self.preset
        if self.config is None and chosen in (None, "default"):
            whole = len(images) > 0 and not isinstance(images[0], Embedding) and self.descriptions is None
            chosen = usual_preset(backbone.device, whole, self.ranks is not None and self.ranks.size > 1)
            if chosen == "joint" and not supports_low_rank(backbone, JointConfig().low_rank):
                chosen = "residuals"
        config = make_config(chosen, self.config, options)
        method = make_classifier(backbone, config, self.ranks)
        if self.descriptions is not None:
            method.describe(self.descriptions)
        return method

    def _known(self, X: Images, y: Iterable[Any] | None) -> LabelledImages:
        """Return images of the known classes; another class is an error."""
        names = self.class_names_
        X, y = open_labelled(X, y)
        if isinstance(X, LabelledImages) and X.class_names != names:
            y, X = [X.class_names[label] for label in X.labels], X.sources  # its numbers count in its own names
        if y is not None and not isinstance(self.classes_[0], str):
            given = list(y)
            number = {label: c for c, label in enumerate(self.classes_.tolist())}
            unknown = [label for label in given if not isinstance(label, str) and label not in number]
            if unknown:
                raise DataError(f"the label {unknown[0]!r} is none of the known classes: {', '.join(map(str, number))}")
            y = [number.get(label, label) for label in given]
        return _labelled(X, y, names)[0]

    def _predict_ood(self, X: Images, false_alarms: float, progress: Progress) -> Prediction:
        if self.ood_threshold() is None:
            raise ConfigError(
                "This classifier cannot tell unknown images: that takes at least 3 training images, and adapters of "
                "older versions know theirs only with class residuals. Fit again."
            )
        return self.predict_full(X, how="mean", false_alarms=false_alarms, progress=progress)


def _warn_of_repeats(method: Classifier, sources: Sequence[ImageSource]) -> None:
    """Warn of images that are learned a second time."""
    if repeated := sum(method.were_learned(sources)):
        warnings.warn(
            f"{repeated} of {len(sources)} images were learned before: they count twice now, and the classifier will "
            "be too sure of itself. Leave out those for which were_learned(...) is true.",
            RepeatedImagesWarning,
            stacklevel=3,
        )


def make_config(
    preset: str | None = None,
    config: MethodConfig | None = None,
    options: Mapping[str, Any] | None = None,
    as_typed: Callable[[str], str] = str,
) -> Any:
    """Return the options of a preset, or those of ``config``, with some of them changed: a `MethodConfig`.

    Args:
        preset: where to start from; wins over ``config``. None: 'default', unless there is a ``config``.
        config: where to start from.
        options: by name, nested or dotted: ``{"noise": {"beta": 0.9}, "low_rank.rank": 2}``. ``alpha`` may be
            that of the filter; options of a joint method need not name its part.
        as_typed: how the user wrote an option, for messages.
    """
    start: Any = config
    if config is None or preset is not None:
        start = find_preset("default" if preset is None else preset)
    given: dict[str, Any] = {}
    for name, value in (options or {}).items():
        place = _place(start, name)
        if not hasattr(start, place.split(".")[0]):
            having = [other for other, known in PRESETS.items() if hasattr(known, name.split(".")[0])]
            hint = f" It is one of the presets {', '.join(having)}." if having else ""
            known = ", ".join(field.name for field in dataclasses.fields(start))
            raise ConfigError(
                f"Unknown option {as_typed(name)!r} of the method {method_name(start)!r}.{hint} Known options: {known}."
            )
        nested = to_dict(value) if dataclasses.is_dataclass(value) else value
        for part in reversed(place.split(".")):
            nested = {part: nested}
        given = merge(given, nested)
    return with_options(start, given)


def _place(config: MethodConfig, name: str) -> str:
    """Return the dotted name of an option: alpha lies in the filter, and options of a joint method in its parts."""
    if name == "alpha" and isinstance(config, KalmanConfig):
        return "filter.alpha"
    first = name.split(".")[0]
    if not isinstance(config, JointConfig) or hasattr(config, first):
        return name
    return f"residuals.{name}" if hasattr(config.residuals, first) else name


def _labelled(
    X: Images,
    y: Iterable[Any] | None,
    class_names: Sequence[str] | None,
    known: Sequence[str] = (),
    known_labels: Sequence[Any] = (),
) -> tuple[LabelledImages, list[Any]]:
    """Return whatever a user may give as labelled images, and the label of each class as the user writes it.

    Classes that are not among those so far, ``known``, are added behind them.
    """
    X, y = open_labelled(X, y)
    if isinstance(X, LabelledImages) or y is None:
        if not isinstance(X, (str, os.PathLike, LabelledImages)):
            raise ConfigError(
                "A list of images needs labels (this estimator requires y to be passed, but the target y is None): "
                "give one label per image, or a folder of class folders."
            )
        images = X if isinstance(X, LabelledImages) else read_folder(X, class_names, known)
        given = images.class_names
    elif isinstance(X, (str, os.PathLike)):
        raise ConfigError("labels go with a list of images; a folder's labels are its class folders.")
    else:
        images, given = _with_labels(_sources(X), list(y), class_names, known, known_labels)
    old = dict(zip(known, known_labels, strict=True))
    return images, [old.get(name, label) for name, label in zip(images.class_names, given, strict=True)]


def _with_labels(
    sources: list[ImageSource],
    y: list[Any],
    class_names: Sequence[str] | None,
    known: Sequence[str],
    known_labels: Sequence[Any],
) -> tuple[LabelledImages, list[Any]]:
    """Return a list of images with its labels, and one label for each class."""
    strings = [isinstance(label, str) for label in y]
    if any(strings) and not all(strings):
        raise DataError("labels mix strings with other types; use one kind for all images")
    if y and not any(strings):
        if class_names is not None or any(isinstance(label, str) for label in known_labels):
            images = from_lists(sources, y, class_names, known)
            return images, list(range(len(images.class_names)))
        check_classification_targets(np.asarray(y))
        y = np.asarray(y).tolist()  # numpy's numbers as Python's
        if not known:
            warnings.warn(
                "The labels are numbers without names, so the prompts have the numbers themselves. Pass class_names, "
                "for example ['cat', 'dog'] for the labels 0 and 1.",
                stacklevel=4,
            )
    if class_names is None and not known and y:
        distinct = sorted(set(y))  # scikit-learn's order
        check_distinct(map(str, distinct), "label")
        class_names = [class_name_from_folder(str(label)) for label in distinct]
        require_two_classes(class_names, "the list of labels", "Pass class_names if the others do not occur here.")
    names = dict(zip(known_labels, known, strict=True))
    images = from_lists(sources, [names.get(label, str(label)) for label in y], class_names, known)
    given = dict(zip(reversed(images.labels), reversed(y), strict=True))  # as the first image has it
    return images, [given.get(c, name) for c, name in enumerate(images.class_names)]


def _sources(images: Images) -> list[ImageSource]:
    """Return whatever a user may give as a list of images without labels."""
    images = open_images(images)
    if isinstance(images, LabelledImages):
        return images.sources
    if isinstance(images, (str, os.PathLike)):
        return list(read_images(images))
    if isinstance(images, Image.Image):
        return [images]
    if isinstance(images, np.ndarray) and images.ndim == 1 and images.dtype.kind in "OUS":
        return list(images)
    if isinstance(images, (np.ndarray, torch.Tensor)) and (
        # a stack of grey images (N, H, W) has no side of 1, 3 or 4
        images.ndim < 3 or (images.ndim == 3 and {1, 3, 4} & {images.shape[0], images.shape[2]})
    ):
        raise DataError(f"An array of shape {tuple(images.shape)} looks like one image: give a list, [image].")
    try:
        return list(images)
    except TypeError as problem:
        raise DataError(f"Images are a path, a folder or a list of images, not {type(images).__name__}.") from problem
