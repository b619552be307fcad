"""The data room: where images lie, class names, prompts and the few-shot task. It knows no models."""

from kalmanclip.data.folder import read_folder, read_images
from kalmanclip.data.hugging_face import read_hugging_face, read_hugging_face_captions
from kalmanclip.data.images import IMAGE_SUFFIXES, MAX_PIXELS, ImageSource, LazyImage, image_batches, load_image
from kalmanclip.data.labelled import LabelledImages, from_lists
from kalmanclip.data.lists import read_caption_views, read_captions, read_list
from kalmanclip.data.names import class_name_from_folder
from kalmanclip.data.pairs import CaptionedImages, CaptionedViews, PairIndex, index_pairs, task_from_pairs
from kalmanclip.data.prompts import DEFAULT_TEMPLATES, class_prompts, fill, validate_templates
from kalmanclip.data.registry import DATA_SETS, DataSet, Views, data_root, find_dataset, load_dataset
from kalmanclip.data.shot_lists import ShotLists, read_shot_lists
from kalmanclip.data.task import Draw, FewShotTask, few_shot_task, sample_shots

__all__ = [
    "DATA_SETS",
    "DEFAULT_TEMPLATES",
    "IMAGE_SUFFIXES",
    "MAX_PIXELS",
    "CaptionedImages",
    "CaptionedViews",
    "DataSet",
    "Draw",
    "FewShotTask",
    "ImageSource",
    "LabelledImages",
    "LazyImage",
    "PairIndex",
    "ShotLists",
    "Views",
    "class_name_from_folder",
    "class_prompts",
    "data_root",
    "few_shot_task",
    "fill",
    "find_dataset",
    "from_lists",
    "image_batches",
    "index_pairs",
    "load_dataset",
    "load_image",
    "read_caption_views",
    "read_captions",
    "read_folder",
    "read_hugging_face",
    "read_hugging_face_captions",
    "read_images",
    "read_list",
    "read_shot_lists",
    "sample_shots",
    "task_from_pairs",
    "validate_templates",
]
