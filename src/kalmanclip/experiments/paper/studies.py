"""The tables and figures of the paper, and its words made checkable: each declared once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kalmanclip.experiments.paper import fill, findings, printed
from kalmanclip.experiments.paper import study as forms
from kalmanclip.experiments.paper.study import Study
from kalmanclip.experiments.spec import Variant

OWN = "kalmanclip default (class residuals)"
"""This package's own method: not the paper's, and in no finding about it."""

_LITERAL = Variant(printed.LITERAL, "kalman", {"preset": "paper-literal"}, family=printed.LITERAL)
_PAPER = Variant(printed.PAPER, "kalman", {"preset": "paper"}, family=printed.PAPER)
_DEFAULT = Variant(OWN, "class_residuals", family=OWN)
_ZERO_SHOT = Variant(forms.ZERO_SHOT, "zero_shot")
_BASELINES = (
    _ZERO_SHOT,
    Variant("CoOp", "coop"),
    Variant("CLIP-Adapter", "clip_adapter"),
    Variant("Tip-Adapter-F", "tip_adapter_f"),
)
_LEARNERS = (_LITERAL, _PAPER, _DEFAULT)
_SHOTS = (1, 2, 4, 8, 16)
_READINGS = (
    f"{printed.OURS} is the paper's method in two readings: `paper-literal` observes the similarities of matched pairs "
    "with target one, to the letter; `paper` observes their probability among the texts of the batch, the reading that "
    f"learns. The paper's number of its method stands beside both. {OWN} is what this package does unless told "
    "otherwise. It is another method, softmax regression with a Gaussian belief, and no claim of the paper is judged "
    "by it."
)
_PROTOCOL = (
    "Baselines search what was published or more (docs/baselines.md), on validation images: nothing is selected on "
    "test images, and all methods see the same images. The paper's baseline numbers agree with published ones that "
    "were partly selected on test images."
)


def _paper(label: str, preset: str = "paper", **options: Any) -> Variant:
    return Variant(label, "kalman", {"preset": preset, **options})


def _setting(name: str, value: float, **options: Any) -> Variant:
    """Return the paper's method with one setting changed."""
    return replace(_paper(f"{printed.PAPER} {name}", **options), family=printed.PAPER, setting=value)


def _first_order(label: str, **options: Any) -> Variant:
    """Return a rival on the parameters and the observation of the preset ``paper``, which are its defaults."""
    return Variant(label, "first_order", options, family="first-order", setting=options.get("epochs"))


_RATES = {"adamw": [1e-3, 3e-3, 1e-2, 3e-2, 1e-1], "sgd": [0.1, 0.3, 1.0, 3.0, 10.0]}
"""Of the first-order optimisers: around the best on validation images of two of the data sets, both sides included."""

_SMALL = {"rank": 2, "last_blocks": 1}
"""Low-rank parameters that are few enough for a dense covariance."""

