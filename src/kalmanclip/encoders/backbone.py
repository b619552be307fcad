"""Backbones: from a name such as ``tiny`` or ``ViT-B-16:openai`` to a frozen open_clip model.

| spelling | meaning |
| --- | --- |
| ``tiny`` | the small model that ships inside the package |
| ``RN50:openai`` | architecture and weights tag, as open_clip lists them; downloaded once, then cached |
| ``ViT-B-32:w.safetensors`` | architecture and a local file (``.safetensors``, or ``.pt`` holding tensors only) |
| ``hf-hub:org/repo``, ``local-dir:folder`` | open_clip's own schemes |
| ``openai/clip-vit-base-patch32``, a folder | a CLIP or SigLIP of transformers, by its name on the Hub, or from disk |
| ``ViT-B-32:random`` | random weights with a fixed seed, for tests and timings |

In ``bfloat16`` the frozen towers take half the memory and, on a GPU, a fraction of the time. What is learned, and what
the filter computes with, stays in float32: low-rank parameters, Jacobians, unit-length embeddings, logits.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import logging
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import open_clip
import torch
from open_clip.pretrained import get_pretrained_cfg
from PIL import Image
from torch import Tensor

from kalmanclip.encoders.precomputed import TextTable
from kalmanclip.encoders.preprocess import Preprocess
from kalmanclip.encoders.wrap import IN_MEMORY, load_transformers, needs_transformers
from kalmanclip.errors import ConfigError, ModelError
from kalmanclip.files import check_path
from kalmanclip.network import hub_or_cache

if TYPE_CHECKING:
    from kalmanclip.encoders.cache import FeatureCache

TINY = "tiny"
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""What the frozen towers can compute in, by name. Not float16: activations of large CLIPs leave its range."""

_TINY_FOLDER = Path(__file__).parent.parent / "models" / "tiny"
open_clip.add_model_config(_TINY_FOLDER / "tiny.json")  # from here on 'tiny' is an ordinary open_clip architecture


