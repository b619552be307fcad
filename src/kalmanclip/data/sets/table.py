"""The descriptions, one per data set. Counts are those of CoOp's split files and of the sets' own documentation."""

from kalmanclip.data.sets import imagenet, listed
from kalmanclip.data.sets.arrays import torchvision_arrays
from kalmanclip.data.sets.description import DataSet, Download
from kalmanclip.data.sets.folders import unsplit_folders
from kalmanclip.data.sets.views import OURS, PUBLISHED, SPLIT_FILE

IMAGENET_ENSEMBLE = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
"""The seven templates that Tip-Adapter averages on ImageNet (and the paper's zero-shot figure on it implies)."""

CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The 15 corruptions of ImageNet-C."""
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The 4 that ImageNet-C keeps for choosing on."""

_EUROSAT_NAMES = {
    "AnnualCrop": "Annual Crop Land",
    "HerbaceousVegetation": "Herbaceous Vegetation Land",
    "Highway": "Highway or Road",
    "Industrial": "Industrial Buildings",
    "Pasture": "Pasture Land",
    "PermanentCrop": "Permanent Crop Land",
    "Residential": "Residential Buildings",
    "SeaLake": "Sea or Lake",
}
_CALTECH_NAMES = {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"}
_FASHION_NAMES = (
    *("t-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)

_AUTOMATIC = "`kalmanclip data get {}` downloads it with torchvision."
_SPLIT_FILE_HINT = " To compare with published few-shot results, put CoOp's {} into its folder."


def _split(train: int, val: int, test: int) -> dict[str, int]:
    return {"train": train, "val": val, "test": test}


def _automatic(name: str, split_file: str | None = None) -> str:
    return _AUTOMATIC.format(name) + ("" if split_file is None else _SPLIT_FILE_HINT.format(split_file))


_SETS = (
    DataSet(
        name="imagenet",
        title="ImageNet (ILSVRC 2012)",
        classes=1000,
        folders=("imagenet", "ImageNet", "ILSVRC2012"),
        read=imagenet.read_imagenet,
        counts={PUBLISHED: {"train": 1_281_167, "test": 50_000}},
        licence="research, non-commercial; by registration",
        obtain="Register at image-net.org, download ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, and unpack "
        "them to imagenet/train/<WordNet id>/ and imagenet/val/<WordNet id>/.",
        names_from="open_clip",
    ),
    DataSet(
        name="oxford_pets",
        title="Oxford-IIIT Pet",
        classes=37,
        folders=("oxford_pets", "oxford-iiit-pet"),
        read=listed.read_pets,
        counts={SPLIT_FILE: _split(2944, 736, 3669), PUBLISHED: {"train+val": 3680, "test": 3669}},
        licence="CC BY-SA 4.0",
        obtain=_automatic("oxford_pets", "split_zhou_OxfordPets.json"),
        names_from="file names",
        templates=("a photo of a {}, a type of pet.",),
        split_file="split_zhou_OxfordPets.json",
        images=("images",),
        download=Download("OxfordIIITPet"),
    ),
    DataSet(
        name="food101",
        title="Food-101",
        classes=101,
        folders=("food-101", "food101"),
        read=listed.read_food,
        counts={SPLIT_FILE: _split(50_500, 20_200, 30_300), PUBLISHED: {"train+val": 75_750, "test": 25_250}},
        licence="fair use of the images' owners (foodspotting.com); research",
        obtain=_automatic("food101", "split_zhou_Food101.json"),
        names_from="meta/train.json",
        templates=("a photo of {}, a type of food.",),
        split_file="split_zhou_Food101.json",
        images=("images",),
        download=Download("Food101"),
    ),
    DataSet(
        name="sun397",
        title="SUN397",
        classes=397,
        folders=("sun397", "SUN397"),
        read=listed.read_sun,
        counts={
            SPLIT_FILE: _split(15_880, 3970, 19_850),
            PUBLISHED: {"train+val": 19_850, "test": 19_850},
            OURS: {"train+val+test": 108_754},
        },
        licence="research; the images belong to their owners",
        obtain=_automatic("sun397", "split_zhou_SUN397.json")
        + " Or put Training_01.txt and Testing_01.txt of Partitions.zip there.",
        names_from="ClassName.txt",
        split_file="split_zhou_SUN397.json",
        images=("SUN397", ""),
        download=Download("SUN397"),
    ),
    DataSet(
        name="dtd",
        title="Describable Textures",
        classes=47,
        folders=("dtd",),
        read=listed.read_dtd,
        counts={SPLIT_FILE: _split(2820, 1128, 1692), PUBLISHED: _split(1880, 1880, 1880)},
        licence="research",
        obtain=_automatic("dtd", "split_zhou_DescribableTextures.json"),
        names_from="file names",
        templates=("{} texture.",),
        split_file="split_zhou_DescribableTextures.json",
        images=("images", "dtd/images"),
        download=Download("DTD"),
        variants=tuple(str(partition) for partition in range(1, 11)),
        variant="1",
    ),
    DataSet(
        name="eurosat",
        title="EuroSAT (RGB)",
        classes=10,
        folders=("eurosat", "EuroSAT"),
        read=unsplit_folders(("2750", "EuroSAT_RGB"), _EUROSAT_NAMES),
        counts={SPLIT_FILE: _split(13_500, 5400, 8100), OURS: {"train+val+test": 27_000}},
        licence="MIT",
        obtain=_automatic("eurosat", "split_zhou_EuroSAT.json"),
        names_from="folder names, rewritten to plain English",
        templates=("a centered satellite photo of {}.",),
        split_file="split_zhou_EuroSAT.json",
        images=("2750", "EuroSAT_RGB"),
        rename=_EUROSAT_NAMES,
        download=Download("EuroSAT"),
    ),
    DataSet(
        name="mnist",
        title="MNIST",
        classes=10,
        folders=("MNIST", "mnist/MNIST"),
        read=torchvision_arrays("MNIST", [str(digit) for digit in range(10)]),
        counts={PUBLISHED: {"train": 60_000, "test": 10_000}},
        licence="CC BY-SA 3.0",
        obtain=_automatic("mnist"),
        names_from="the digits",
        download=Download("MNIST"),
    ),
    DataSet(
        name="fashion_mnist",
        title="Fashion-MNIST",
        classes=10,
        folders=("FashionMNIST", "fashion_mnist/FashionMNIST"),
        read=torchvision_arrays("FashionMNIST", _FASHION_NAMES),
        counts={PUBLISHED: {"train": 60_000, "test": 10_000}},
        licence="MIT",
        obtain=_automatic("fashion_mnist"),
        names_from="its authors' list",
        download=Download("FashionMNIST"),
    ),
    DataSet(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        folders=("cifar-10-batches-py", "cifar10/cifar-10-batches-py"),
        read=torchvision_arrays("CIFAR10"),
        counts={PUBLISHED: {"train": 50_000, "test": 10_000}},
        licence="not stated; research",
        obtain=_automatic("cifar10"),
        names_from="batches.meta",
        download=Download("CIFAR10"),
    ),
    DataSet(
        name="cifar100",
        title="CIFAR-100",
        classes=100,
        folders=("cifar-100-python", "cifar100/cifar-100-python"),
        read=torchvision_arrays("CIFAR100"),
        counts={PUBLISHED: {"train": 50_000, "test": 10_000}},
        licence="not stated; research",
        obtain=_automatic("cifar100"),
        names_from="meta",
        download=Download("CIFAR100"),
    ),
    DataSet(
        name="places365",
        title="Places365 (standard)",
        classes=365,
        folders=("places365",),
        read=listed.read_places,
        counts={PUBLISHED: {"train": 1_803_460, "test": 36_500}},
        licence="research, non-commercial; the images belong to their owners",
        obtain=_automatic("places365") + " The small version is about 25 GB. Its labelled val part is our test part.",
        names_from="categories_places365.txt",
        download=Download(
            "Places365",
            calls=({"split": "val", "small": True}, {"split": "train-standard", "small": True}),
            inside="places365",
        ),
    ),
    DataSet(
        name="caltech101",
        title="Caltech-101",
        classes=100,
        folders=("caltech-101", "caltech101"),
        read=unsplit_folders(
            ("101_ObjectCategories",), _CALTECH_NAMES, ignored=frozenset({"BACKGROUND_Google", "Faces_easy"})
        ),
        counts={SPLIT_FILE: _split(4128, 1649, 2465), OURS: {"train+val+test": 8242}},
        licence="CC BY 4.0",
        obtain=_automatic("caltech101", "split_zhou_Caltech101.json")
        + " As in CoOp, background and Faces_easy are left out: 100 classes.",
        names_from="folder names",
        split_file="split_zhou_Caltech101.json",
        images=("101_ObjectCategories",),
        rename=_CALTECH_NAMES,
        download=Download("Caltech101"),
    ),
    DataSet(
        name="flowers102",
        title="Oxford Flowers 102",
        classes=102,
        folders=("oxford_flowers", "flowers-102", "flowers102"),
        read=listed.read_flowers,
        counts={SPLIT_FILE: _split(4093, 1633, 2463), PUBLISHED: _split(1020, 1020, 6149)},
        licence="research",
        obtain=_automatic("flowers102", "split_zhou_OxfordFlowers.json"),
        names_from="cat_to_name.json, else torchvision",
        templates=("a photo of a {}, a type of flower.",),
        split_file="split_zhou_OxfordFlowers.json",
        images=("jpg",),
        download=Download("Flowers102"),
    ),
    DataSet(
        name="stanford_cars",
        title="Stanford Cars",
        classes=196,
        folders=("stanford_cars",),
        read=listed.read_cars,
        counts={SPLIT_FILE: _split(6509, 1635, 8041), PUBLISHED: {"train+val": 8144, "test": 8041}},
        licence="research, non-commercial",
        obtain="Its authors' page is gone. From a copy, put cars_train/, cars_test/, devkit/ and "
        "cars_test_annos_withlabels.mat into stanford_cars/." + _SPLIT_FILE_HINT.format("split_zhou_StanfordCars.json"),
        names_from="devkit/cars_meta.mat, the year first",
        split_file="split_zhou_StanfordCars.json",
    ),
    DataSet(
        name="fgvc_aircraft",
        title="FGVC-Aircraft",
        classes=100,
        folders=("fgvc_aircraft", "fgvc-aircraft-2013b"),
        read=listed.read_aircraft,
        counts={PUBLISHED: _split(3334, 3333, 3333)},
        licence="research, non-commercial",
        obtain=_automatic("fgvc_aircraft"),
        names_from="variants.txt",
        templates=("a photo of a {}, a type of aircraft.",),
        download=Download("FGVCAircraft"),
    ),
    DataSet(
        name="ucf101",
        title="UCF101 (middle frames)",
        classes=101,
        folders=("ucf101",),
        read=listed.read_ucf,
        counts={SPLIT_FILE: _split(7639, 1898, 3783), PUBLISHED: {"train+val": 9537, "test": 3783}},
        licence="not stated; research",
        obtain="Get UCF-101-midframes.zip as CoOp's instructions say (the middle frame of every video), and unpack it "
        "to ucf101/UCF-101-midframes/; put ucfTrainTestlist/ of the UCF101 site or split_zhou_UCF101.json next to it.",
        names_from="classInd.txt",
        templates=("a photo of a person doing {}.",),
        split_file="split_zhou_UCF101.json",
        images=("UCF-101-midframes",),
    ),
    DataSet(
        name="imagenet_v2",
        title="ImageNetV2",
        classes=1000,
        folders=("imagenetv2", "imagenet_v2", "imagenet-v2"),
        read=imagenet.read_v2,
        counts={PUBLISHED: {"test": 10_000}},
        licence="MIT (the list); the images belong to their owners",
        obtain="Download imagenetv2-matched-frequency.tar.gz from huggingface.co/datasets/vaishaal/ImageNetV2 and "
        "unpack it in imagenetv2/.",
        names_from="open_clip",
        variants=("matched-frequency", "threshold0.7", "top-images"),
        variant="matched-frequency",
    ),
    DataSet(
        name="imagenet_sketch",
        title="ImageNet-Sketch",
        classes=1000,
        folders=("imagenet-sketch", "imagenet_sketch"),
        read=imagenet.read_sketch,
        counts={PUBLISHED: {"test": 50_889}},
        licence="MIT (the list); the images belong to their owners",
        obtain="Download ImageNet-Sketch as github.com/HaohanWang/ImageNet-Sketch says and unpack it to "
        "imagenet-sketch/images/<WordNet id>/.",
        names_from="open_clip",
    ),
    DataSet(
        name="imagenet_a",
        title="ImageNet-A",
        classes=200,
        folders=("imagenet-adversarial", "imagenet-a", "imagenet_a"),
        read=imagenet.read_subset,
        counts={PUBLISHED: {"test": 7500}},
        licence="MIT (the list); the images belong to their owners",
        obtain="Download imagenet-a.tar as github.com/hendrycks/natural-adv-examples says; unpack it under the root.",
        names_from="open_clip",
    ),
    DataSet(
        name="imagenet_r",
        title="ImageNet-R",
        classes=200,
        folders=("imagenet-rendition", "imagenet-r", "imagenet_r"),
        read=imagenet.read_subset,
        counts={PUBLISHED: {"test": 30_000}},
        licence="MIT (the list); the images belong to their owners",
        obtain="Download imagenet-r.tar as github.com/hendrycks/imagenet-r says; unpack it under the root.",
        names_from="open_clip",
    ),
    DataSet(
        name="imagenet_c",
        title="ImageNet-C",
        classes=1000,
        folders=("imagenet-c", "imagenet_c", "ImageNet-C"),
        read=imagenet.read_corrupted,
        counts={PUBLISHED: {"test": 50_000}},
        licence="CC BY 4.0",
        obtain="Download noise.tar, blur.tar, weather.tar, digital.tar (and extra.tar) from zenodo.org/records/2235448 "
        "and unpack them to imagenet-c/<corruption>/<severity>/. In Python, `corruptions.corrupted` makes the like.",
        names_from="open_clip",
        variants=tuple(f"{name}/{level}" for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS) for level in range(1, 6)),
    ),
)

DATA_SETS = {dataset.name: dataset for dataset in _SETS}
"""All data sets, by name."""
