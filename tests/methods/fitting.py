"""What the ranks do in `test_parallel`: found by name in each process, so not in the test module itself."""

import contextlib
import dataclasses
import functools
import io
import os

import torch

from kalmanclip.data import FewShotTask, read_folder
from kalmanclip.encoders import LowRankConfig, features, load_backbone
from kalmanclip.filtering import NoiseConfig
from kalmanclip.methods import ClassResidualsConfig, distributed, make_classifier, preset

SMALL = LowRankConfig(placement="towers", rank=2, last_blocks=1)
FULL = NoiseConfig(structure="full")
HEAD = LowRankConfig(placement="head", rank=2)
PAPER = dataclasses.replace(preset("paper"), low_rank=SMALL, batch_size=7)
CASES = {
    "paper": PAPER,  # batches of 7, 7 and 1: a rank without images
    "literal": dataclasses.replace(preset("paper-literal"), low_rank=HEAD, noise=FULL, batch_size=5, epochs=1),
    "pairwise": dataclasses.replace(PAPER, low_rank=HEAD, observation="pairwise", epochs=1),
    "bounded": dataclasses.replace(preset("head"), low_rank=HEAD, batch_size=4, epochs=1),
    "default": ClassResidualsConfig(crops=1, prior_std=0.3),
}
TEMPLATES = ("a photo of a {}.", "a drawing of a {}.")


@functools.cache
def tiny(dtype):
    backbone = load_backbone("tiny")
    backbone.model.to(dtype)
    return backbone


def few(root, templates=TEMPLATES):
    return FewShotTask(read_folder(root), templates=templates, seed=1)


def fitted(root, config, ranks=None):
    """What a fit ends with, as arrays; all but the paper's in float64, which tells rounding from mistakes."""
    single = config is PAPER
    method = make_classifier(tiny(torch.float32 if single else torch.float64), config, ranks)
    told = []
    task = few(root, TEMPLATES[:1] if single else TEMPLATES)
    steps = method.fit(task, after_epoch=lambda done: told.append((done, shape(method))))
    found = {"steps": [s.distance for s in steps]}
    names = ("residuals", "belief", "noise")
    found |= {name: t.numpy() for name, t in method.state_dict().tensors.items() if name.partition(".")[0] in names}
    if single:
        (logits,) = method.linearized_batches(task.train.sources[:4], scaled=False)
        method.update(task.train, templates=task.templates)  # goes on from a belief that is whole
        found |= {"logits": logits.mean.numpy(), "std": logits.std.numpy(), "later": method.encoder.theta.numpy()}
    return found, told


def shape(method):
    """How many variances there are when a pass is over."""
    kalman = getattr(method, "filter", None)
    return None if kalman is None else tuple(kalman.belief.marginal_variance().shape)


def all_fits(ranks, root, broken):
    """Everything that can be asked of ranks that live, in one start."""
    features.ENCODE_BATCH = 4  # so that few images are several shares
    found = {name: fitted(root, config, ranks) for name, config in CASES.items()}
    kept, distributed.free_bytes = distributed.free_bytes, lambda device: 0
    found["anew"] = fitted(root, CASES["literal"], ranks)
    found["unreadable, one by one"] = error_of(lambda: fitted(broken, CASES["literal"], ranks))
    distributed.free_bytes = kept
    found["unreadable"] = error_of(lambda: fitted(broken, CASES["literal"], ranks))
    found["unreadable views"] = error_of(lambda: fitted(broken, CASES["default"], ranks))
    other = dataclasses.replace(PAPER, seed=ranks.rank)
    found["another seed"] = error_of(lambda: fitted(root, other, ranks))
    dense = dataclasses.replace(PAPER, belief="low_rank")
    found["another belief"] = error_of(lambda: fitted(root, dense, ranks))
    symmetric = dataclasses.replace(PAPER, observation="symmetric")
    found["another observation"] = error_of(lambda: fitted(root, symmetric, ranks))
    return found


def error_of(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def paper_fit(ranks, root):
    return fitted(root, PAPER, ranks)


def command(rank, size, port, arguments, dies_after=None):
    """`kalmanclip` as torchrun would start it; its exit code and its words. A rank may die when a pass is saved."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "KALMANCLIP_RANK_TIMEOUT": "30"}
    from kalmanclip.cli import app, fit

    if rank == dies_after:
        fit._save = lambda clf, output, notes: os._exit(9)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = app(arguments, standalone_mode=False) or 0
        except SystemExit as ended:
            code = ended.code
    return code, out.getvalue(), err.getvalue()