@dataclass(frozen=True)
class Backbone:
    """A frozen CLIP with what belongs to it.

    Attributes:
        name: as the user spelled it.
        model: the open_clip model, in evaluation mode, without gradients.
        preprocess: PIL image to tensor (3, h, w), without augmentation.
        tokenizer: list of texts to tokens (N, L).
        cache: where products of the frozen image tower are kept on disk; None: nowhere. A backbone with a cache is
            ``dataclasses.replace(backbone, cache=FeatureCache(folder))``.
        loaded_hash: the fingerprint of the weights as they were loaded, where they were rounded afterwards; None: they
            are as they were loaded.
    """

    name: str
    model: Any = field(repr=False)
    preprocess: Callable[[Image.Image], Tensor] = field(repr=False)
    tokenizer: Callable[[list[str]], Tensor] = field(repr=False)
    cache: FeatureCache | None = field(default=None, repr=False, compare=False)
    loaded_hash: str | None = field(default=None, repr=False, compare=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Backbone:
        return self  # frozen: copies of an estimator share it

    @cached_property
    def logit_scale(self) -> float:
        """1 / tau: what cosine similarities are multiplied with before the softmax."""
        return float(self.model.logit_scale.exp())

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.model.logit_scale.device

    @property
    def dtype(self) -> torch.dtype:
        """In what precision the towers compute."""
        return next(self.model.visual.parameters()).dtype

    @property
    def precision(self) -> str:
        """`dtype` by its name, as `load_backbone` takes it."""
        return str(self.dtype).removeprefix("torch.")

    @cached_property
    def width(self) -> int:
        """d, the size of the shared embedding space."""
        if isinstance(self.model, TextTable):  # which has no other texts than its own
            return self.model.features.shape[1]
        with torch.no_grad():
            return self.model.encode_text(self.tokenizer(["x"]).to(self.device)).shape[-1]

    @cached_property
    def image_size(self) -> int:
        """The short side of the network's input, in pixels."""
        visual = self.model.visual
        size = visual.image_size if hasattr(visual, "image_size") else visual.config.image_size
        return min(size) if isinstance(size, (tuple, list)) else int(size)

    @cached_property
    def hash(self) -> str:
        """A fingerprint of all weights: an adapter fits the backbone with this fingerprint and no other.

        It is that of the weights as they were loaded: an adapter fits whatever precision they were rounded to since.
        """
        return self.loaded_hash or _fingerprint(self.model)


def licence_files(name: str) -> list[Path]:
    """Return the licences that lie beside the weights of a backbone: of tiny, and in folders."""
    folder = _TINY_FOLDER if name == TINY else Path(name.removeprefix("local-dir:"))
    return sorted(folder.glob("LICENSE*")) if folder.is_dir() else []


def copy_licences(name: str, folder: Path) -> None:
    """Copy the licences of a backbone's weights into a folder that will hold what was made of them."""
    for licence in licence_files(name):
        shutil.copyfile(licence, folder / licence.name)


def licence_of(name: str) -> str:
    """Return in a few words what the weights of a backbone may be used for."""
    if name == TINY:
        return "research use only, LicenseRef-tiny-research"
    found = ", ".join(file.name for file in licence_files(name))
    return f"{found} beside them" if found else "a licence of their own, see where they come from"


def load_backbone(
    name: str | os.PathLike[str] = TINY, device: str | torch.device = "cpu", precision: str = "float32"
) -> Backbone:
    """Build a frozen CLIP from its name (see the table at the top of this module).

    Args:
        name: which one.
        device: where it is to lie.
        precision: what its towers compute in: 'float32' or 'bfloat16'.

    Raises:
        ConfigError: this machine has no such device, or there is no such precision.
        ModelError: unknown architecture or tag, weights that are not at hand, a file that does not fit or would have to
            execute code to load. The message names the file, where to put it, and ``tiny`` as the alternative.
    """
    if not isinstance(name, str | os.PathLike):
        raise ModelError(
            f"A backbone is a name such as 'tiny' or 'ViT-B-16:openai', or a model, not {type(name).__name__}."
        )
    name = os.fspath(name)
    if name:  # a name may be a path; an empty one has a message of its own
        check_path(name, ModelError)
    check_device(device)
    check_precision(precision)
    if _is_transformers(name):
        with nullcontext() if Path(name).is_dir() else hub_or_cache():
            return _in_precision(load_transformers(name, device), precision)
    architecture, weights = _parse(name)
    with hub_or_cache() if _needs_hub(architecture, weights) else nullcontext(True) as online:
        backbone = _load(name, architecture, weights, device, online)
    return _in_precision(backbone, precision)


def _needs_hub(architecture: str, weights: str | None) -> bool:
    """Return whether weights or tokenizer come from the Hub, or from its cache."""
    if architecture.startswith(("hf-hub:", "local-dir:")):
        return architecture.startswith("hf-hub:")
    text = (open_clip.get_model_config(architecture) or {}).get("text_cfg", {})
    entry = get_pretrained_cfg(architecture, weights) if weights else {}
    return bool(entry.get("hf_hub") or text.get("hf_tokenizer_name"))


def _load(name: str, architecture: str, weights: str | None, device: str | torch.device, online: bool) -> Backbone:
    """Build a model of open_clip with its weights."""
    options: dict[str, Any] = {"pretrained_hf": False}  # a text tower's weights come with the others
    if weights and Path(weights).suffix in (".pt", ".bin", ".pth"):
        _check_holds_tensors_only(Path(weights))
    if weights and get_pretrained_cfg(architecture, weights).get("quick_gelu"):
        options["force_quick_gelu"] = True  # 'RN50:openai' means the weights as they were trained
    read_config = architecture.startswith(("hf-hub:", "local-dir:"))  # what tokenizer it takes is read with the model
    tokenizer = None if read_config else _tokenizer(name, architecture)  # first: the smaller download
    try:
        with torch.random.fork_rng(devices=[]), _quiet():
            torch.manual_seed(0)  # for ':random'
            model, _, preprocess = open_clip.create_model_and_transforms(
                architecture, pretrained=weights, device=device, **options
            )
        tokenizer = open_clip.get_tokenizer(architecture) if tokenizer is None else tokenizer
    except Exception as problem:
        raise ModelError(_explain(name, architecture, weights, problem, online)) from problem
    _require_weights(name, architecture, weights)
    model.eval().requires_grad_(False)
    return Backbone(name, model, Preprocess(preprocess), tokenizer)


@contextmanager
def _quiet() -> Iterator[None]:
    """Have nothing logged by the root logger, where open_clip says what the error says again."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        root.setLevel(level)


def _in_precision(backbone: Backbone, precision: str) -> Backbone:
    """Round the weights of a backbone that was just loaded, in place."""
    if precision == "float32":
        return backbone
    loaded_hash = _fingerprint(backbone.model)  # now: what was rounded cannot be hashed any more
    _round_weights(backbone.model, PRECISIONS[precision])
    return replace(backbone, loaded_hash=loaded_hash)


def _is_transformers(name: str) -> bool:
    """Return whether a name is one of transformers: ``org/model``, or a folder with its configuration."""
    if name and (Path(name) / "config.json").is_file():
        return True
    organisation, slash, model = name.partition("/")
    plain = bool(slash and organisation and model) and not {":", "/"} & set(model) and ":" not in organisation
    return plain and name.replace("/", "-") not in open_clip.list_models()


def _fingerprint(model: Any) -> str:
    """Return a hash of the names, shapes and float32 values of all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().float().cpu().contiguous().view(-1).numpy())
    return digest.hexdigest()


