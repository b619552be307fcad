"""Few-shot methods, one file each, with one interface (`Method`): ``fit(task)`` and ``logits(images)``."""

from __future__ import annotations

from typing import Any

from kalmanclip.encoders import Backbone
from kalmanclip.encoders.features import Progress, silent
from kalmanclip.errors import ConfigError
from kalmanclip.filtering import Ranks
from kalmanclip.methods.base import PLUGINS, Method, Needs
from kalmanclip.methods.baselines.ape import APE, APET
from kalmanclip.methods.baselines.base import ZeroShot
from kalmanclip.methods.baselines.clip_adapter import CLIPAdapter
from kalmanclip.methods.baselines.clip_lora import CLIPLoRA
from kalmanclip.methods.baselines.clip_svd import CLIPSVD
from kalmanclip.methods.baselines.coop import CoOp
from kalmanclip.methods.baselines.first_order import FirstOrder
from kalmanclip.methods.baselines.gda import GDA
from kalmanclip.methods.baselines.linear_probe import LinearProbe
from kalmanclip.methods.baselines.lp_plus_plus import LPPlusPlus
from kalmanclip.methods.baselines.proker import ProKeR
from kalmanclip.methods.baselines.timo import TIMO, TIMOS
from kalmanclip.methods.baselines.tip_adapter import TipAdapter, TipAdapterF
from kalmanclip.methods.class_residuals import ClassResiduals
from kalmanclip.methods.classifier import Classifier
from kalmanclip.methods.joint import Joint, JointConfig
from kalmanclip.methods.kalman import Kalman, KalmanConfig
from kalmanclip.methods.presets import PRESETS, MethodConfig, preset, usual_preset, with_options
from kalmanclip.methods.residuals import ClassResidualsConfig

METHODS: dict[str, type[Any]] = {
    "class_residuals": ClassResiduals,
    "kalman": Kalman,
    "joint": Joint,
    "zero_shot": ZeroShot,
    "linear_probe": LinearProbe,
    "gda": GDA,
    "tip_adapter": TipAdapter,
    "tip_adapter_f": TipAdapterF,
    "clip_adapter": CLIPAdapter,
    "lp_plus_plus": LPPlusPlus,
    "ape": APE,
    "ape_t": APET,
    "timo": TIMO,
    "timo_s": TIMOS,
    "proker": ProKeR,
    "clip_lora": CLIPLoRA,
    "clip_svd": CLIPSVD,
    "coop": CoOp,
    "first_order": FirstOrder,
}
"""Every method by name; its ``Config`` is the dataclass of its options."""

CONTROLS = ("kalman", "joint", "first_order")
"""Methods that a comparison leaves out unless they are named."""


def find_method(name: str) -> type[Any]:
    """Return the class of that name: of `METHODS`, of a plug-in, or ``module:Class`` (see `kalmanclip.plugins`).

    Raises:
        ConfigError: there is none; the message has the names there are.
    """
    found: type[Any] = PLUGINS.get(name, METHODS)
    return found


def check_method(name: str) -> None:
    """Raise `ConfigError`, with the names there are, for a method that does not exist."""
    find_method(name)


def make_method(name: str, backbone: Backbone, config: Any = None) -> Method:
    """Build the method of that name (`find_method`); ``config``: an instance of its ``Config``, None for defaults."""
    found = find_method(name)
    wanted = found.Config
    if config is not None and type(config) is not wanted:
        raise ConfigError(f"The method {name!r} takes a {wanted.__name__}, not a {type(config).__name__}.")
    method: Method = found(backbone, config)
    return method


def method_name(config: Any) -> str:
    """Return the method that takes options of this type."""
    for name, method in (METHODS | PLUGINS.found()).items():
        if method.Config is type(config):
            return name
    raise ConfigError(
        f"No method takes a {type(config).__name__}. If it is a plug-in's, name the method once: "
        "kalmanclip.methods.find_method('module:Class')."
    )


def make_classifier(backbone: Backbone, config: MethodConfig, ranks: Ranks | None = None) -> Classifier:
    """Build the classifier with a belief that takes these options; ``ranks`` are those that learn together."""
    method = find_method(method_name(config))
    if not issubclass(method, Classifier):
        raise ConfigError(f"The method {method_name(config)!r} has no belief.")
    return method(backbone, config, ranks)


__all__ = [
    "CONTROLS",
    "METHODS",
    "PLUGINS",
    "PRESETS",
    "ClassResiduals",
    "ClassResidualsConfig",
    "Classifier",
    "Joint",
    "JointConfig",
    "Kalman",
    "KalmanConfig",
    "Method",
    "MethodConfig",
    "Needs",
    "Progress",
    "check_method",
    "find_method",
    "make_classifier",
    "make_method",
    "method_name",
    "preset",
    "silent",
    "usual_preset",
    "with_options",
]
