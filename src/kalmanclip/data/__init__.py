"""The data room: where images lie, class names, prompts and the few-shot task. It knows no models."""

from kalmanclip.data.folder import read_folder, read_images
from kalmanclip.data.images import IMAGE_SUFFIXES, MAX_PIXELS, ImageSource, image_batches, load_image
from kalmanclip.data.labelled import LabelledImages, from_lists
from kalmanclip.data.names import class_name_from_folder
from kalmanclip.data.prompts import DEFAULT_TEMPLATES, class_prompts, fill, validate_templates
from kalmanclip.data.task import FewShotTask, sample_shots

__all__ = [
    "DEFAULT_TEMPLATES",
    "IMAGE_SUFFIXES",
    "MAX_PIXELS",
    "FewShotTask",
    "ImageSource",
    "LabelledImages",
    "class_name_from_folder",
    "class_prompts",
    "fill",
    "from_lists",
    "image_batches",
    "load_image",
    "read_folder",
    "read_images",
    "sample_shots",
    "validate_templates",
]
