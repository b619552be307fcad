"""Presets: every one works, chooses its method, and options go on top of it."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

from kalmanclip.config import from_dict, to_dict
from kalmanclip.encoders import LowRankConfig
from kalmanclip.errors import ConfigError
from kalmanclip.estimator import make_config
from kalmanclip.experiments.spec import method_options
from kalmanclip.methods import (
    PRESETS,
    ClassResidualsConfig,
    JointConfig,
    KalmanConfig,
    make_classifier,
    method_name,
    preset,
    usual_preset,
    with_options,
)

LOW_RANK = ["head", "paper", "paper-literal", "paper-tuned"]
METHODS = {
    **dict.fromkeys(("default", "residuals"), "class_residuals"),
    **dict.fromkeys(LOW_RANK, "kalman"),
    "joint": "joint",
}
PAPER = Path(__file__).parents[3] / "shared" / "paper" / "paper.tex"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds(tiny, name):
    config = preset(name)
    method = make_classifier(tiny, config)
    assert method.config == config
    assert method.needs == ("towers" if name.startswith(("paper", "towers", "joint")) else "features")
    assert from_dict(type(config), to_dict(config)) == config
    assert make_config(name) == config


def test_which_presets_learn_what():
    assert preset("default") == ClassResidualsConfig()
    assert [name for name, config in PRESETS.items() if isinstance(config, KalmanConfig)] == LOW_RANK
    assert {name: method_name(config) for name, config in PRESETS.items()} == METHODS


def test_the_head_is_the_default_of_the_low_rank_parameters():
    assert preset("head") == KalmanConfig()
    assert preset("head").low_rank == LowRankConfig()
    assert preset("head").low_rank.placement == "head"


LETTER = {
    "low_rank": {  # not given: places, blocks, rank and scale
        "placement": "towers",
        "towers": ["image", "text"],  # "both image encoder and text encoder"
        "targets": ["q", "k", "v"],
        "last_blocks": 2,
        "rank": 4,
        "scale": 1.0,
    },
    "observation": "cosine",  # y_hat = diag(S_C), y = diag(I)
    "observation_options": {},
    "belief": "diagonal",  # Chang et al. (2022)
    "belief_options": {"update": "covariance"},  # Sigma_k = Sigma - K H Sigma
    "filter": {"alpha": 0.1, "q": 0.0, "regulate": ["mean", "noise"]},  # Algorithm 1: lambda on mu and R, not on Sigma
    "noise": {
        "beta": 0.98,
        "method": 2,  # R_hat = e e^T + H Sigma H^T
        "initial": None,  # epsilon is not given
        "structure": "full",  # R is m x m
    },
    "prior_std": 0.01,  # Sigma_0 is not given
    "prior_variance": None,
    "epochs": 2,
    "batch_size": 10,
    "seed": 0,
}
"""Every option of the paper's filter, from the paper's text and not from the code."""

DEPARTURES = {"observation": "contrastive", "prior_std": 0.1}
"""What `paper` has otherwise, as measured: see docs/method.md."""


def listed(name):
    """Every option of a preset, tuples as lists, as in a file."""
    return json.loads(json.dumps(to_dict(preset(name))))


def test_the_letter_field_by_field():
    assert listed("paper-literal") == LETTER


def test_the_papers_preset_field_by_field():
    assert listed("paper") == LETTER | DEPARTURES


def test_the_letter_is_what_the_paper_prints():
    if not PAPER.is_file():
        pytest.skip("the paper's source is not here")
    text = " ".join(PAPER.read_text().split())
    alpha, beta = re.search(
        r"scaling factor \$\\alpha\$ to ([\d.]+) and the forgetting factor \$\\beta\$ to (\d\.\d+)", text
    ).groups()
    size, passes = re.search(r"the batch size is set to (\d+), with (\d+) epochs for smaller datasets", text).groups()
    assert (float(alpha), float(beta)) == (LETTER["filter"]["alpha"], LETTER["noise"]["beta"])
    assert (int(size), int(passes)) == (LETTER["batch_size"], LETTER["epochs"])
    algorithm = text[text.index(r"\begin{algorithmic}") : text.index(r"\end{algorithmic}")]
    regulated = [
        name
        for name, line in (
            ("mean", r"\vmu_{k|k-1} + \lambda \mK_k"),
            ("covariance", r"\mSigma_{k|k-1} - \lambda"),
            ("noise", r"\lambda (1-\beta) \hat{\boldsymbol{R}}_k"),
        )
        if line in algorithm
    ]
    assert regulated == LETTER["filter"]["regulate"]
    assert r"+ \mH_k \mSigma_{k|k-1} \mH_k^{\top}$ \State $\boldsymbol{R}_k" in algorithm  # method 2


@pytest.mark.parametrize("name", ["papr", "", "Default"])
def test_an_unknown_preset_names_the_known_ones(tiny, name):
    for use in (preset, make_config):
        with pytest.raises(ConfigError) as error:
            use(name)
        assert repr(name) in str(error.value)
        assert all(known in str(error.value) for known in PRESETS)


@pytest.mark.parametrize("name", [["head"], None, 3])
def test_a_preset_that_is_no_name(name):
    with pytest.raises(ConfigError, match="Unknown preset"):
        preset(name)


def test_options_go_on_top_of_a_preset():
    config = with_options(preset("paper"), {"epochs": 7, "low_rank": {"rank": 2}})
    rank_two = dataclasses.replace(preset("paper").low_rank, rank=2)
    assert config == dataclasses.replace(preset("paper"), epochs=7, low_rank=rank_two)
    assert preset("paper").low_rank.rank == 4  # it stays what it is
    assert make_config() == ClassResidualsConfig()
    assert make_config("paper", options={"epochs": 7, "low_rank": rank_two}) == config
    crops = {"crops": 2, "crop_scale": [0.5, 1.0]}
    assert with_options(preset("default"), crops) == ClassResidualsConfig(crops=2, crop_scale=(0.5, 1.0))


def test_the_default_adapts_the_tower_where_there_is_a_gpu_and_all_images():
    assert usual_preset("cpu") == usual_preset("mps") == "residuals"
    assert usual_preset("cuda") == usual_preset(torch.device("cuda", 1)) == "joint"
    assert usual_preset("cuda", images=False) == usual_preset("cuda", together=True) == "residuals"


def test_all_of_the_joint_method_has_one_seed():
    config = with_options(preset("joint"), {"seed": 3, "steps": 1})
    assert config == JointConfig(steps=1, residuals=ClassResidualsConfig(seed=3))
    assert config.seed == 3
    assert with_options(config, {"seed": 4}).residuals.seed == 4


def test_another_structure_takes_its_own_options(tiny):
    """The preset's update is about a diagonal belief: a dense one would refuse it."""
    assert with_options(preset("paper"), {"belief": "dense"}).belief_options == {}
    low_rank = with_options(preset("paper"), {"belief": "low_rank", "belief_options": {"rank": 3}})
    assert low_rank.belief_options == {"rank": 3}
    assert with_options(preset("paper"), {"belief": "diagonal"}).belief_options == {"update": "covariance"}
    assert make_config("paper", options={"belief": "dense"}).belief_options == {}
    assert make_config("paper", options={"epochs": 3}).belief_options == {"update": "covariance"}
    symmetric = with_options(preset("paper"), {"observation": "symmetric", "observation_options": {"distinct": True}})
    assert symmetric.belief_options == {"update": "covariance"}
    assert with_options(symmetric, {"epochs": 3}).observation_options == {"distinct": True}
    assert with_options(symmetric, {"observation": "bounded"}).observation_options == {}
    assert preset("paper").belief_options == {"update": "covariance"}  # it stays what it is


