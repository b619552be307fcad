"""Presets: every one works, options go on top of it, and options for nothing are refused."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from kalmanclip.config import from_dict, to_dict
from kalmanclip.encoders import LowRankConfig
from kalmanclip.errors import ConfigError
from kalmanclip.estimator import make_config
from kalmanclip.experiments.run import method_options
from kalmanclip.methods import PRESETS, Kalman, KalmanConfig, preset, refuse_idle, replaced, with_preset

LOW_RANK = ["head", "paper", "paper-literal"]
PAPER = Path(__file__).parents[3] / "shared" / "paper" / "paper.tex"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds(tiny, name):
    config = preset(name)
    method = Kalman(tiny, config)
    assert (method.classes is not None) == ("classes" in config.parameters)
    assert method.needs == ("towers" if name.startswith("paper") else "features")
    assert from_dict(KalmanConfig, to_dict(config)) == config
    assert make_config(name) == config


def test_which_presets_learn_what():
    assert preset("default") == KalmanConfig()
    assert preset("default").parameters == ("classes",)
    assert [name for name, config in PRESETS.items() if "low_rank" in config.parameters] == LOW_RANK


def test_the_head_is_the_default_of_the_low_rank_parameters():
    assert preset("head") == dataclasses.replace(KalmanConfig(), parameters=("low_rank",))
    assert preset("head").low_rank == LowRankConfig()
    assert preset("head").low_rank.placement == "head"


LETTER = {
    "parameters": ["low_rank"],
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
    """Every option of a preset but those of class residuals, which the papers' presets do not learn."""
    values = json.loads(json.dumps(to_dict(preset(name))))  # tuples as lists, as in a file
    del values["classes"]
    return values


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
    for use in (preset, lambda name: with_preset({"preset": name}), make_config):
        with pytest.raises(ConfigError) as error:
            use(name)
        assert repr(name) in str(error.value)
        assert all(known in str(error.value) for known in PRESETS)


@pytest.mark.parametrize("name", [["head"], None, 3])
def test_a_preset_that_is_no_name(name):
    with pytest.raises(ConfigError, match="Unknown preset"):
        with_preset({"preset": name})


def test_options_go_on_top_of_a_preset():
    values = with_preset({"preset": "paper", "epochs": 7, "low_rank": {"rank": 2}})
    assert "preset" not in values
    config = from_dict(KalmanConfig, values)
    rank_two = dataclasses.replace(preset("paper").low_rank, rank=2)
    assert config == dataclasses.replace(preset("paper"), epochs=7, low_rank=rank_two)
    assert preset("paper").low_rank.rank == 4  # it stays what it is
    assert with_preset({}) == to_dict(KalmanConfig())


def test_another_structure_takes_its_own_options(tiny):
    """The preset's update is about a diagonal belief: a dense one would refuse it."""
    assert with_preset({"preset": "paper", "belief": "dense"})["belief_options"] == {}
    assert with_preset({"preset": "paper", "belief": "low_rank", "belief_options": {"rank": 3}})["belief_options"] == {
        "rank": 3
    }
    assert with_preset({"preset": "paper", "belief": "diagonal"})["belief_options"] == {"update": "covariance"}
    assert make_config("paper", options={"belief": "dense"}).belief_options == {}
    assert make_config("paper", options={"epochs": 3}).belief_options == {"update": "covariance"}
    symmetric = replaced(preset("paper"), observation="symmetric", observation_options={"distinct": True})
    assert symmetric.belief_options == {"update": "covariance"}
    assert replaced(symmetric, epochs=3).observation_options == {"distinct": True}
    assert replaced(symmetric, observation="bounded").observation_options == {}
    assert preset("paper").belief_options == {"update": "covariance"}  # it stays what it is


def test_what_is_given_is_not_changed():
    changed = {"preset": "head", "filter": {"alpha": 0.5}}
    with_preset(changed)
    assert changed == {"preset": "head", "filter": {"alpha": 0.5}}


@pytest.mark.parametrize("name", PRESETS)
def test_a_run_can_name_a_preset(name):
    values = method_options("kalman", {"preset": name}, seed=3)
    assert from_dict(KalmanConfig, values) == dataclasses.replace(preset(name), seed=3)
    assert method_options("kalman", {"preset": name, "seed": 5}, seed=3)["seed"] == 5


def test_a_run_with_a_preset_is_the_run_with_its_options():
    assert method_options("kalman", {"preset": "default"}, 1) == method_options("kalman", {}, 1)
    assert method_options("kalman", {"preset": "head"}, 1) == method_options("kalman", {"parameters": ["low_rank"]}, 1)


def test_other_methods_have_no_presets():
    with pytest.raises(ConfigError, match="Unknown option 'preset'"):
        method_options("gda", {"preset": "head"}, 1)


IDLE = {
    "low_rank": {"rank": 2},
    "observation": "cosine",
    "observation_options": {"top": 3},
    "belief": "dense",
    "belief_options": {"update": "covariance"},
    "noise": {"beta": 0.9},
    "prior_std": 0.1,
    "prior_variance": 0.1,
    "epochs": 3,
    "batch_size": 3,
}


@pytest.mark.parametrize("name", IDLE)
def test_options_about_low_rank_parameters_need_some(name):
    with pytest.raises(ConfigError) as error:
        method_options("kalman", {name: IDLE[name]}, 1)
    assert f"option {name} is about low-rank parameters" in str(error.value)
    assert ", ".join(LOW_RANK) in str(error.value)
    method_options("kalman", {"preset": "head", name: IDLE[name]}, 1)
    method_options("kalman", {"parameters": ["low_rank", "classes"], name: IDLE[name]}, 1)


@pytest.mark.parametrize("name", LOW_RANK)
def test_options_about_classes_need_them(name):
    with pytest.raises(ConfigError, match="classes is about class residuals"):
        method_options("kalman", {"preset": name, "classes": {"views": 0}}, 1)
    assert method_options("kalman", {"classes": {"views": 0}}, 1)["classes"]["views"] == 0


def test_options_that_are_never_idle():
    for name in PRESETS:
        refuse_idle(["seed", "filter", "filter.alpha", "parameters"], preset(name))


def test_of_a_dotted_name_the_first_part_counts():
    with pytest.raises(ConfigError, match=r"option noise\.beta is about low-rank"):
        refuse_idle(["seed", "noise.beta"], preset("default"))
    with pytest.raises(ConfigError, match=r"option classes\.views is about class residuals"):
        refuse_idle(["classes.views"], preset("paper"))
    refuse_idle(["noise.beta", "classes.views"], KalmanConfig(parameters=("low_rank", "classes")))


def test_every_option_is_about_something():
    """A new option must say whether it is idle without low-rank parameters."""
    names = {field.name for field in dataclasses.fields(KalmanConfig)}
    assert names == {*IDLE, "parameters", "classes", "filter", "seed"}


def test_the_estimator_refuses_idle_options(tiny):
    with pytest.raises(ConfigError, match="epochs is about low-rank parameters"):
        make_config(options={"epochs": 3})
    assert make_config("head", options={"epochs": 3}).epochs == 3
    with pytest.raises(ConfigError, match="Known options"):
        make_config(options={"epoch": 3})
