"""Read data sets of Hugging Face: from the Hub, or saved on this computer. Needs the extra ``[huggingface]``.

| spec | meaning |
| --- | --- |
| ``hf:OWNER/NAME`` | a data set of the Hub; downloaded once, then read from the cache, also offline |
| ``hf:OWNER/NAME:CONFIG`` | one of its configurations |
| ``hf:FOLDER`` | a folder that ``save_to_disk`` wrote, one of parquet files, or images with a `metadata.csv` |
| ``hf:FILE.parquet`` | one parquet file |
| ``...?label=fine_label&test=validation`` | choices after a question mark; as arguments, they win |

The choices are the columns ``image``, ``label`` and ``caption``, the data set's splits that serve as ``train``, ``val``
and ``test``, the ``revision`` (branch, tag or commit on the Hub), and one prompt ``template``.

Nothing in a data set is ever executed: the `datasets` package refuses loading scripts since version 4, the oldest that
is accepted here, and never gets `trust_remote_code`. No image is decoded before it is needed.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from PIL import Image

from kalmanclip.data.decoding import decode_bytes, decode_file
from kalmanclip.data.images import ImageSource, LazyImage
from kalmanclip.data.labelled import LabelledImages, class_name_from_folder, from_lists
from kalmanclip.data.pairs import CaptionedImages, CaptionedSplits
from kalmanclip.data.prompts import DEFAULT_TEMPLATES, validate_templates
from kalmanclip.data.splits import SPLITS, Splits
from kalmanclip.errors import ConfigError, DataError, ImageError, KalmanClipError
from kalmanclip.files import sha256_of

Dataset: TypeAlias = Any
"""A `datasets.Dataset`: one split, a table on disk. The package has no types, and may not be installed."""

HUB = "hf:"
"""How the spec of such a data set begins."""
_OLDEST = 4
"""The first major version of `datasets` that cannot execute a data set's own code."""

_CHOICES = ("image", "label", "caption", *SPLITS, "revision", "template")
_SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("validation", "val", "valid", "dev"),
    "test": ("test", "testing"),
}
_COLUMN_NAMES = {
    "image": ("image", "img", "picture", "photo"),
    "label": ("label", "labels", "class", "fine_label"),
    "caption": ("caption", "text", "captions", "sentence", "description"),
}
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def read_hugging_face(
    spec: str,
    *,
    class_names: Sequence[str] | None = None,
    templates: str | Sequence[str] | None = None,
    **choices: str | None,
) -> Splits:
    """Return the splits of a data set with classes; no image is decoded.

    Class names come from the label column's `ClassLabel`, with underscores as spaces, or are the different strings in
    it. Rows without a label (None, or the Hub's -1) are left out, and so is a split without any labels.

    Args:
        spec: see the table at the top of this module; the ``hf:`` may be left out.
        class_names: other names for the same labels, one per label; needed where labels are numbers without names.
        templates: prompt templates.
        **choices: see the top of this module.

    Raises:
        ConfigError: `datasets` is not installed or too old, or a choice does not exist.
        DataError: the data set cannot be had or lacks images or labels.
    """
    name, chosen, tables = _open(spec, choices)
    features = next(iter(tables.values())).features
    column = _column(features, "label", chosen, name)
    labels = {
        split: [None if label in (None, -1, "") else label for label in table[column]]
        for split, table in tables.items()
    }
    own = getattr(features[column], "names", None)
    if class_names is not None and own is not None and len(class_names) != len(own):
        raise ConfigError(f"{len(class_names)} class names were given, but {name} has {len(own)} classes")
    if class_names is None and own is not None:
        class_names = [class_name_from_folder(label) for label in own]
    if class_names is None:  # of all splits together
        present = [label for split in labels.values() for label in split if label is not None]
        class_names = from_lists(present, present).class_names
    found: dict[str, LabelledImages] = {}
    for split, table in tables.items():
        rows = [i for i, label in enumerate(labels[split]) if label is not None]
        if rows:
            images = _images(table, chosen, name, split, rows)
            found[split] = from_lists(images, [labels[split][i] for i in rows], class_names)
    if not found:
        raise DataError(f"no row of {name} has a value in the column {column!r}; choose another with ?label=")
    prompts = validate_templates(templates or chosen.get("template") or DEFAULT_TEMPLATES)
    return Splits(found.get("train"), found.get("val"), found.get("test"), templates=prompts)