def test_what_is_given_is_not_changed():
    changed = {"preset": "head", "filter": {"alpha": 0.5}}
    method_options("kalman", changed, 1)
    assert changed == {"preset": "head", "filter": {"alpha": 0.5}}


@pytest.mark.parametrize("name", PRESETS)
def test_a_run_can_name_a_preset(name):
    wanted, method = preset(name), METHODS[name]
    values = method_options(method, {"preset": name}, seed=3)
    assert from_dict(type(wanted), values) == with_options(wanted, {"seed": 3})
    assert from_dict(type(wanted), method_options(method, {"preset": name, "seed": 5}, seed=3)).seed == 5


def test_a_run_with_a_preset_is_the_run_with_its_options():
    assert method_options("class_residuals", {"preset": "default"}, 1) == method_options("class_residuals", {}, 1)
    assert method_options("kalman", {"preset": "head"}, 1) == method_options("kalman", {}, 1)
    with pytest.raises(ConfigError, match="head, paper, paper-literal"):
        method_options("kalman", {"preset": "default"}, 1)


def test_other_methods_have_no_presets():
    with pytest.raises(ConfigError, match="Unknown option 'preset'"):
        method_options("gda", {"preset": "head"}, 1)


@pytest.mark.parametrize("name", ["low_rank", "noise", "epochs", "belief"])
def test_options_of_another_method_are_refused(tiny, name):
    with pytest.raises(ConfigError, match=f"Unknown option {name!r} for ClassResidualsConfig. Known options: crops"):
        with_options(preset("default"), {name: 1})
    with pytest.raises(ConfigError, match="Unknown option 'crops' for KalmanConfig"):
        with_options(preset("paper"), {"crops": 0})
    with pytest.raises(ConfigError, match=r"Unknown option 'epochs'.*one of the presets head, paper, paper-literal"):
        make_config(options={"epochs": 3})
    assert make_config("head", options={"epochs": 3}).epochs == 3