_ALL = (
    Study(
        "table1",
        "Table 1: test accuracy in %, 1 to 16 images per class",
        (_READINGS, _PROTOCOL),
        (*_BASELINES, *_LEARNERS),
        findings.table_1,
        printed=printed.table_1,
        shots=_SHOTS,
    ),
    Study(
        "figure2",
        "Figure 2: accuracy against images per class",
        ("The numbers of Table 1 as a picture; the paper's are dashed.", _READINGS),
        (*_BASELINES, *_LEARNERS),
        findings.figure_2,
        printed=printed.table_1,
        shots=_SHOTS,
        draw=fill.figure_2,
    ),
    Study(
        "figure3",
        "Figure 3: gain over zero-shot in points, 16 images per class",
        (
            "The paper shows eleven bars as a picture. Six of them follow from its Table 1; the others are given "
            "nowhere as numbers.",
            _READINGS,
        ),
        (_ZERO_SHOT, *_LEARNERS),
        findings.figure_3,
        sets=(*forms.SIX, "mnist", "fashion_mnist", "cifar10", "cifar100", "places365"),
        form=forms.by_gain,
        printed=printed.figure_3,
        draw=fill.figure_3,
        gain=True,
    ),
    Study(
        "table2",
        "Table 2: test accuracy in % under distribution shift, 16 images per class",
        (
            "Learned on ImageNet, measured on four relatives of it. Where ImageNet is not at hand, other data sets "
            "with shifted test images stand in.",
            _READINGS,
            _PROTOCOL,
        ),
        (*_BASELINES, *_LEARNERS),
        findings.table_2,
        sets=("imagenet",),
        form=forms.by_shift,
        printed=printed.table_2,
        shifts=("imagenet_v2", "imagenet_sketch", "imagenet_a", "imagenet_r"),
        others="shifted",
    ),
    Study(
        "table3",
        "Table 3: scaling factor alpha against corrupted training images, 16 images per class",
        (
            "Test accuracy in % after learning with a share of the training images corrupted as in ImageNet-C. Where "
            "ImageNet is not at hand, other data sets stand in. In this package's own method alpha weighs images; in "
            "the paper's it weighs batches.",
        ),
        (
            _ZERO_SHOT,
            *(_setting(f"alpha {alpha:g}", alpha, filter={"alpha": alpha}) for alpha in printed.ALPHAS),
            *(Variant(f"{OWN} alpha {a:g}", "class_residuals", {"alpha": a}, {}, OWN, a) for a in printed.ALPHAS),
        ),
        findings.table_3,
        sets=("imagenet",),
        form=forms.by_share,
        printed=printed.table_3,
        shares=printed.SHARES,
        others="instead",
        criterion=True,
    ),
    Study(
        "table4",
        "Table 4: forgetting factor beta, 16 images per class",
        (
            "Test accuracy in %. Beta is about the observation noise; this package's own presets take that from the "
            "model instead, so it is no option of theirs.",
        ),
        (_ZERO_SHOT, *(_setting(f"beta {beta:.2f}", beta, noise={"beta": beta}) for beta in printed.BETAS)),
        findings.table_4,
        printed=printed.table_4,
        criterion=True,
    ),
    Study(
        "observation",
        "diag against flatten, and other readings of the observation, 16 images per class",
        (
            'The paper: "empirical results indicate that the approach employing the diag function yields superior '
            'performance". To the letter, diag observes similarities without negatives; flatten has them.',
        ),
        (
            _ZERO_SHOT,
            _paper("diag (similarities) prior 0.01", "paper-literal"),
            _paper("flatten (similarities) prior 0.01", "paper-literal", observation="pairwise"),
            _paper("diag (similarities) prior 0.1", "paper-literal", prior_std=0.1),
            _paper("flatten (similarities) prior 0.1", "paper-literal", observation="pairwise", prior_std=0.1),
            _paper("diag (probability in the batch) prior 0.1"),
            _paper("diag (probability of the class) prior 0.1", observation="classes"),
        ),
        findings.observation,
        criterion=True,
    ),
    Study(
        "noise",
        "The observation noise: method 1 against method 2, 16 images per class",
        (
            "Method 1 takes the innovations alone, method 2 adds the uncertainty of the parameters. A full R has one "
            "covariance per pair of positions in the batch, as in the paper; an exchangeable one does not know them.",
        ),
        (
            _ZERO_SHOT,
            *(
                _paper(f"method {method} with {kind} R", noise={"method": method, "structure": kind})
                for kind in ("full", "exchangeable")
                for method in (1, 2)
            ),
        ),
        findings.noise,
        criterion=True,
    ),
    Study(
        "regulation",
        "What lambda scales: the covariance or not, 16 images per class",
        ("The paper's prose scales mean, covariance and noise; its Algorithm 1 leaves the covariance out.",),
        (
            _ZERO_SHOT,
            *(
                _paper(f"lambda on {words} at alpha {alpha:g}", filter={"alpha": alpha, "regulate": regulate})
                for alpha in (0.1, 1.0)
                for words, regulate in (
                    ("mean and covariance and noise", ["mean", "covariance", "noise"]),
                    ("mean and noise", ["mean", "noise"]),
                )
            ),
        ),
        findings.regulation,
        criterion=True,
    ),
    Study(
        "belief",
        "The structure of the covariance, 16 images per class",
        (
            "The paper's filter is diagonal, for its cost. The same filter with richer beliefs, all on rank-2 "
            "parameters of the last block of each tower, so that a dense covariance fits into memory.",
        ),
        (
            _ZERO_SHOT,
            _paper("diagonal (precision)", low_rank=_SMALL, belief_options={"update": "precision"}),
            _paper("diagonal (covariance)", low_rank=_SMALL, belief_options={"update": "covariance"}),
            _paper("block-diagonal", low_rank=_SMALL, belief="block"),
            _paper("low-rank plus diagonal", low_rank=_SMALL, belief="low_rank"),
            _paper("dense", low_rank=_SMALL, belief="dense"),
        ),
        findings.belief,
        criterion=True,
    ),
    Study(
        "optimizer",
        "Filtering against first-order optimisation of the same parameters, 4 and 16 images per class",
        (
            "The paper's claim is that natural-gradient filtering beats first-order optimisation, and its tables never "
            "compare the two on the same parameters. Here all rows learn the low-rank parameters of `paper` from the "
            "same start, see the same observation of the same batches in the same order, and make the two passes of "
            "`paper`; the last two rows make ten. Squared: half the squared innovation, the loss of the paper's lemma "
            "with R = I. Cross-entropy: minus the logarithm of the matched probability.",
            "The rates of AdamW and SGD (momentum 0.9) are chosen out of five on validation images, which the filter "
            "does not have; their decay is linear, their weight decay 1e-4. The paper's settings for its baselines are "
            "AdamW with the rate 1e-3, and nothing is chosen.",
        ),
        (
            _ZERO_SHOT,
            _PAPER,
            *(
                _first_order(f"{name} ({words})", optimizer=optimizer, loss=loss, lr_grid=_RATES[optimizer])
                for name, optimizer in (("AdamW", "adamw"), ("SGD", "sgd"))
                for words, loss in (("squared", "squared"), ("cross-entropy", "cross_entropy"))
            ),
            _first_order("AdamW at 1e-3 (squared)"),
            _first_order("AdamW at 1e-3 (cross-entropy)", loss="cross_entropy"),
            _setting("(10 passes)", 10, epochs=10),
            _first_order("AdamW (cross-entropy; 10 passes)", loss="cross_entropy", lr_grid=_RATES["adamw"], epochs=10),
        ),
        findings.optimizer,
        shots=(4, 16),
        criterion=True,
    ),
)
STUDIES = {study.name: study for study in _ALL}
"""By the command's words for them, in the order of the paper; what it says in words comes last."""