def read_hugging_face_captions(spec: str, **choices: str | None) -> CaptionedSplits:
    """Return the splits of a data set of pairs; no image is decoded.

    The caption column holds a string, or a list of strings: each of them then makes a pair with the image.

    Args:
        spec: see the table at the top of this module; the ``hf:`` may be left out.
        **choices: see there, too.
    """
    name, chosen, tables = _open(spec, choices)
    column = _column(next(iter(tables.values())).features, "caption", chosen, name)
    found: dict[str, CaptionedImages] = {}
    for split, table in tables.items():
        captions = [[text] if isinstance(text, str) else text or [] for text in table[column]]
        rows = [i for i, texts in enumerate(captions) if any(map(str.strip, texts))]
        if rows:
            images = _images(table, chosen, name, split, rows)
            pairs = [(x, t) for x, i in zip(images, rows, strict=True) for t in captions[i] if t.strip()]
            found[split] = CaptionedImages([x for x, _ in pairs], [t for _, t in pairs])
    if not found:
        raise DataError(f"no row of {name} has a value in the column {column!r}; choose another with ?caption=")
    return CaptionedSplits(**found)


def read_table(table: Dataset) -> tuple[list[ImageSource], Callable[[], list[Any]] | None, list[str] | None]:
    """Return what a `datasets.Dataset` in memory holds: images, a function that reads the labels, the classes' names.

    Columns are found as in `read_hugging_face`. Without a column of labels there are none; names are there where its
    type has them.
    """
    name, split = table.info.dataset_name or "table", str(table.split or "rows")
    table = table.with_format(None)
    try:
        sources = _images(table, {}, name, split, range(len(table)))
        if not _candidates(table.features, "label"):
            return sources, None, None
        column = _column(table.features, "label", {}, name)
    except KalmanClipError as error:
        raise DataError(
            f"{str(error).partition(';')[0]}: rename one, X.rename_column(OLD, 'image' or 'label')"
        ) from error
    names = getattr(table.features[column], "names", None)
    known = None if names is None else [class_name_from_folder(label) for label in names]
    return sources, lambda: list(table[column]), known


def has_captions_only(spec: str) -> bool:
    """Return whether a data set has captions and no classes, as `kalmanclip.data.lists.has_captions_only` does."""
    _, chosen, tables = _open(spec, {})
    if "label" in chosen or "caption" in chosen:
        return "label" not in chosen
    features = next(iter(tables.values())).features
    return not _candidates(features, "label") and bool(_candidates(features, "caption"))


class _StoredImage(LazyImage):
    """One image of a data set, read from its table (of one column, not decoding) when it is needed.

    Its name and identity are data set, split and row: the same on every computer, if the data set stays as it is.
    """

    def __init__(self, table: Dataset, row: int, name: str) -> None:
        self._table, self._row, self._name = table, row, name

    @property
    def identity(self) -> str:
        return self._name

    def load(self, max_pixels: int) -> Image.Image:
        stored = self._stored()
        if isinstance(stored, Path):
            return decode_file(stored, None, max_pixels)
        return decode_bytes(stored, self._name, max_pixels)

    def content(self) -> str | None:
        stored = self._stored()
        return sha256_of(stored, ImageError) if isinstance(stored, Path) else hashlib.sha256(stored).hexdigest()

    def _stored(self) -> bytes | Path:
        """Return the image's file, or where it lies."""
        (stored,) = self._table[self._row].values()
        if isinstance(stored, dict):
            stored = stored.get("bytes") or (stored.get("path") and Path(stored["path"]))
        if not stored:
            raise ImageError(f"{self._name} is empty; leave the row out of the data set")
        found: bytes | Path = stored
        return found


