"""The mistakes that `benchmarks.mutation` makes on purpose, each with the tests that should notice.

Each is one that a person could make: a target, an exponent, a factor, an index, an end of a range, a number of the
paper. Those that change nothing a user could see (other but equal code, another order of a sum) are of no use here. Old
texts are found in the file exactly once; a test of the suite checks it.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One mistake.

    Attributes:
        name: what is wrong, in words.
        file: in the package.
        old: a text that occurs in it exactly once.
        new: what it becomes.
        tests: as pytest takes them; at least one must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _group(file: str, path: str, mutants: dict[str, tuple[str, str, str]]) -> list[Mutant]:
    """Mutants of one file, by name: old text, new text, and the test in the file of tests at `path` ('': all of it)."""
    return [
        Mutant(f"{file.removesuffix('.py')}: {name}", file, old, new, (f"{path}::{test}" if test else path,))
        for name, (old, new, test) in mutants.items()
    ]


_CONTRACT = "tests/filtering/test_contract.py"

FILTERING = [
    *_group(
        "filtering/likelihoods.py",
        "tests/filtering/test_likelihoods.py",
        {
            "target zero": (
                "return target / root, p / root,",
                "return 0 * target / root, p / root,",
                "test_gradient_and_information_are_those_of_the_log_likelihood",
            ),
            "a root of the covariance that is none": (
                "root.diag_embed() - root.unsqueeze(2) * p.unsqueeze(1)",
                "root.diag_embed() - p.unsqueeze(2) * root.unsqueeze(1)",
                "test_gradient_and_information_are_those_of_the_log_likelihood",
            ),
            "half of the bound": (
                "root, K = math.sqrt(2.0), p.shape[1]",
                "root, K = math.sqrt(4.0), p.shape[1]",
                "test_the_bound_has_the_same_gradient_and_more_information",
            ),
            "the bound with another centre": (
                "device=p.device) - 1 / K) / root",
                "device=p.device) - 1 / (K - 1)) / root",
                "test_the_bound_has_the_same_gradient_and_more_information",
            ),
            "a variance without its second factor": (
                "return p, p * (-z).sigmoid()",
                "return p, p",
                "test_gradient_and_information_are_those_of_the_log_likelihood",
            ),
            "half of the draws count": (
                "- math.log(len(draws))",
                "- math.log(len(away))",
                "test_predictive_log_likelihood_of_one_output",
            ),
            "draws of the parameters' deviations, twice as far": (
                'torch.einsum("bkn,sn->sbk", J, away)',
                '2 * torch.einsum("bkn,sn->sbk", J, away)',
                "test_predictive_log_likelihood_of_one_output",
            ),
            "no factorial": (
                "- torch.lgamma(y + 1)",
                "",
                "test_predictive_log_likelihood_of_one_output",
            ),
        },
    ),
    *_group(
        "filtering/prior.py",
        "tests/filtering/test_likelihoods.py",
        {
            "the first of the candidates": (
                "if sums[variance] > (",
                "if sums[variance] < (",
                "test_the_prior_of_a_linear_model_has_the_largest_evidence",
            ),
            "scored after it was learned": (
                "return math.nan if kalman.step(observe).skipped else before",
                "kalman.step(observe)\n    return batch.log_likelihood(kalman.belief)",
                "test_each_batch_is_scored_by_what_was_known_before_it",
            ),
        },
    ),
    *_group(
        "filtering/kalman.py",
        "tests/filtering/test_kalman.py",
        {
            "the squared distance regulates": (
                "lam = torch.exp(-alpha * d_M)",
                "lam = torch.exp(-alpha * d_M**2)",
                "test_each_update_is_regulated_on_its_own",
            ),
            "the gain of the previous noise": (
                "cholesky(HSH + R_k,",
                "cholesky(HSH + noise.previous(e),",
                "test_each_update_is_regulated_on_its_own",
            ),
            "the covariance's regulation moves the mean": (
                "delta_mu = K @ (lam_mu * e)",
                "delta_mu = K @ (lam_Sigma * e)",
                "test_each_update_is_regulated_on_its_own",
            ),
            "no process noise": (
                "belief.inflate(q)",
                "belief.inflate(0.0)",
                "test_each_update_is_regulated_on_its_own",
            ),
            "the noise is not remembered": (
                "noise.accept(R_k)",
                "noise.accept(noise.previous(e))",
                "test_each_update_is_regulated_on_its_own",
            ),
            "the score knows its own batch": (
                "log_density(e, HSH + noise.previous(e))",
                "log_density(e, HSH + R_k)",
                "test_the_predictive_score_does_not_look_at_its_own_batch",
            ),
            "a gain that is not finite is used": (
                'check_finite(record, "the Kalman gain or the distance")',
                "pass",
                "test_a_broken_step_is_skipped_and_poisons_nothing",
            ),
        },
    ),
    *_group(
        "filtering/accelerated/fused_diagonal.py",
        "tests/filtering/test_fused_diagonal.py",
        {
            "the distance is not whitened": (
                "torch.linalg.vector_norm(solve_lower(root_R, e.unsqueeze(1)))",
                "torch.linalg.vector_norm(e)",
                "test_equal_to_the_reference",
            ),
            "R and R_k are exchanged": (
                "[HSH + R, HSH + R_k]",
                "[HSH + R_k, HSH + R]",
                "test_equal_to_the_reference",
            ),
            "the mean's regulation shrinks the covariance": (
                "lam_mu * e, lam_Sigma, R_inv[0]",
                "lam_mu * e, lam_mu, R_inv[0]",
                "test_equal_to_the_reference",
            ),
            "the density without its half": (
                "white @ white, alpha=0.5)",
                "white @ white, alpha=1.0)",
                "test_equal_to_the_reference",
            ),
            "a pivot of rounding error is trusted": (
                "(pivots.square() > m * torch.finfo(e.dtype).eps * entries)",
                "(pivots.square() > 0 * entries)",
                "test_a_pivot_of_rounding_error_is_left_to_the_reference",
            ),
            "broken numbers change the noise": (
                "noise.accept(R_k, ok)",
                "noise.accept(R_k)",
                "test_broken_numbers_are_refused_as_by_the_reference",
            ),
        },
    ),
    Mutant(
        "filtering/accelerated/fused_diagonal: numbers that are not finite are trusted",
        "filtering/accelerated/fused_diagonal.py",
        " & ((0 * numbers).sum() == 0)",
        "",
        ("tests/filtering/test_kalman.py::test_a_broken_step_is_skipped_and_poisons_nothing",),
    ),
    *_group(
        "filtering/accelerated/fused_diagonal.py",
        "tests/filtering/test_fused_diagonal.py",
        {
            "the projection with deviations for variances": (
                "total.addmm_(h * s[part], h.mT)",
                "total.addmm_(h * s[part].sqrt(), h.mT)",
                "test_any_chunks_make_the_exact_step",
            ),
            "only the last chunk's gain": (
                "gain += torch.linalg.vector_norm(K).square()",
                "gain = torch.linalg.vector_norm(K).square()",
                "test_any_chunks_make_the_exact_step",
            ),
            "the precision is not regulated": (
                "information.mul_(variance).mul_(lam).add_(1)",
                "information.mul_(variance).add_(1)",
                "test_any_chunks_make_the_exact_step",
            ),
            "the mean moves where it may not": (
                "mean.add_(torch.where(ok, e @ K, 0))",
                "mean.add_(e @ K)",
                "test_nothing_changes_where_it_may_not",
            ),
            "a variance may shrink to nothing": (
                ".add_(1).clamp_(least, 1)",
                ".add_(1).clamp_(0, 1)",
                "test_variances_stay_positive",
            ),
            "a variance may underflow": (
                "variance.mul_(torch.where(ok, factor, 1)).clamp_min_(tiny)",
                "variance.mul_(torch.where(ok, factor, 1))",
                "test_variances_stay_positive",
            ),
        },
    ),
    *_group(
        "filtering/noise.py",
        "tests/filtering/test_noise.py",
        {
            "the methods are exchanged": ("self.config.method == 1 else", "self.config.method == 2 else", ""),
            "the estimate is not regulated": ("+ lam * (1 - beta) * R_hat", "+ (1 - beta) * R_hat", ""),
            "cross blocks are scaled by beta": ("R[:m, m:] *= beta**0.5", "R[:m, m:] *= beta", ""),
            "new positions get the largest variance": (
                "* self.R.diagonal().mean()",
                "* self.R.diagonal().max()",
                "",
            ),
            "the mean covariance counts the diagonal": ("/ (m * (m - 1))", "/ (m * m)", ""),
            "the measured start is a sum": ("epsilon = e.square().mean()", "epsilon = e.square().sum()", ""),
            "the least common variance of one position too many": ("* self.a / (m - 1))", "* self.a / m)", ""),
            "beta of 0.95": ("beta: float = 0.98", "beta: float = 0.95", ""),
        },
    ),
    Mutant(
        "filtering/noise: what is forbidden is replaced",
        "filtering/noise.py",
        "torch.where(ok, new, old, out=old)",
        "old.copy_(new)",
        ("tests/filtering/test_fused_diagonal.py::test_broken_numbers_are_refused_as_by_the_reference",),
    ),
    *_group(
        "filtering/beliefs/diagonal.py",
        _CONTRACT,
        {
            "products with deviations": (
                "return H * self.s",
                "return H * self.s.sqrt()",
                "test_products_with_the_covariance",
            ),
            "variances of functions are linear": (
                "return J.square() @ self.s",
                "return J.abs() @ self.s",
                "test_products_with_the_covariance",
            ),
            "draws with variances for deviations": (
                "self.s.sqrt() * self._noise",
                "self.s * self._noise",
                "test_samples_have_the_mean_and_the_covariance",
            ),
        },
    ),
    *_group(
        "filtering/beliefs/diagonal.py",
        "tests/filtering/test_fused_diagonal.py",
        {
            "the covariance form is not regulated": (
                "(1 - lam * fraction)",
                "(1 - fraction)",
                "test_equal_to_the_reference",
            ),
            "the precision form is not regulated": (
                "(1 + lam * self.s * information)",
                "(1 + self.s * information)",
                "test_equal_to_the_reference",
            ),
        },
    ),
    *_group(
        "filtering/beliefs/block_diagonal.py",
        _CONTRACT,
        {
            "the process noise is squared": (
                "block.diagonal().add_(q)",
                "block.diagonal().add_(q * q)",
                "test_inflation_adds_q_to_the_diagonal",
            ),
            "the root of the shrinkage is forgotten": (
                "(1 - x).clamp_min(eps).sqrt()",
                "(1 - x).clamp_min(eps)",
                "test_one_step_is_the_projected_exact_update",
            ),
            "lambda for its root": (
                "G = root_lam * solve_lower",
                "G = lam * solve_lower",
                "test_one_step_is_the_projected_exact_update",
            ),
            "columns for rows of the root": (
                "L.square().sum(1) for L",
                "L.square().sum(0) for L",
                "test_products_with_the_covariance",
            ),
        },
    ),
    *_group(
        "filtering/beliefs/low_rank.py",
        _CONTRACT,
        {
            "the wrong root of the identity plus a Gram matrix": (
                "1 / (1 + x + (1 + x).sqrt())",
                "1 / (1 + x)",
                "test_products_with_the_covariance",
            ),
            "what is dropped is lost": (
                "self.d + dropped.square().sum(1)",
                "self.d",
                "test_low_rank_truncation_keeps_the_diagonal_of_the_precision",
            ),
            "the weakest directions are kept": (
                "rotated[:, :-rank], rotated[:, -rank:]",
                "rotated[:, rank:], rotated[:, :rank]",
                "test_low_rank_truncation_keeps_the_diagonal_of_the_precision",
            ),
            "the information is not regulated": (
                "(root_lam * whiten(R, H)).mT",
                "whiten(R, H).mT",
                "test_one_step_is_the_projected_exact_update",
            ),
            "the diagonal is not inflated": (
                "self._assign(self.d / damped,",
                "self._assign(self.d,",
                "test_inflation_adds_q_to_the_diagonal",
            ),
            "a prior variance is taken for a precision": (
                "1 / prior_variance(mean, variance)",
                "prior_variance(mean, variance)",
                "test_every_prior_is_diagonal",
            ),
        },
    ),
    *_group(
        "filtering/beliefs/dense.py",
        _CONTRACT,
        {
            "Joseph's form without its noise": (
                " + K @ R @ K.mT",
                "",
                "test_one_step_is_the_projected_exact_update",
            ),
            "the decrement is not regulated": (
                "(1 - lam) * self.covariance + lam * posterior",
                "posterior",
                "test_one_step_is_the_projected_exact_update",
            ),
            "draws by the transposed root": (
                'cholesky(self.covariance, "the covariance").mT',
                'cholesky(self.covariance, "the covariance")',
                "test_samples_have_the_mean_and_the_covariance",
            ),
        },
    ),
    *_group(
        "filtering/beliefs/kronecker.py",
        _CONTRACT,
        {
            "the rows' information is a sum": (
                ".div(self.rows).sqrt()",
                ".sqrt()",
                "test_one_step_is_the_projected_exact_update",
            ),
            "the process noise is squared": (
                "noise = math.sqrt(q) *",
                "noise = q *",
                "test_inflation_adds_q_to_the_diagonal",
            ),
        },
    ),
    *_group(
        "filtering/fusion.py",
        "tests/filtering/test_fusion.py",
        {
            "every site's prior is the common one": (
                "zip(precisions[:k], precisions[k:], strict=True)",
                "zip(precisions[:k], [prior] * k, strict=True)",
                "test_priors_ten_times_apart_count_once_each",
            ),
            "every low-rank site's prior is the common one": (
                "((-1.0, belief) for belief in own)",
                "((-1.0, prior) for belief in own)",
                "test_information_does_not_depend_on_the_prior_it_was_added_to",
            ),
            "the prior is counted by every site": (
                "[mine - own for mine, own in",
                "[mine for mine, own in",
                "test_natural_parameters_add_and_the_prior_counts_once",
            ),
            "a root of the wrong side": (
                "torch.linalg.solve_triangular(factor.mT, identity, upper=True)",
                "torch.linalg.solve_triangular(factor, identity, upper=False)",
                "test_natural_parameters_add_and_the_prior_counts_once",
            ),
            "what the rank drops is lost": (
                "_positive(d + U.square() @ dropped)",
                "_positive(d)",
                "test_a_truncated_low_rank_belief_keeps_the_mean_and_the_diagonal_of_the_precision",
            ),
        },
    ),
    *_group(
        "filtering/softmax.py",
        "tests/filtering/test_softmax.py",
        {
            "the variance of the logits with the plain scale": (
                "weights = scale**2 * (x.double() @ Q)",
                "weights = scale * (x.double() @ Q)",
                "",
            ),
            "a precision for a variance of the gain": ("1 / gain_std**2", "gain_std**2", ""),
            "the pull of the prior left out of the derivative": (
                "(scale * slope + pull) @ L_inv.mT",
                "scale * slope @ L_inv.mT",
                "",
            ),
            "the last images alone have a derivative": (
                "slope.addmm_(e.mT, x_b)",
                "slope = e.mT @ x_b",
                "test_images_that_are_read_some_at_a_time_are_all_read",
            ),
            "no derivative with respect to the gain": (
                "u.grad = l_inv * (",
                "u.grad = 0 * l_inv * (",
                "",
            ),
            "the search ends after ten steps": ("if before - value <= least:", "if before < math.inf:", ""),
        },
    ),
    *_group(
        "filtering/linalg.py",
        "tests/filtering/test_linalg.py",
        {
            "the squared distance": (
                "e[:, None]).square().sum().sqrt()",
                "e[:, None]).square().sum()",
                "",
            ),
            "half of the determinant": ("factor.diagonal().log().sum()", "factor.diagonal().log().sum() / 2", ""),
            "whitened by variances": ("H * variances.rsqrt()[:, None]", "H / variances[:, None]", ""),
            "a pivot of rounding error is trusted": ("p * p > tolerance * abs(a)", "p * p > 0", ""),
            "only the lower triangle counts": ("return (matrix + matrix.mT) / 2", "return matrix", ""),
            "negative eigenvalues reach the function": ("function(values.clamp_min(0))", "function(values)", ""),
        },
    ),
]

_OBSERVATIONS = "tests/observation/test_observations.py"

OBSERVATION = [
    *_group(
        "observation/symmetric.py",
        "tests/observation/test_symmetric.py",
        {
            "a target of zero": (
                "Terms(torch.ones_like(p), p, G)",
                "Terms(torch.zeros_like(p), p, G)",
                "test_outputs_and_derivatives",
            ),
        },
    ),
    *_group(
        "observation/matched.py",
        _OBSERVATIONS,
        {
            "similarities with target zero": (
                "Terms(torch.ones_like(S), S,",
                "Terms(torch.zeros_like(S), S,",
                "test_targets_are_those_of_the_table",
            ),
            "target zero": (
                "Terms(torch.ones_like(own), own,",
                "Terms(torch.zeros_like(own), own,",
                "test_targets_are_those_of_the_table",
            ),
            "the batch's texts are all texts": (
                "return labels.unique()",
                "return torch.arange(classes)",
                "test_targets_are_those_of_the_table",
            ),
            "all pairs with target zero": (
                "y = torch.nn.functional.one_hot(column, C).to(S)",
                "y = torch.zeros_like(S)",
                "test_targets_are_those_of_the_table",
            ),
            "target one": (
                "Terms(torch.zeros_like(own), own,",
                "Terms(torch.ones_like(own), own,",
                "test_targets_are_those_of_the_table",
            ),
            "the derivative without the scale": (
                "(scale * (target - p))",
                "(target - p)",
                "test_derivatives_of_gaussian_observations",
            ),
        },
    ),
    *_group(
        "observation/categorical.py",
        _OBSERVATIONS,
        {
            "bounded, with target zero": (
                "y[:, 0] = 1.0",
                "y[:, 0] = 0.0",
                "test_exponential_family_gives_the_gradient_and_the_information",
            ),
            "the own class need not take part": (
                "S.scatter(1, column.unsqueeze(1), math.inf)",
                "S",
                "test_bounded_lets_the_nearest_classes_compete",
            ),
        },
    ),
    *_group(
        "observation/likelihood.py",
        _OBSERVATIONS,
        {
            "probabilities without the scale": (
                "torch.softmax(scale * S, dim=-1)",
                "torch.softmax(S, dim=-1)",
                "test_derivatives_of_gaussian_observations",
            ),
        },
    ),
    *_group(
        "observation/observe.py",
        _OBSERVATIONS,
        {
            "target zero": (
                "Observation(terms.y.flatten(),",
                "Observation(0 * terms.y.flatten(),",
                "test_targets_of_a_whole_batch",
            ),
            "the likelihood's noise is not passed on": (
                "if likelihood.has_covariance else None",
                "if False else None",
                "test_jacobian_of_the_whole_observation",
            ),
            "absent texts take part": (
                "masked_fill(~present, -math.inf)",
                "masked_fill(~present, 0.0)",
                "test_texts_that_fill_up_a_fixed_shape_change_nothing",
            ),
            "prompts of other classes": (
                "needed.unsqueeze(1) * templates +",
                "needed.unsqueeze(1) +",
                "test_several_templates",
            ),
        },
    ),
]

PREDICTION = [
    *_group(
        "prediction/records.py",
        "tests/prediction/test_records.py",
        {
            "averaged where the mean was asked for": (
                "prediction.probabilities if uncertainty else prediction.at_mean",
                "prediction.probabilities",
                "test_at_the_mean_it_is_the_softmax",
            ),
            "unknown images have a class": (
                'if rounded.get("is_ood"):',
                "if False:",
                "test_at_the_mean_it_is_the_softmax",
            ),
        },
    ),
    *_group(
        "methods/class_residuals.py",
        "tests/methods/test_descriptions.py",
        {
            "descriptions count as one prompt": (
                "T[c] += own.sum(dim=0)",
                "T[c] += own.mean(dim=0)",
                "test_every_prompt_counts_once",
            ),
            "spread around zero": (
                "around.append(own - own.mean(dim=0))",
                "around.append(own)",
                "test_the_spread_is_a_share_of_the_prior",
            ),
        },
    ),
    *_group(
        "prediction/acquisition.py",
        "tests/prediction/test_acquisition.py",
        {
            "labels of a batch given the classifier forgotten": (
                "total = _entropy_with_each(known, shift, weights, p) - own",
                "total = _entropy_with_each(known, shift, weights, p)",
                "test_a_batch_is_the_greedy_one",
            ),
            "labels of pool and target independent": (
                "joint = part.flatten(1).mT @ theirs / S",
                "joint = torch.outer(part.mean(dim=0).flatten(), targets.mean(dim=0).flatten())",
                "test_predictive_information_is_that_of_two_labels",
            ),
            "the noise of a label forgotten": (
                "shrunk = between.square() * (w / (1 + w * variance)).unsqueeze(2)",
                "shrunk = between.square() * (1 / variance).unsqueeze(2)",
                "test_the_batch_is_that_of_the_filter_run_ahead",
            ),
            "earlier choices forgotten": (
                "column = column - earlier * earlier[:, best : best + 1]",
                "pass",
                "test_the_batch_is_that_of_the_filter_run_ahead",
            ),
            "targets as uncertain as before": (
                "of_targets = (of_targets - row.square()).clamp_min(0)",
                "pass",
                "test_the_batch_is_that_of_the_filter_run_ahead",
            ),
            "learning by the scaled covariance": (
                "w, w_target = curvature[candidates].mT, logits.scale * curvature[target].mT",
                "w, w_target = logits.scale * curvature[candidates].mT, logits.scale * curvature[target].mT",
                "test_the_batch_is_that_of_the_filter_run_ahead",
            ),
            "a margin is a lead": (
                "return 1 - (first - second)",
                "return first - second",
                "test_entropy_and_ambiguity",
            ),
        },
    ),
    *_group(
        "prediction/conformal.py",
        "tests/prediction/test_conformal.py",
        {
            "one image too few": (
                "math.ceil((n + 1) * coverage - 1e-9)",
                "math.ceil(n * coverage - 1e-9)",
                "test_too_few_images_are_refused",
            ),
            "sets may be empty": (
                "found[np.arange(len(p)), p.argmax(axis=1)] = True",
                "pass",
                "test_sets_by_hand",
            ),
            "one limit for all classes": (
                "coverage, self.labels == c)",
                "coverage, self.labels >= 0)",
                "test_sets_by_hand",
            ),
            "a penalty from the first rank on": ("FREE_RANKS = 5", "FREE_RANKS = 0", "test_nonconformity_by_hand"),
        },
    ),
    *_group(
        "prediction/conformal.py",
        "tests/prediction/test_cross_conformal.py",
        {
            "a fold is compared with all images": ("folds[counted] == k", "folds[counted] >= 0", ""),
            "images that fit as well are better": ('side="left"', 'side="right"', ""),
        },
    ),
    *_group(
        "prediction/expected.py",
        "tests/prediction/test_expected.py",
        {
            "an interval with one end": (
                "ndtri((1 + level) / 2)",
                "ndtri(level)",
                "test_the_ends_are_where_a_normal_test_begins_to_refuse",
            ),
            "the usual interval, of no width where all were right": (
                " + z**2 / (4 * n**2))",
                ")",
                "",
            ),
        },
    ),
    *_group(
        "prediction/predictive.py",
        "tests/prediction/test_decomposition.py",
        {
            "all of the entropy is epistemic": (
                "Decomposition(aleatoric, total - aleatoric)",
                "Decomposition(aleatoric, total)",
                "",
            ),
            "rounding makes a part negative": (
                "torch.minimum(self.entropy, total)",
                "self.entropy",
                "",
            ),
            "the parts are exchanged": (
                "average.probabilities, parts.aleatoric, parts.epistemic)",
                "average.probabilities, parts.epistemic, parts.aleatoric)",
                "",
            ),
        },
    ),
    *_group(
        "prediction/predictive.py",
        "tests/prediction/test_predictive.py",
        {
            "another probit constant": ("(1 + math.pi / 8 *", "(1 + math.pi / 4 *", ""),
            "deviations are scaled like variances": (
                "math.sqrt(scale) * self.shared",
                "scale * self.shared",
                "",
            ),
            "no mirror images": ("[self.mean + away, self.mean - away]", "[self.mean + away, self.mean + away]", ""),
            "draws with variances for deviations": (
                "away = z * self.own.clamp_min(0).sqrt()",
                "away = z * self.own.clamp_min(0)",
                "",
            ),
        },
    ),
    *_group(
        "prediction/temperature.py",
        "tests/prediction/test_temperature.py",
        {
            "nothing is surprising": (
                " - prior.precision * (step - prior.mean) ** 2 / 2",
                "",
                "test_doublings_are_surprising_by_hand",
            ),
            "the search goes up only": ("for direction in (-1, 1):", "for direction in (1,):", "test_the_search_ends"),
            "the top of another parabola": (
                "(above - below) / (2 * precision)",
                "(above - below) / precision",
                "test_a_parabola_gives_the_product_of_gaussians",
            ),
            "the prior counts at every site": (
                "again = len(beliefs) - 1",
                "again = 0",
                "test_observations_one_after_the_other_are_their_sum_and_so_is_their_fusion",
            ),
        },
    ),
    *_group(
        "prediction/mahalanobis.py",
        "tests/prediction/test_mahalanobis.py",
        {
            "half of what is mixed": (
                "return 2 * Q @ (inverse * means).mT",
                "return Q @ (inverse * means).mT",
                "test_the_distance_is_its_definition",
            ),
            "freedom of the means is forgotten": (
                "freedom = len(self.features) - int(self._there.sum())",
                "freedom = len(self.features)",
                "test_the_distance_is_its_definition",
            ),
            "held out, but not from the scatter": (
                "share = torch.where(lone, 0.0, n / (n - 1).clamp_min(1))",
                "share = 0.0 * n",
                "test_held_out_distances_are_those_of_a_model_without_the_image",
            ),
            "the middle of all stays where it was": (
                "- m[own]) / left",
                "- m[own]) * 0",
                "test_held_out_distances_are_those_of_a_model_without_the_image",
            ),
        },
    ),
    *_group(
        "prediction/ood.py",
        "tests/prediction/test_ood.py",
        {
            "what is near makes up for what is far": (
                "F.softplus(near) + FAR",
                "near + FAR",
                "test_neither_part_makes_up_for_the_other",
            ),
            "deviations from zero": (
                "(values - reference.mean()) / reference.std()",
                "values / reference.std()",
                "test_the_score_is_its_definition",
            ),
            "the interval of another rank": (
                "betaincinv(rank, N + 1 - rank, q)",
                "betaincinv(rank, N - rank, q)",
                "test_thresholds_by_hand",
            ),
            "images are counted twice": (
                "new = ~same.any(dim=1)",
                "new = same.any(dim=1) | True",
                "test_images_can_be_added_and_classes_left_out",
            ),
            "the shrinkage of two images fewer": (
                "directions = F.normalize(sums + SHRINKAGE * overall, dim=-1)",
                "directions = F.normalize(sums + overall, dim=-1)",
                "test_the_score_is_its_definition",
            ),
            "held out, but not from its class": (
                "own_sum = sums[own] - f",
                "own_sum = sums[own]",
                "test_held_out_scores_are_those_of_a_model_without_the_image",
            ),
            "a rank among N, not N + 1": (
                "math.floor(rate * (n + 1) + 1e-9)",
                "math.floor(rate * n + 1e-9)",
                "test_thresholds_by_hand",
            ),
            "the next rank": ("values[rank - 1]", "values[rank]", "test_thresholds_by_hand"),
            "a threshold for the mean of images": (
                " * math.sqrt(1 + 1 / N)",
                "",
                "test_thresholds_by_hand",
            ),
        },
    ),
]

ELSEWHERE = [
    *_group(
        "methods/presets.py",
        "tests/methods/test_presets.py",
        {
            "the other diagonal update": (
                'belief_options={"update": "covariance"}',
                'belief_options={"update": "precision"}',
                "",
            ),
            "a larger alpha": ("        alpha=0.1,\n", "        alpha=0.5,\n", ""),
            "larger batches": ("    batch_size=10,\n", "    batch_size=32,\n", ""),
        },
    ),
    *_group(
        "filtering/filter.py",
        "tests/methods/test_kalman.py",
        {"alpha of 0.5": ("alpha: float = 0.1", "alpha: float = 0.5", "test_the_papers_settings_are_the_defaults")},
    ),
    *_group(
        "filtering/filter.py",
        "tests/filtering/test_step_size.py",
        {
            "what is forgotten does not depend on the share of the data": (
                "self.belief.forget(step_size * share,",
                "self.belief.forget(step_size,",
                "test_with_small_batches_it_is_near_and_nearer_with_smaller_steps",
            ),
            "information counts fully, whatever the step size": (
                "R=seen.R / step_size",
                "R=seen.R",
                "test_the_fixed_point_is_the_posterior",
            ),
            "the belief forgets towards itself": (
                "            if self.prior is None:\n                self.hold_prior()",
                "            self.hold_prior()",
                "test_the_fixed_point_is_the_posterior",
            ),
        },
    ),
    *_group(
        "filtering/beliefs/diagonal.py",
        "tests/filtering/test_step_size.py",
        {
            "the precision forgets, but not the mean": (
                "self.mean.copy_((kept * self.mean + back * mean) / precision)",
                "",
                "test_the_fixed_point_is_the_posterior",
            ),
            "variances are mixed, not precisions": (
                "self.s.copy_(1 / precision)",
                "self.s.copy_((1 - share) * self.s + share * variance)",
                "test_the_fixed_point_is_the_posterior",
            ),
        },
    ),
    *_group(
        "methods/leave_one_out.py",
        "tests/methods/test_leave_one_out.py",
        {
            "an image is one of the others": (
                "total[own] - self.f[positions] + k * g",
                "total[own] + k * g",
                "test_every_image_is_classified_by_the_others",
            ),
            "one image too many": ("/ (n - 1 + k)", "/ (n + k)", "test_every_image_is_classified_by_the_others"),
            "densities without the norms of their means": (
                "others = f @ away.mT - (away * (means + g)).sum(dim=1) / 2",
                "others = f @ away.mT",
                "test_every_image_is_classified_by_the_others",
            ),
            "as sure as it was": (
                "_SOFTNESS = 2.0",
                "_SOFTNESS = 1.0",
                "test_every_image_is_classified_by_the_others",
            ),
            "a lone image is left out, too": (
                "torch.where(n > 1, rest",
                "torch.where(n > 0, rest",
                "test_every_image_is_classified_by_the_others",
            ),
            "gains without a prior": (
                "(own - mean).sum(dim=0) - (gains - 1) / _SPREAD**2",
                "(own - mean).sum(dim=0)",
                "test_the_gains_are_scipys_optimum",
            ),
            "one step of Newton": ("in range(20)", "in range(1)", "test_the_gains_are_scipys_optimum"),
            "the deviance is halved": ("(2 * nll).clamp_min", "nll.clamp_min", "test_the_deviance_and_its_slope"),
            "it hardly remembers": ("_MEMORY = 0.3", "_MEMORY = 0.7", "test_it_follows_the_images_that_were_seen"),
        },
    ),
    *_group(
        "methods/statistics.py",
        "tests/methods/test_class_residuals.py",
        {
            name: (*change, "test_the_generative_classifier_is_gaussian_classes")
            for name, change in {
                "class means are not drawn to the mean of all": (
                    "(total + PSEUDO_COUNT * g) / (count + PSEUDO_COUNT)",
                    "total / count",
                ),
                "the whole norm of a mean": ("(g + away / 2)", "(g + away)"),
                "the root of the precision": ("away @ root.double() @ root.double().mT", "away @ root.double()"),
                "the other sign of the constant": ("constant = -(weights", "constant = (weights"),
                "one image for two": ("PSEUDO_COUNT = 2.0", "PSEUDO_COUNT = 1.0"),
            }.items()
        },
    ),
    *_group(
        "methods/residuals.py",
        "tests/methods/test_class_residuals.py",
        {
            "the generative classifier has another temperature": (
                "self.shift = self.generative / self.scale *",
                "self.shift = self.generative *",
                "test_drawn_classifiers_have_the_generative_part",
            ),
            "draws without the generative classifier": (
                "yield drawn if self.shift is None else drawn + self.shift",
                "yield drawn",
                "test_drawn_classifiers_have_the_generative_part",
            ),
            "held-out images are predicted without the generative classifier": (
                "residuals.shift = self.generative / residuals.scale * self._classifier",
                "residuals.shift = 0 * self._classifier",
                "test_held_out_images_are_predicted_from_the_others",
            ),
            "the generative classifier of other classes": (
                "        self.names, self.T = list(names), T\n        self._shift()",
                "        self.names, self.T = list(names), T",
                "test_the_generative_classifier_is_of_the_classes_that_are_there",
            ),
        },
    ),
    *_group(
        "methods/joint.py",
        "tests/methods/test_joint_learns.py",
        {
            "the deviance is aimed at": (
                "Observation(torch.zeros_like(residual), residual, H, identity)",
                "Observation(residual, torch.zeros_like(residual), H, identity)",
                "test_labels_become_more_probable",
            ),
            "the images stay where they were": (
                "observed.remember(seen, at)",
                "pass",
                "test_the_others_follow_the_tower",
            ),
        },
    ),
    Mutant(
        "methods/leave_one_out: labels of other images",
        "methods/leave_one_out.py",
        "self.labels[positions].unsqueeze(1)",
        "self.labels[: len(positions)].unsqueeze(1)",
        ("tests/methods/test_joint.py::test_it_is_observed_as_the_others_classify_it",),
    ),
    *_group(
        "methods/joint.py",
        "tests/methods/test_joint.py",
        {
            "steps by all classes, empty ones too": (
                "sum(count > 0 for count in counts)",
                "len(counts)",
                "test_steps_grow_with_the_images_of_a_class_and_see_every_image",
            ),
            "many classes are not seen": (
                "math.ceil(LEAST_PASSES * images / batch_size)",
                "1",
                "test_steps_grow_with_the_images_of_a_class_and_see_every_image",
            ),
            "adapted embeddings count fully": (
                "return 0.5, 0.5 * n / (n + 1)",
                "return 0.5, 0.5",
                "test_the_logits_are_those_of_both_kinds_by_their_shares",
            ),
            "as wide a prior on adapted embeddings": (
                "prior_std=SEEN * self.residuals.prior_std",
                "prior_std=self.residuals.prior_std",
                "test_residuals_of_adapted_embeddings_are_narrower",
            ),
            "as much of the generative classifier on adapted embeddings": (
                "generative=SEEN * self.residuals.generative",
                "generative=self.residuals.generative",
                "test_residuals_of_adapted_embeddings_are_narrower",
            ),
            "the average begins with the first step": (
                "if 2 * (step + 1) > steps:",
                "if True:",
                "test_the_tower_is_the_average_over_the_second_half_of_the_steps",
            ),
            "the average forgets": (
                "average.lerp_(encoder.theta, 1 / taken)",
                "average.lerp_(encoder.theta, 0.5)",
                "test_the_tower_is_the_average_over_the_second_half_of_the_steps",
            ),
            "every layer moves a similarity as far as all together should": (
                "by_layer.clamp_min(1e-3 * by_layer.mean()) * len(by_layer)",
                "by_layer.clamp_min(1e-3 * by_layer.mean())",
                "test_the_prior_of_every_layer_moves_similarities_alike",
            ),
            "every step is a whole pass": (
                "len(positions) / len(observed.labels)",
                "1.0",
                "",
            ),
            "an image that waits misses the pass": (
                "later = torch.cat([later, again[waiting]])",
                "later = later[:]",
                "test_no_image_twice_in_a_batch_and_all_equally_often",
            ),
            "adapted embeddings are certain": (
                "own * self.residuals.variance(f).sqrt() + other * self.adapted.variance(g).sqrt()",
                "own * self.residuals.variance(f).sqrt()",
                "test_draws_agree_with_the_linearised_belief",
            ),
        },
    ),
    *_group(
        "methods/fusion.py",
        "tests/test_fusion.py",
        {
            "the generative classifier of a small site counts like that of a large one": (
                "[n * part.residuals.generative for",
                "[sum(images) / len(images) * part.residuals.generative for",
                "",
            ),
        },
    ),
    *_group(
        "methods/kalman.py",
        "tests/methods/test_kalman.py",
        {
            "batches of 32": (
                "batch_size: int = 10",
                "batch_size: int = 32",
                "test_the_papers_settings_are_the_defaults",
            )
        },
    ),
    *_group(
        "methods/kalman.py",
        "tests/methods/test_kalman.py",
        {
            "the same order in every pass": (
                "taken = 0 if self.filter is None else self.filter.steps",
                "taken = 0",
                "test_every_pass_has_an_order_of_its_own",
            ),
        },
    ),
    *_group(
        "encoders/towers.py",
        "tests/encoders/test_towers.py",
        {
            "keys of the pool by the queries' projection": (
                'self._adapt("k", pool.k_proj, x)',
                'self._adapt("k", pool.q_proj, x)',
                "test_attention_pool_with_sharp_attention",
            ),
            "queries of the pool by the keys' projection": (
                'self._adapt("q", pool.q_proj, x[:, :1])',
                'self._adapt("q", pool.k_proj, x[:, :1])',
                "test_attention_pool_with_sharp_attention",
            ),
            "the head's correction is not seen through the projection": (
                "Correction(weight, A @ weight.to(A.dtype), B)",
                "Correction(weight, weight.to(A.dtype)[: len(A)], B)",
                "test_merged_model_gives_the_same_similarities",
            ),
        },
    ),
    *_group(
        "encoders/low_rank.py",
        "tests/encoders/test_towers.py",
        {
            "a correction of the keys is merged into the queries": (
                "B[part, :, group] = scaled[group]",
                "B[group, :, group] = scaled[group]",
                "test_merged_model_gives_the_same_similarities",
            ),
        },
    ),
    *_group(
        "methods/fusion.py",
        "tests/test_fusion.py",
        {
            "every site began with the common prior": (
                "prior, [f.belief for f in own])",
                "prior)",
                "test_sites_whose_priors_are_ten_times_apart",
            ),
            "the arithmetic mean of the priors": (
                "    logarithms = sum(w * math.log(v) for v, w in zip(values, weights, strict=True))\n"
                "    return math.exp(logarithms / sum(weights))",
                "    return sum(w * v for v, w in zip(values, weights, strict=True)) / sum(weights)",
                "test_sites_whose_priors_are_ten_times_apart",
            ),
            "a standard deviation for a precision": (
                "_weighted_mean(stds, images) ** -2",
                "_weighted_mean(stds, images) ** -1",
                "test_residuals_of_sites_whose_priors_are_ten_times_apart",
            ),
            "small sites count like large ones": (
                "images = [float(statistics.count.sum()) for statistics in known]",
                "images = [1.0 for statistics in known]",
                "test_residuals_of_sites_whose_priors_are_ten_times_apart",
            ),
        },
    ),
    *_group(
        "methods/statistics.py",
        "tests/methods/test_stream.py",
        {
            "the metric's exponent": (
                "** (-_POWER / 2)",
                "** -_POWER",
                "test_the_metric_is_a_power_of_the_covariance_within_classes",
            ),
            "the metric's floor": (
                "_FLOOR * largest)",
                "0.1 * _FLOOR * largest)",
                "test_the_metric_is_a_power_of_the_covariance_within_classes",
            ),
            "all classes deviate alike": (
                "torch.randn(len(there), pairs,",
                "torch.randn(1, pairs,",
                "test_pseudo_images_of_many_classes_spread_as_all_images_do",
            ),
        },
    ),
    *_group(
        "methods/residuals.py",
        "tests/methods/test_stream.py",
        {
            "a stream keeps its first prior": (
                "(self.config.chosen or not known)",
                "(not known)",
                "test_a_stream_takes_another_prior_where_later_images_want_one",
            ),
            "what was said of the prior before is forgotten": (
                "choose_scales(config, score, self.scales)",
                "choose_scales(config, score)",
                "test_a_choice_begins_with_what_is_known_by_then",
            ),
            "held-out images of a stream are predicted by new ones alone": (
                "Evidence.joined([*fold.known, others])",
                "others",
                "test_held_out_images_of_a_stream_are_predicted_from_what_is_kept_and_the_others",
            ),
            "pseudo-images without their slope": (
                "mean=sums.slope @ self.root / strength",
                "mean=0 * sums.slope @ self.root / strength",
                "test_without_new_images_the_mode_stays",
            ),
            "a prior that was given to the first site": (
                "if self.prior_std is not None:  # what was given",
                "if False:  # what was given",
                "test_a_prior_that_is_given_stays",
            ),
        },
    ),
    *_group(
        "prediction/label_noise.py",
        "tests/prediction/test_label_noise.py",
        {
            "a wrong label may be the true class": (
                "rate / (probabilities.shape[1] - 1)",
                "rate / probabilities.shape[1]",
                "test_it_is_the_sum_over_all_patterns_of_wrong_labels",
            ),
            "the rate's density without its substitution": (
                " + (2 * root / _POINTS).log()",
                " - math.log(_POINTS)",
                "test_it_is_the_sum_over_all_patterns_of_wrong_labels",
            ),
            "another prior of the rate": (
                "(PRIOR - 1) * torch.log1p(-rate)",
                "PRIOR * torch.log1p(-rate)",
                "test_it_is_the_sum_over_all_patterns_of_wrong_labels",
            ),
            "the likely label is the given one": (
                "probabilities.scatter(1, labels.unsqueeze(1), 0.0)",
                "probabilities",
                "test_the_likely_label_is_the_most_probable_other_one",
            ),
            "no prediction is sharpened": (
                "(sharpness * log_p).softmax(dim=1)",
                "log_p.softmax(dim=1)",
                "test_predictions_that_are_too_vague_are_sharpened",
            ),
        },
    ),
    *_group(
        "methods/suspects.py",
        "tests/methods/test_suspects.py",
        {
            "an image is predicted by itself": (
                "        others = trusted.clone()\n        others[held] = False\n",
                "        others = trusted.clone()\n",
                "test_an_image_is_predicted_by_the_others_alone",
            ),
            "without the generative classifier": (
                "            fold.generative = generative\n",
                "            fold.generative = 0.0\n",
                "test_an_image_is_predicted_by_the_others_alone",
            ),
            "the least likely are left out": (
                "wrong.argsort(descending=True,",
                "wrong.argsort(descending=False,",
                "test_as_many_as_are_expected_to_be_wrong_teach_no_more",
            ),
        },
    ),
    *_group(
        "methods/residuals.py",
        "tests/methods/test_class_residuals.py",
        {
            "the metric of a fold has seen what is held out": (
                "whole.metric(self._images.sums)",
                "whole.metric(ClassStatistics.of(torch.cat([fold.crops, fold.held_crops]), "
                "torch.cat([fold.labels, fold.held_labels]), len(whole.names)))",
                "test_the_choice_never_sees_an_image_that_is_held_out",
            ),
            "images held out are judged by a random crop": (
                "self._learn(std), self._crops[:, 0]",
                "self._learn(std), self._crops[:, -1]",
                "test_what_is_said_of_held_out_images_is_what_the_others_say_by_their_centre_crops",
            ),
            "all images were held out by the first classifier": (
                "torch.full_like(part.labels, number)",
                "torch.full_like(part.labels, 0)",
                "test_what_is_said_of_held_out_images_is_what_the_others_say_by_their_centre_crops",
            ),
            "what was held out outlives further images": (
                "if known or not held_out:",
                "if not held_out:",
                "test_what_is_said_of_held_out_images_is_what_the_others_say_by_their_centre_crops",
            ),
        },
    ),
    *_group(
        "data/images.py",
        "tests/cli/test_evaluate.py",
        {
            "images are told apart by their names": (
                "for found in content_identities(sources)]",
                "for found in [_hash(image_identity(source).encode()) for source in sources]]",
                "test_images_that_were_trained_on_are_told_and_left_out",
            ),
        },
    ),
    *_group(
        "methods/classifier.py",
        "tests/cli/test_uncertainty.py",
        {
            "images learned on are not remembered": (
                "self.fingerprints |= {",
                "self.fingerprints = {",
                "test_images_that_are_learned_twice_are_told",
            ),
        },
    ),
    *_group(
        "encoders/jvp.py",
        "tests/encoders/test_jvp.py",
        {
            "texts stay where they are": (
                ' + torch.einsum("bd,kcd->bck", f, self.dW)',
                "",
                "test_the_movement_is_the_jacobian_times_the_direction",
            ),
            "images stay where they are": (
                'torch.einsum("kbd,cd->bck", df, self.W) + ',
                "",
                "test_the_movement_is_the_jacobian_times_the_direction",
            ),
        },
    ),
    *_group(
        "methods/baselines/coop.py",
        "tests/methods/test_oracles.py",
        {"four context tokens": ("context: int = 16", "context: int = 4", "test_the_published_context")},
    ),
    *_group(
        "sorting.py",
        "tests/cli/test_sort.py",
        {
            "unknown pictures have a class": (
                "UNSURE if stranger or p < unsure",
                "UNSURE if p < unsure",
                "test_each_picture_goes_to_its_class_or_to_unsure",
            ),
            "pictures of one name take one place": (
                "if _key(relative) in taken:",
                "if False:",
                "test_each_picture_goes_to_its_class_or_to_unsure",
            ),
            "what is there is taken for the same picture": (
                "elif not _same(source, target, how):",
                "elif False:",
                "test_nothing_that_is_there_is_replaced",
            ),
        },
    ),
    *_group(
        "experiments/paper/printed.py",
        "tests/experiments/test_paper_studies.py",
        {
            "a digit of Table 1": (
                "(61.10, 86.77, 77.40, 60.97, 46.76, 55.97)",
                "(61.10, 86.77, 77.40, 60.97, 46.76, 65.97)",
                "test_the_papers_own_rows_typed_again",
            ),
            "two columns of Table 1 exchanged": (
                "(OURS, 16): (65.30, 89.23, 80.06, 72.95, 66.56, 83.89)",
                "(OURS, 16): (65.30, 89.23, 80.06, 72.95, 83.89, 66.56)",
                "test_the_papers_own_rows_typed_again",
            ),
            "two rows of Table 1 exchanged": (
                "(OURS, 4): (62.85,",
                "(OURS, 4): (64.05,",
                "test_the_papers_own_rows_typed_again",
            ),
            "a digit of Table 2": ("61.90, 48.93)", "61.09, 48.93)", "test_the_papers_own_rows_typed_again"),
            "a digit of Table 4": (
                "72.80, 64.56, 87.00)",
                "72.80, 64.56, 78.00)",
                "test_the_papers_own_rows_typed_again",
            ),
        },
    ),
    *_group(
        "plugins.py",
        "tests/test_plugins.py",
        {
            "a file decides what is imported": (
                "if _only_installed.get():",
                "if False:",
                "test_an_adapter_imports_nothing",
            ),
            "plug-ins win": (
                "if name in own:",
                "if name in own and name not in self._known:",
                "test_our_names_win",
            ),
        },
    ),
    *_group(
        "experiments/base_to_new.py",
        "tests/experiments/test_base_to_new.py",
        {
            "the smaller half is learned": (
                "middle = -(-classes // 2)",
                "middle = classes // 2",
                "test_the_first_half_is_learned_and_the_larger_one",
            ),
            "the arithmetic mean": (
                '2 * base * new["accuracy"] / both',
                "both / 2",
                "test_each_half_is_measured_among_its_own_classes",
            ),
            "labels of all classes": (
                "images.labels[i] - classes.start for i",
                "images.labels[i] - classes.start * 0 for i",
                "test_the_base_images_are_those_of_the_whole_draw",
            ),
        },
    ),
    *_group(
        "prediction/frames.py",
        "tests/test_in_and_out.py",
        {
            "the probability at the mean": (
                "prediction.confidence.numpy()",
                "prediction.at_mean.amax(dim=1).numpy()",
                "test_predictions_become_frames",
            ),
        },
    ),
]

MUTANTS: list[Mutant] = [*FILTERING, *OBSERVATION, *PREDICTION, *ELSEWHERE]