def _round_weights(model: Any, dtype: torch.dtype) -> None:
    """Round the towers' weights, in place, but not the few numbers that cost nothing and count much.

    1 / tau multiplies every logit, and the statistics of batch normalisation divide whole channels.
    """
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            continue
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if tensor.is_floating_point() and not (path in ("", "hf") and name.startswith("logit_")):
                tensor.data = tensor.data.to(dtype)


def usual_device() -> str:
    """Return where a model lies if nobody says where: on a GPU when there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str | torch.device) -> None:
    """Raise `ConfigError` for a device that this machine does not have, before anything is loaded onto it."""
    try:
        torch.zeros(1, device=device).item()  # 'meta' has tensors without numbers
    except Exception as problem:  # what a back end raises that is not here is its own business
        raise ConfigError(
            f"The device {str(device)!r} cannot be used here: {_reason(problem)}. Use 'cpu', or leave the choice "
            "to kalmanclip."
        ) from problem


def check_precision(precision: str) -> None:
    """Raise `ConfigError` for a precision that the towers cannot compute in."""
    if precision not in PRECISIONS:
        raise ConfigError(f"The precision must be one of {', '.join(PRECISIONS)}, not {precision!r}.")


def architecture_of(name: str) -> str:
    """Return the open_clip architecture (or scheme) that a backbone's name stands for."""
    return _parse(name)[0]


def _parse(name: str) -> tuple[str, str | None]:
    """Split a backbone's name into open_clip's architecture and its weights (tag, file or None)."""
    if name == TINY:
        return TINY, str(_TINY_FOLDER / "model.safetensors")
    if name.startswith(("hf-hub:", "local-dir:")):
        return name, None
    if name.startswith(IN_MEMORY):
        raise ModelError(f"The backbone {name!r} was a model in memory, with no name to load it by: give it as model.")
    architecture, colon, weights = name.partition(":")
    known = open_clip.list_models()
    if architecture.replace("/", "-") not in known:
        close = _closest(architecture, known)
        raise ModelError(
            f"Unknown backbone {name!r}: open_clip has no architecture {architecture!r}{close}. "
            "Write NAME:WEIGHTS, for example 'ViT-B-16:openai', or 'tiny' for the embedded model."
        )
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if not colon or not weights:
        example = f"'{architecture}:{(tags or ['weights.safetensors'])[0]}'"
        raise ModelError(
            f"The backbone {name!r} does not say which weights to load. Write for example {example}. "
            f"Known tags: {', '.join(tags) or 'none'}; a path to a .safetensors file works too."
        )
    if weights == "random":
        return architecture, None
    if not get_pretrained_cfg(architecture, weights) and not Path(weights).is_file():
        if Path(weights).suffix in (".safetensors", ".pt", ".bin", ".pth") or "/" in weights:
            raise ModelError(
                f"The weights file {weights!r} of backbone {name!r} does not exist. Check the path, or use 'tiny'."
            )
        raise ModelError(
            f"Unknown weights {weights!r} for {architecture}{_closest(weights, tags)}. "
            f"Known tags: {', '.join(tags) or 'none'}; a path to a .safetensors file works too."
        )
    return architecture, weights


def _closest(word: str, choices: list[str]) -> str:
    near = difflib.get_close_matches(word, choices, n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(repr(n) for n in near)}?)" if near else ""