def _open(spec: str, choices: Mapping[str, str | None]) -> tuple[str, dict[str, str], dict[str, Dataset]]:
    """Return the name without prefix and question mark, what was chosen, and the tables of train, val and test."""
    name, _, query = spec.removeprefix(HUB).partition("?")
    try:
        chosen = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise ConfigError(f"{spec!r} ends in choices that cannot be read; write ?label=NAME&test=NAME") from error
    chosen |= {key: value for key, value in choices.items() if value is not None}
    for key in chosen:
        if key not in _CHOICES:
            raise ConfigError(f"a data set of Hugging Face has no choice {key!r}; known: {', '.join(_CHOICES)}")
    if not name:
        raise ConfigError("hf: needs the name of a data set, hf:OWNER/NAME, or a folder")
    return name, chosen, _choose_splits(_load(name, chosen.get("revision")), chosen, name)


def _package() -> Any:
    """Return the `datasets` package, if it is one that executes nothing."""
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise ConfigError(
            'data sets of Hugging Face need the package `datasets`: pip install "kalmanclip[huggingface]"'
        ) from error
    if int(datasets.__version__.split(".")[0]) < _OLDEST:
        raise ConfigError(
            f"the package `datasets` {datasets.__version__} could execute code of a data set; "
            f'install {_OLDEST}.0 or newer: pip install -U "kalmanclip[huggingface]"'
        )
    return datasets


def _load(name: str, revision: str | None) -> Mapping[str, Dataset]:
    """Return all splits, by name, from this computer if the name is a path, else from the Hub or its cache."""
    package = _package()
    path = Path(name).expanduser()
    if path.exists():
        try:
            return _local(package, path)
        except Exception as error:  # damaged files provoke nearly every type there is
            raise DataError(f"{path} cannot be read as a data set: {_first_line(error)}. Save it again") from error
    repository, _, config = name.partition(":")
    if not _HUB_NAME.fullmatch(repository):
        raise DataError(f"there is no file or folder {path}; check the path, or write hf:OWNER/NAME")
    try:
        return package.load_dataset(repository, config or None, revision=revision)
    except Exception as error:  # the network, the Hub, the cache and the files: as many types
        raise DataError(_explain(repository, error)) from error


def _local(package: Any, path: Path) -> Mapping[str, Dataset]:
    if path.is_file():
        if path.suffix != ".parquet":
            raise DataError("the file does not end in .parquet; give a parquet file or a folder")
        return package.load_dataset("parquet", data_files={"train": str(path)})
    if (path / "dataset_dict.json").is_file():
        return package.load_from_disk(str(path))
    if (path / "state.json").is_file():
        return {"train": package.load_from_disk(str(path))}
    # Finds splits by the names of files and folders; images with metadata.csv, or parquet. Scripts are refused.
    return package.load_dataset(str(path))


