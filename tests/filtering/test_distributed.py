"""A belief shared by several processes says what the whole one says."""

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.filtering import distributed_cases as cases
from tests.together import DEAD, together

from kalmanclip.errors import ConfigError
from kalmanclip.filtering import Dense, Ranks
from kalmanclip.filtering.accelerated.distributed import shard

TOLERANCE = {"torch.float32": 1e-5, "torch.float64": 1e-10}


@pytest.fixture(scope="module", params=[2, 4])
def answers(request, tmp_path_factory):
    found = together(tmp_path_factory.mktemp("ranks"), request.param, cases.all_cases)
    assert all(isinstance(answer, dict) for answer in found), found
    return found


def agree(got, wanted, tolerance):
    assert got["skipped"] == wanted["skipped"]
    for name in ("mean", "s", "R", "numbers"):
        if wanted[name] is not None:
            np.testing.assert_allclose(got[name], wanted[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_every_filter_ends_where_the_single_process_does(answers):
    for number, dtype, spoilt in cases.RUNS:
        wanted = cases.alone(cases.CASES[number], dtype, spoilt)
        # a step that one rank cannot take is skipped by all
        assert wanted["skipped"] == [batch == spoilt for batch in range(len(cases.BATCHES))]
        for answer in answers:
            agree(answer["filters"][number, str(dtype), spoilt], wanted, TOLERANCE[str(dtype)])


def test_all_ranks_have_the_same_bits(answers):
    for key, wanted in answers[0]["filters"].items():
        for answer in answers[1:]:
            got = answer["filters"][key]
            np.testing.assert_equal(got["numbers"], wanted["numbers"])
            np.testing.assert_array_equal(got["mean"], wanted["mean"])
            np.testing.assert_array_equal(got["s"], wanted["s"])
    assert len({answer["numbers"][0] for answer in answers}) == 1


def test_a_rank_holds_its_share_of_the_state(answers):
    P = len(answers)
    counts = [answer["memory"][0] for answer in answers]
    assert sum(counts) == 100_003
    assert max(counts) <= math.ceil(100_003 / P) + 16
    for count, variances, inside in (answer["memory"] for answer in answers):
        assert variances == 4 * count
        assert inside


def test_all_refuse_what_one_refuses(answers):
    assert [answer["refusal"] for answer in answers] == [True] * len(answers)


def test_a_saved_state_goes_on_with_any_number_of_ranks(answers):
    whole = cases.alone(cases.CASES[2], torch.float64)
    wanted = whole | {"skipped": whole["skipped"][3:], "numbers": whole["numbers"][3:]}
    for answer in answers:
        for got in answer["resumed"]:
            agree(got, wanted, 1e-10)


def test_what_is_sent_is_what_the_formula_says(answers):
    P, m, n = len(answers), 8, 320
    for answer in answers:
        _, words, sent = answer["numbers"]
        assert words == ["é" * rank for rank in range(P)]
        assert sent["columns"] == 4 * (m // P) * (n - n // P)
        assert sent["means"] == 4 * (P - 1) * (n // P)
        assert sent["sums"] == 4 * (P - 1) * (m * m + 1)
        assert sent["targets"] == 4 * (P - 1) * 2 * (m // P)
        assert sent["decisions"] == P - 1
        assert set(sent) == {"columns", "means", "sums", "targets", "decisions"}


@pytest.mark.parametrize(("how", "timeout"), [("dies", 300.0), ("hangs", 2.0)])
def test_a_lost_rank_ends_the_others_with_one_error(tmp_path, how, timeout):
    *others, last = together(tmp_path, 3, cases.dying, how, timeout, tmp_path)
    if how == "dies":
        assert last == DEAD
    for rank, (name, text, seconds) in enumerate(others):
        assert name == "RankError"
        assert f"Rank {rank} of 3" in text
        assert "--resume" in text
        assert seconds < 150  # of 300 that it might have waited for one that is not dead


def same(found):
    for case, got in zip(cases.CASES, found, strict=True):
        agree(got, cases.alone(case, torch.float64, cases.SPOILT), 1e-9)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_single_rank(tmp_path, backend):
    device = {"gloo": "cpu", "nccl": "cuda"}[backend]
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        found = [cases.shared(Ranks(), case, torch.float64, cases.SPOILT, device) for case in cases.CASES]
        assert Ranks().all_gather_text("é") == ["é"]
    finally:
        dist.destroy_process_group()
    same(found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_two_ranks_share_a_gpu(tmp_path):
    for found in together(tmp_path, 2, cases.on_gpu):
        same(found)


def test_without_a_group_there_are_no_ranks():
    with pytest.raises(ConfigError, match="init_process_group"):
        Ranks()


def test_only_independent_parameters_can_be_shared():
    with pytest.raises(ConfigError, match="'dense' belief cannot be sharded"):
        shard(Dense.prior(torch.zeros(3), 1.0), None)
