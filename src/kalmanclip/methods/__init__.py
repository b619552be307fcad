"""Few-shot methods, one file each, all with the same two verbs (`Method`): ``fit(task)`` and ``logits(images)``."""

from __future__ import annotations

import difflib
from typing import Any

from kalmanclip.encoders import Backbone
from kalmanclip.errors import ConfigError
from kalmanclip.methods.ape import APE, APEConfig
from kalmanclip.methods.ape_t import APET, APETConfig
from kalmanclip.methods.base import Method, Needs, Progress, silent
from kalmanclip.methods.classes import ClassConfig
from kalmanclip.methods.classifier import LogitBelief
from kalmanclip.methods.clip_adapter import CLIPAdapter, CLIPAdapterConfig
from kalmanclip.methods.clip_lora import CLIPLoRA, CLIPLoRAConfig
from kalmanclip.methods.clip_svd import CLIPSVD, CLIPSVDConfig
from kalmanclip.methods.coop import CoOp, CoOpConfig
from kalmanclip.methods.first_order import FirstOrder, FirstOrderConfig
from kalmanclip.methods.gda import GDA, GDAConfig
from kalmanclip.methods.kalman import Kalman
from kalmanclip.methods.kalman_config import KalmanConfig
from kalmanclip.methods.linear_probe import LinearProbe, LinearProbeConfig
from kalmanclip.methods.lp_plus_plus import LPPlusPlus, LPPlusPlusConfig
from kalmanclip.methods.presets import PRESETS, idle, preset, refuse_idle, replaced, with_preset
from kalmanclip.methods.proker import ProKeR, ProKeRConfig
from kalmanclip.methods.timo import TIMO, TIMOS, TIMOConfig, TIMOSConfig
from kalmanclip.methods.tip_adapter import TipAdapter, TipAdapterConfig, TipAdapterF, TipAdapterFConfig
from kalmanclip.methods.zero_shot import ZeroShot, ZeroShotConfig

METHODS: dict[str, type] = {
    "kalman": Kalman,
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
"""Every method by name."""

CONFIGS: dict[str, type] = {
    "kalman": KalmanConfig,
    "zero_shot": ZeroShotConfig,
    "linear_probe": LinearProbeConfig,
    "gda": GDAConfig,
    "tip_adapter": TipAdapterConfig,
    "tip_adapter_f": TipAdapterFConfig,
    "clip_adapter": CLIPAdapterConfig,
    "lp_plus_plus": LPPlusPlusConfig,
    "ape": APEConfig,
    "ape_t": APETConfig,
    "timo": TIMOConfig,
    "timo_s": TIMOSConfig,
    "proker": ProKeRConfig,
    "clip_lora": CLIPLoRAConfig,
    "clip_svd": CLIPSVDConfig,
    "coop": CoOpConfig,
    "first_order": FirstOrderConfig,
}
"""The options of each."""


CONTROLS = ("first_order",)
"""Methods that answer a question about another one: a comparison leaves them out unless they are named."""


def check_method(name: str) -> None:
    """Raises `ConfigError`, with the names there are, for a method that does not exist."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(f"Unknown method {name!r}{hint}. There are: {', '.join(METHODS)}.")


def make_method(name: str, backbone: Backbone, config: Any = None) -> Method:
    """Builds a method from its name.

    Args:
        name: a key of `METHODS`.
        backbone: the frozen CLIP.
        config: the method's own options (`CONFIGS`); None for its defaults.

    Raises:
        ConfigError: there is no such method, or the options are another method's.
    """
    check_method(name)
    if config is not None and type(config) is not CONFIGS[name]:
        raise ConfigError(f"The method {name!r} takes a {CONFIGS[name].__name__}, not a {type(config).__name__}.")
    method: Method = METHODS[name](backbone, config)
    return method


__all__ = [
    "APE",
    "APET",
    "CLIPSVD",
    "CONFIGS",
    "CONTROLS",
    "GDA",
    "METHODS",
    "PRESETS",
    "TIMO",
    "TIMOS",
    "APEConfig",
    "APETConfig",
    "CLIPAdapter",
    "CLIPAdapterConfig",
    "CLIPLoRA",
    "CLIPLoRAConfig",
    "CLIPSVDConfig",
    "ClassConfig",
    "CoOp",
    "CoOpConfig",
    "FirstOrder",
    "FirstOrderConfig",
    "GDAConfig",
    "Kalman",
    "KalmanConfig",
    "LPPlusPlus",
    "LPPlusPlusConfig",
    "LinearProbe",
    "LinearProbeConfig",
    "LogitBelief",
    "Method",
    "Needs",
    "ProKeR",
    "ProKeRConfig",
    "Progress",
    "TIMOConfig",
    "TIMOSConfig",
    "TipAdapter",
    "TipAdapterConfig",
    "TipAdapterF",
    "TipAdapterFConfig",
    "ZeroShot",
    "ZeroShotConfig",
    "check_method",
    "idle",
    "make_method",
    "preset",
    "refuse_idle",
    "replaced",
    "silent",
    "with_preset",
]