def _explain(repository: str, error: Exception) -> str:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    detail = _first_line(error)
    if "Config name is missing" in str(error) or ("BuilderConfig" in str(error) and "not found" in str(error)):
        known = re.search(r"\[.*?\]", str(error), re.DOTALL)
        return f"choose a configuration of {repository}: hf:{repository}:CONFIG; known: {known[0] if known else detail}"
    if "scripts are no longer supported" in str(error):
        return f"{repository} would have to execute a script of its own to be read, which is never done; {detail}"
    offline = (
        "On a computer with a network, `datasets.load_dataset(...).save_to_disk(FOLDER)` makes a copy; "
        "bring the folder here and write hf:FOLDER"
    )
    if kinds & {"ConnectionError", "OfflineModeIsEnabled", "LocalEntryNotFoundError", "TransportError"}:
        return f"{repository} is not in the cache, and the Hugging Face Hub cannot be reached ({detail}). {offline}"
    if "DatasetNotFoundError" in kinds:
        return f"the Hub has no data set {repository}, or it needs a login (`hf auth login`): {detail}"
    return f"{repository} cannot be read from the Hugging Face Hub: {detail}. {offline}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _choose_splits(found: Mapping[str, Dataset], chosen: Mapping[str, str], name: str) -> dict[str, Dataset]:
    """Return the data set's splits that serve as train, val and test. A single one of another name is train."""
    wanted = {split: chosen[split] for split in SPLITS if split in chosen}
    for own in wanted.values():
        if own not in found:
            raise ConfigError(f"{name} has no split {own!r}; it has {', '.join(map(str, found))}")
    used: dict[str, Dataset] = {}
    for split in SPLITS:
        # ?test=validation takes it away from val
        usual = [own for own in _SPLIT_NAMES[split] if own in found and own not in wanted.values()]
        if split in wanted or usual:
            used[split] = found[wanted.get(split) or usual[0]]
    if not used and len(found) == 1:
        used["train"] = next(iter(found.values()))
    if not used:
        raise ConfigError(f"{name} has the splits {', '.join(map(str, found))}; say which is which: ?train=NAME")
    return used


def _candidates(features: Mapping[str, Any], what: str) -> list[str]:
    """Return the columns that may hold images, labels or captions: by their types, or else by types and names."""

    def dtype(feature: Any) -> str:
        return str(getattr(feature, "dtype", ""))

    typed = {"image": "Image", "label": "ClassLabel"}.get(what)
    found = [column for column, feature in features.items() if type(feature).__name__ == typed]
    if found:
        return found
    if what == "image":  # bare bytes (or bytes and path) in tables that others wrote
        return [
            column
            for column, feature in features.items()
            if (isinstance(feature, dict) and {"bytes", "path"} >= {*feature}) or dtype(feature) == "binary"
        ]
    named = {c: feature for c, feature in features.items() if c.lower() in _COLUMN_NAMES[what]}
    if what == "label":
        return [c for c, feature in named.items() if dtype(feature).startswith(("string", "int", "uint"))]
    inner = {c: getattr(feature, "feature", feature) for c, feature in named.items()}  # of a list
    texts = {c: feature[0] if isinstance(feature, list) else feature for c, feature in inner.items()}
    return [c for c, feature in texts.items() if dtype(feature) in ("string", "large_string")]


def _column(features: Mapping[str, Any], what: str, chosen: Mapping[str, str], name: str) -> str:
    """Return the column that was asked for, the only candidate, or the first that has a usual name."""
    columns = ", ".join(features)
    if what in chosen:
        if chosen[what] not in features:
            raise ConfigError(f"{name} has no column {chosen[what]!r}; it has {columns}")
        return chosen[what]
    candidates = _candidates(features, what)
    if not candidates:
        raise DataError(f"{name} has no {what} column that could be recognised among {columns}; say ?{what}=COLUMN")
    usual = {c.lower(): c for c in candidates}
    preferred = candidates if len(candidates) == 1 else [usual[u] for u in _COLUMN_NAMES[what] if u in usual]
    if not preferred:
        raise ConfigError(f"{name} has several {what} columns among {columns}; say which: ?{what}=COLUMN")
    return preferred[0]


def _images(table: Dataset, chosen: Mapping[str, str], name: str, split: str, rows: Sequence[int]) -> list[ImageSource]:
    """Return the images in some rows of one split, each of them read when it is needed."""
    column = _column(table.features, "image", chosen, name)
    table = table.select_columns([column])
    if type(table.features[column]).__name__ == "Image":
        table = table.cast_column(column, _package().Image(decode=False))
    place = Path(name).expanduser()
    short = place.resolve().name if place.exists() else name  # wherever a folder lies, its images are called the same
    return [_StoredImage(table, row, f"{short}/{split}/{row}") for row in rows]
