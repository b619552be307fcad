"""The data room: where images lie, class names, prompts and the few-shot task. It knows no models."""

from kalmanclip.data.folder import read_folder, read_images
from kalmanclip.data.images import IMAGE_SUFFIXES, MAX_PIXELS, ImageSource, LazyImage, image_batches, load_image
from kalmanclip.data.labelled import LabelledImages, from_lists
from kalmanclip.data.lists import CaptionedImages, read_captions, read_list
from kalmanclip.data.names import class_name_from_folder
from kalmanclip.data.prompts import DEFAULT_TEMPLATES, class_prompts, fill, validate_templates
from kalmanclip.data.registry import DATA_SETS, DataSet, Views, data_root, find_dataset, load_dataset
from kalmanclip.data.task import Draw, FewShotTask, few_shot_task, sample_shots

__all__ = [
    "DATA_SETS",
    "DEFAULT_TEMPLATES",
    "IMAGE_SUFFIXES",
    "MAX_PIXELS",
    "CaptionedImages",
    "DataSet",
    "Draw",
    "FewShotTask",
    "ImageSource",
    "LabelledImages",
    "LazyImage",
    "Views",
    "class_name_from_folder",
    "class_prompts",
    "data_root",
    "few_shot_task",
    "fill",
    "find_dataset",
    "from_lists",
    "image_batches",
    "load_dataset",
    "load_image",
    "read_captions",
    "read_folder",
    "read_images",
    "read_list",
    "sample_shots",
    "validate_templates",
]
