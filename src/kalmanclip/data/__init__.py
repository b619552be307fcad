"""Where images lie, splits, class names, prompts, shots and the few-shot task; models are unknown here."""

from kalmanclip.data.catalog import DATA_SETS, DataSet, data_root, find_dataset, load_dataset
from kalmanclip.data.folder import read_folder, read_images
from kalmanclip.data.hub import read_hugging_face, read_hugging_face_captions
from kalmanclip.data.images import IMAGE_SUFFIXES, MAX_PIXELS, ImageSource, LazyImage, image_batches, load_image
from kalmanclip.data.labelled import LabelledImages, class_name_from_folder, from_lists
from kalmanclip.data.lists import read_caption_splits, read_captions, read_list
from kalmanclip.data.pairs import CaptionedImages, CaptionedSplits, PairIndex, index_pairs, task_from_pairs
from kalmanclip.data.prompts import DEFAULT_TEMPLATES, class_prompts, fill, read_descriptions, validate_templates
from kalmanclip.data.resolve import data_name, read_data
from kalmanclip.data.shots import ShotLists, hold_out, read_shot_lists, sample_shots
from kalmanclip.data.splits import Splits
from kalmanclip.data.task import Draw, FewShotTask, few_shot_task

__all__ = [
    "DATA_SETS",
    "DEFAULT_TEMPLATES",
    "IMAGE_SUFFIXES",
    "MAX_PIXELS",
    "CaptionedImages",
    "CaptionedSplits",
    "DataSet",
    "Draw",
    "FewShotTask",
    "ImageSource",
    "LabelledImages",
    "LazyImage",
    "PairIndex",
    "ShotLists",
    "Splits",
    "class_name_from_folder",
    "class_prompts",
    "data_name",
    "data_root",
    "few_shot_task",
    "fill",
    "find_dataset",
    "from_lists",
    "hold_out",
    "image_batches",
    "index_pairs",
    "load_dataset",
    "load_image",
    "read_caption_splits",
    "read_captions",
    "read_data",
    "read_descriptions",
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
