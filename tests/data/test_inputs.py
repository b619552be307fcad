"""What other libraries hold images in: the same images and labels come out as from a folder."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Normalize, PILToTensor, ToTensor

from kalmanclip.data import LabelledImages, load_image, read_folder
from kalmanclip.data.embedding import Embedding, stack_embeddings
from kalmanclip.data.images import image_identity
from kalmanclip.data.inputs import open_images, open_labelled
from kalmanclip.errors import DataError, ImageError


@pytest.fixture(scope="module")
def known(shapes):
    return read_folder(shapes)


class Pictures(Dataset):
    """A data set of tensors; counts how often an item was asked for."""

    def __init__(self, images, item, transform=ToTensor(), **attributes):  # noqa: B008
        self.images, self.item, self.transform, self.asked = images, item, transform, []
        vars(self).update(attributes)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        self.asked.append(i)
        picture = self.transform(load_image(self.images.sources[i]))
        return self.item(picture, self.images.labels[i])


def pair(picture, label):
    return picture, label


def same_pixels(sources, images, positions=None):
    wanted = [images.sources[i] for i in (range(len(images)) if positions is None else positions)]
    pairs = zip(sources, wanted, strict=True)
    return all(np.array_equal(np.asarray(load_image(a)), np.asarray(load_image(b))) for a, b in pairs)


def test_an_image_folder_gives_its_files_and_classes(shapes, known):
    given = ImageFolder(shapes, transform=Normalize([0.5], [0.5]))  # the model has transforms of its own
    images, y = open_labelled(given)
    assert y is None
    assert (images.class_names, images.labels) == (known.class_names, known.labels)
    assert list(images.sources) == [str(path) for path in known.sources]
    part, _ = open_labelled(Subset(Subset(given, range(3, 15)), [0, 11, 4]))
    assert list(part.sources) == [str(known.sources[i]) for i in (3, 14, 7)]
    assert (part.labels, part.class_names) == ([0, 2, 1], known.class_names)
    assert open_images(DataLoader(given)) == images.sources


def test_a_loader_of_ones_own_is_asked(shapes, known):
    inverted = ImageFolder(shapes, loader=lambda path: 255 - np.asarray(load_image(path)))
    images, _ = open_labelled(inverted)
    first = np.asarray(load_image(images.sources[0]))
    np.testing.assert_array_equal(first, 255 - np.asarray(load_image(known.sources[0])))


def test_items_are_asked_when_they_are_needed(known):
    given = Pictures(known, pair, targets=torch.tensor(known.labels), classes=["a_circle", "square", "triangle"])
    images, _ = open_labelled(given)
    assert given.asked == []
    assert images.class_names == ["a circle", "square", "triangle"]
    assert images.labels == known.labels
    assert same_pixels(images.sources[4:6], known, [4, 5])
    assert given.asked == [4, 5]
    assert len({image_identity(source) for source in images.sources}) == len(known)


@pytest.mark.parametrize(
    "item",
    [pair, lambda x, c: {"image": x, "label": torch.tensor(c)}, lambda x, c: [x, np.int64(c), "more"]],
    ids=["pair", "table", "list"],
)
def test_labels_are_read_from_the_items_where_nothing_else_has_them(known, item):
    given = Pictures(known, item, PILToTensor())
    sources, y = open_labelled(given)
    assert y == known.labels
    assert all(type(label) is int for label in y)
    assert same_pixels(sources, known)
    twice, both = open_labelled(ConcatDataset([given, given]))
    assert both == 2 * known.labels
    assert same_pixels(twice[15:], known)


def test_a_stream_is_read_once(known):
    class Stream(IterableDataset):
        def __iter__(self):
            return zip(known.sources, known.labels, strict=True)

    assert open_labelled(Stream()) == (known.sources, known.labels)


def test_what_a_data_set_lacks_is_said(known):
    bare = Pictures(known, lambda x, c: x)
    assert same_pixels(open_images(bare)[:2], known, [0, 1])
    with pytest.raises(DataError, match="without labels"):
        open_labelled(bare)
    assert open_labelled(bare, known.labels)[1] == known.labels
    with pytest.raises(DataError, match="parts pixels"):
        open_labelled(Pictures(known, lambda x, c: {"pixels": x}))
    normalised = Pictures(known, pair, Compose([ToTensor(), Normalize([0.5] * 3, [0.1] * 3)]))
    with pytest.raises(ImageError, match=r"item 3 of the Pictures.*normalise"):
        load_image(open_images(normalised)[3])


def test_frames_name_their_columns(known):
    names = [known.class_names[label] for label in known.labels]
    frame = pd.DataFrame({"Path": known.sources, "Class": names, "note": 1.5}, index=range(100, 115))
    assert open_labelled(frame) == (known.sources, names)
    assert open_labelled(frame.rename(columns={"Class": "label"})[::2])[1] == names[::2]
    numbers = open_labelled(frame.assign(Class=pd.Categorical(known.labels)))[1]
    assert numbers == known.labels
    assert {type(label) for label in numbers} == {int}
    assert open_images(frame[["Path"]]) == known.sources
    assert open_images(frame[["Path"]].rename(columns={"Path": "anything"})) == known.sources
    assert open_labelled(frame[["Path"]], names) == (known.sources, names)
    with pytest.raises(DataError, match="has no labels"):
        open_labelled(frame[["Path"]])
    with pytest.raises(DataError, match=r"'Class' has no value in the row 101"):
        open_labelled(frame.assign(Class=["x", None, *names[2:]]))
    with pytest.raises(DataError, match="columns 'Class', 'note'"):
        open_labelled(frame[["Class", "note"]].assign(other="a"))


def test_rows_of_floats_are_embeddings(known):
    f = np.random.default_rng(0).standard_normal((4, 6))
    frame = pd.DataFrame(f.astype(np.float32)).assign(label=list("abab"))
    as_frame, y = open_labelled(frame)
    assert y == list("abab")
    vectors = pd.DataFrame({"image": list(f), "label": list("abab")})
    for given in (f, torch.tensor(f), list(f), list(torch.tensor(f)), as_frame, vectors):
        sources = open_images(given)
        assert all(isinstance(source, Embedding) for source in sources)
        np.testing.assert_allclose(stack_embeddings(sources), f, rtol=1e-6)
    assert stack_embeddings(known.sources) is None
    with pytest.raises(ImageError, match="only its embedding"):
        load_image(open_images(f)[0])
    with pytest.raises(DataError, match="some are images"):
        stack_embeddings([Embedding(f[0]), known.sources[0]])
    with pytest.raises(DataError, match=r"lengths are \[5, 6\]"):
        stack_embeddings([Embedding(f[0]), Embedding(f[0, :5])])
    for broken in (np.zeros(6), np.full(6, np.nan), np.full(6, np.inf)):
        with pytest.raises(DataError, match="zero, infinite"):
            Embedding(broken)


@pytest.mark.parametrize(
    "given", [["a.png"], np.zeros((2, 8, 8), np.uint8), np.zeros((8, 8), np.uint8), torch.zeros(2, 3, 8, 8), "folder"]
)
def test_everything_else_stays_as_it_is(given):
    assert open_images(given) is given
    assert open_labelled(given, ["a"]) == (given, ["a"])


def test_labelled_images_stay_as_they_are(known):
    assert isinstance(known, LabelledImages)
    assert open_labelled(known) == (known, None)


def test_tables_of_hugging_face(known):
    datasets = pytest.importorskip("datasets", reason="the package `datasets` (extra [huggingface]) is not installed")
    pictures = [load_image(source) for source in known.sources]
    features = {"img": datasets.Image(), "fine_label": datasets.ClassLabel(names=["a_circle", "square", "triangle"])}
    columns = {"img": pictures, "fine_label": known.labels}
    table = datasets.Dataset.from_dict(columns, datasets.Features(features)).with_format("torch")
    images, y = open_labelled(table.select([14, 0, 7]))
    assert y is None
    assert (images.labels, images.class_names) == ([2, 0, 1], ["a circle", "square", "triangle"])
    assert same_pixels(images.sources, known, [14, 0, 7])
    with pytest.raises(DataError, match="one of them"):
        open_images(datasets.DatasetDict({"train": table}))
    assert same_pixels(open_images(table.remove_columns("fine_label"))[:1], known, [0])
    with pytest.raises(DataError, match="rename one"):
        open_images(table.remove_columns("img"))