def _check_holds_tensors_only(path: Path) -> None:
    """Loading must not execute code: TorchScript and pickled objects are refused before open_clip sees them."""
    if not path.is_file():
        return
    try:
        torch.load(path, map_location="meta", weights_only=True, mmap=False)
    except Exception as problem:
        raise ModelError(
            f"{path} cannot be loaded without executing code, or is damaged ({_reason(problem)}). "
            "Only files that hold tensors are accepted. Convert it on a machine where you trust it, for example with "
            "`safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')`."
        ) from problem


def _require_weights(name: str, architecture: str, weights: str | None) -> None:
    """open_clip only warns when a hub model or a folder came without weights; a random classifier helps nobody."""
    if weights is not None or not architecture.startswith(("hf-hub:", "local-dir:")):
        return
    if architecture.startswith("local-dir:"):
        folder = Path(architecture.removeprefix("local-dir:"))
        found = any(p.suffix in (".safetensors", ".bin", ".pth") for p in folder.iterdir())
    else:
        try:
            open_clip.pretrained.download_pretrained_from_hf(architecture.removeprefix("hf-hub:"))
            found = True
        except Exception:
            found = False
    if not found:
        raise ModelError(
            f"No weights were found for backbone {name!r}: its configuration is there, its weights are not."
        )


def _tokenizer(name: str, architecture: str) -> Any:
    """Return the tokenizer of an open_clip architecture; that of a SigLIP, say, is one of transformers."""
    try:
        return open_clip.get_tokenizer(architecture)
    except Exception as problem:
        if _lacks_transformers(problem):
            raise ModelError(needs_transformers(f"The backbone {name!r}")) from problem
        config = open_clip.get_model_config(architecture) or {}
        wanted = config.get("text_cfg", {}).get("hf_tokenizer_name", architecture)
        raise ModelError(
            f"The tokenizer of backbone {name!r} is not on this machine and could not be downloaded "
            f"({_reason(problem)}). Wanted: the files of the Hugging Face repository {wanted!r}. With a network, "
            "run the command once to fill the cache (HF_HOME, by default ~/.cache/huggingface). 'tiny' is embedded "
            "and always works offline."
        ) from problem


def _lacks_transformers(problem: Exception) -> bool:
    return importlib.util.find_spec("transformers") is None and "transformers" in f"{problem!r}"


def _explain(name: str, architecture: str, weights: str | None, problem: Exception, online: bool) -> str:
    """Say what went wrong, which file is wanted, where it goes, and what works offline."""
    if _lacks_transformers(problem):
        return needs_transformers(f"The backbone {name!r}")
    if weights and Path(weights).is_file():
        return (
            f"The weights file {weights} could not be loaded into {architecture}: {_reason(problem)}. "
            "Check that the file is complete and belongs to this architecture."
        )
    entry = get_pretrained_cfg(architecture, weights) if weights else {}
    if architecture.startswith("hf-hub:"):
        wanted = f"'open_clip_config.json' and the weights of the Hugging Face repository {architecture[7:]!r}"
    elif entry.get("hf_hub"):
        repo, _, file = entry["hf_hub"].rpartition("/")
        wanted = f"{file or 'open_clip_model.safetensors'!r} of the Hugging Face repository {repo!r}"
    elif entry.get("url"):
        wanted = f"{Path(entry['url']).name!r}"
    else:
        return f"The backbone {name!r} could not be built: {_reason(problem)}."
    local = architecture if not architecture.startswith("hf-hub:") else "ARCHITECTURE"
    why = _reason(problem) if online else "the Hub cannot be reached"
    return (
        f"The weights of backbone {name!r} are not on this machine and could not be downloaded "
        f"({why}). Wanted: {wanted}. With a network, run the command once to fill the cache "
        "(HF_HOME, by default ~/.cache/huggingface; files fetched by address go to ~/.cache/clip). "
        f"Without one, copy the file here and write '{local}:path/to/that/file'. "
        "'tiny' is embedded and always works offline."
    )


def _reason(problem: BaseException) -> str:
    """Return the first line of an error; how to run a refused pickle all the same, which torch says, is left out."""
    text = str(problem).strip()
    if isinstance(problem, pickle.UnpicklingError) or "weights_only" in text:
        called = re.search(r"(?:GLOBAL|class) ([\w.]+)", text)
        return f"it is a program that calls {called[1]}" if called else "it is a program, not tensors alone"
    return (text.splitlines() or [type(problem).__name__])[0][:200]
