"""Adapters on the Hugging Face Hub: `save_pretrained`, `push_to_hub` and `from_pretrained`, as elsewhere on the Hub.

A repository holds an adapter's files (`kalmanclip.adapter`), a model card (`kalmanclip.card`) and, where peft has a
place for what was learned, the low-rank parameters in its layout (`kalmanclip.encoders.peft_format`). A server of one's
own is named as for all that uses `huggingface_hub`: by the environment variable ``HF_ENDPOINT``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi, ModelCard, ModelHubMixin, snapshot_download

from kalmanclip import metrics
from kalmanclip.adapter import DESCRIPTION, write_tensors
from kalmanclip.card import LIBRARY, UNKNOWN, Measured, base_model, known_licence, model_card
from kalmanclip.encoders.peft_format import CONFIG, WEIGHTS, peft_adapter
from kalmanclip.errors import AdapterError, KalmanClipError
from kalmanclip.files import LOCK, explain, update_folder, write_json_atomic

CARD = "README.md"
_BELIEF = "belief-*.safetensors"
_PRIVATE = ("folder",)  # notes about this computer
_TIMEOUT = 10.0  # seconds for asking about a licence

T = TypeVar("T", bound="HubMixin")


class HubMixin(ModelHubMixin, library_name=LIBRARY):
    """What an estimator with `save` and `load` needs to be shared on the Hub."""

    def __new__(cls: type[T], *args: Any, **options: Any) -> T:
        """Skip what `ModelHubMixin` does here: all arguments are in the adapter, so that no config.json is needed."""
        return super(ModelHubMixin, cls).__new__(cls)

    def save_pretrained(
        self, save_directory: str | Path, *, test: Any = None, license: str | None = None, **options: Any
    ) -> str | None:
        """Write the adapter, a model card and, where that is possible, a LoRA for peft to a folder.

        Args:
            save_directory: created if need be; an adapter and a card already there are replaced.
            test: a folder of class folders or `LabelledImages` that were not learned from; the accuracy on them is
                measured now and is put on the card. None: the card says that none was measured.
            license: its identifier on the Hub; None: that of the backbone where it is known, or else 'unknown'.
            options: those of `huggingface_hub.ModelHubMixin.save_pretrained`.
        """
        options["model_card_kwargs"] = self._card_options(test, license, options.get("model_card_kwargs"))
        try:
            return super().save_pretrained(save_directory, **options)
        except OSError as problem:
            raise AdapterError(explain("write to", save_directory, problem)) from problem

    def push_to_hub(self, repo_id: str, *, test: Any = None, license: str | None = None, **options: Any) -> str:
        """Upload what `save_pretrained` writes, in one commit; the repository is created if need be.

        A card already there is replaced, unless ``ignore_patterns="README.md"``.

        Args:
            repo_id: "owner/name".
            test: as in `save_pretrained`.
            license: as in `save_pretrained`; None: that of the backbone, which the Hub is asked for.
            options: those of `huggingface_hub.ModelHubMixin.push_to_hub`: ``private``, ``token``, ``branch``,
                ``commit_message``, ``create_pr`` and so on.

        Returns:
            The address of the commit.

        Raises:
            AdapterError: the Hub cannot be reached, or refuses.
        """
        card = self._card_options(test, license, options.get("model_card_kwargs"))
        ignored = options.get("ignore_patterns") or []
        options |= {
            "model_card_kwargs": card | {"token": options.get("token"), "ask": True},
            "commit_message": options.get("commit_message") or f"Push an adapter with {LIBRARY}",
            "ignore_patterns": [LOCK, *([ignored] if isinstance(ignored, str) else ignored)],
            "delete_patterns": options.get("delete_patterns") or [_BELIEF, CONFIG, WEIGHTS],  # of an older adapter
        }
        try:
            return str(getattr(super().push_to_hub(repo_id, **options), "commit_url", ""))
        except KalmanClipError:
            raise
        except Exception as problem:
            advice = "`save_pretrained` writes the same files to a folder, which `hf upload` can push later."
            raise AdapterError(f"{repo_id!r} could not be pushed: {_reason(problem)} {advice}") from problem

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls: type[T],
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        model: Any = None,
        device: Any = None,
        precision: str | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
    ) -> T:
        """Read an adapter from the Hub, from the cache if it is there, or from a folder.

        Only the adapter's own files are downloaded, and nothing in them is executed.

        Args:
            pretrained_model_name_or_path: "owner/name", or a folder.
            model: the backbone, where it is not to be had by the name in the adapter.
            device: as in the constructor.
            precision: as in the constructor.
            revision: branch, tag or commit.
            token: for private repositories; None: that of `hf auth login`.
            cache_dir: where downloads are kept; None: the usual place.
            force_download: whether to download again what is in the cache.
            local_files_only: whether to use the cache alone.

        Raises:
            AdapterError: it cannot be had, is damaged, or is no adapter.
        """
        name = os.fspath(pretrained_model_name_or_path)
        folder = name
        if not Path(name).is_dir():
            try:
                folder = snapshot_download(
                    name,
                    revision=revision,
                    token=token,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    allow_patterns=[DESCRIPTION, _BELIEF],
                    library_name=LIBRARY,
                )
            except Exception as problem:
                advice = "Check the name; without a network, give a folder that `save` or `save_pretrained` wrote."
                raise AdapterError(
                    f"The adapter {name!r} is no folder here, and could not be had from the Hub: {_reason(problem)} "
                    f"{advice}"
                ) from problem
        found: T = cls.load(folder, model, device=device, precision=precision)  # type: ignore[attr-defined]
        return found

    def generate_model_card(
        self: Any,
        *,
        measured: Measured | None = None,
        license: str | None = None,
        token: str | bool | None = None,
        ask: bool = False,
    ) -> ModelCard:
        """Return the card of the adapter as it is now.

        Args:
            measured: on images that were not learned from.
            license: its identifier; None: that of the backbone.
            token: with which the Hub is asked.
            ask: whether the Hub is asked for the backbone's licence where it is not known here.
        """
        name = self.backbone_.name
        licence: Mapping[str, str] = {"license": license} if license else known_licence(name)
        if licence == UNKNOWN and ask and (base := base_model(name)):
            licence = _licence_of(base, token)
        return model_card(self.method_, self.notes_, licence, measured, has_peft=self._peft() is not None)

    def _save_pretrained(self: Any, save_directory: Path) -> None:
        notes = self.notes_
        try:
            self.save(save_directory, {name: note for name, note in notes.items() if name not in _PRIVATE})
        finally:
            self.notes_ = notes
        found = self._peft()
        for stale in (CARD, CONFIG, WEIGHTS):
            (save_directory / stale).unlink(missing_ok=True)
        if found is not None:
            config, tensors = found
            with update_folder(save_directory, AdapterError, last=CONFIG) as draft:
                write_tensors(draft / WEIGHTS, tensors)
                write_json_atomic(draft / CONFIG, config, AdapterError)

    def _peft(self: Any) -> Any:
        encoder = self.tuned_encoder_
        name = self.backbone_.name
        return None if encoder is None else peft_adapter(encoder, base_model(name) or name)

    def _card_options(self: Any, test: Any, license: str | None, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the arguments of the card. First of all: what can fail shall do so before anything is written."""
        self._fitted()
        options = dict(given or {})
        if license is not None:
            options["license"] = license
        if test is not None:
            options["measured"] = self._measure(test)
        return options

    def _measure(self: Any, test: Any) -> Measured:
        images = self._known(test, None)
        prediction = self.predict_full(images.sources, how="mean", zero_shot=True)
        accuracy, zero_shot = (
            metrics.accuracy(images.labels, scores.argmax(dim=1).numpy())
            for scores in (prediction.mean, prediction.zero_shot)
        )
        is_path = isinstance(test, (str, os.PathLike))
        data = Path(test).resolve().name if is_path else "labelled images"
        return Measured(data, len(images), accuracy, zero_shot)


def _licence_of(repository: str, token: str | bool | None) -> Mapping[str, str]:
    """Return the metadata of a repository's licence; what cannot be found out is unknown."""
    try:
        card = HfApi(token=token).model_info(repository, timeout=_TIMEOUT).card_data
    except Exception:  # of no use, but of no harm either: the adapter does not depend on it
        return UNKNOWN
    found = {} if card is None else card.to_dict()
    kept = {name: found[name] for name in ("license", "license_name", "license_link") if found.get(name)}
    return kept if isinstance(kept.get("license"), str) else UNKNOWN


def _reason(problem: Exception) -> str:
    """Say why the Hub did not do what it was asked, and what helps."""
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    said = lines[0].rstrip(".")[:200]
    status = getattr(getattr(problem, "response", None), "status_code", None)
    if status in (401, 403):
        return f"the Hub refused ({said}). Log in with `hf auth login`, or pass token=."
    if status is not None:
        return f"the Hub answered {status} ({said})."
    if isinstance(problem, ValueError):
        return f"{said}."
    return f"the Hub cannot be reached ({said})."
