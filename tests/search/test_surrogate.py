import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from afd_dse.cost.evaluation import CONSTRAINTS
from afd_dse.search.encoding import SampledSpace
from afd_dse.search.surrogate import Surrogate, features, likeliest
from afd_dse.search.trials import Deployments
from afd_dse.spec.cells import parse_partition
from tests.strategies import build, space

RNG = np.random.default_rng(0)


def known(count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Points of smooth functions; the last slack is met where the first feature is below 3."""
    x = RNG.uniform(0.0, 6.0, size=(count, 3))
    smooth = np.sin(x[:, 0] / 3.0) + 0.1 * x[:, 1] * x[:, 2]
    slack = np.tile(1.0 - x[:, :1] / 3.0, (1, len(CONSTRAINTS)))
    return x, np.column_stack([smooth, slack])


def test_what_has_been_evaluated_is_predicted_as_it_was_and_without_doubt() -> None:
    x, y = known()
    mean, doubt = Surrogate(x, y).predicted(x)
    assert mean == pytest.approx(y, abs=0.01)
    assert doubt.max() < 0.05


def test_smooth_functions_are_predicted_between_points_and_doubt_grows_away_from_them() -> None:
    x, y = known(120)
    fitted = Surrogate(x[:100], y[:100])
    mean, near = fitted.predicted(x[100:])
    assert np.abs(mean - y[100:]).max() < 0.1
    _, far = fitted.predicted(x[100:] + 20.0)
    assert (far > 10.0 * near).all()


def test_columns_that_never_change_or_repeat_others_change_nothing() -> None:
    x, y = known()
    more = np.column_stack([x, np.ones(len(x)), x[:, 1]])
    plain, repeated = Surrogate(x, y).predicted(x + 0.3), Surrogate(more, y).predicted(more + 0.3)
    assert repeated[0] == pytest.approx(plain[0], rel=1e-9)


def test_what_breaks_a_limit_has_little_chance_and_what_holds_all_a_good_one() -> None:
    x, y = known()
    expected = Surrogate(x, y).expected(np.array([[1.0, 3.0, 3.0], [5.0, 3.0, 3.0]]))
    assert expected.chance[0] > 0.9
    assert expected.chance[1] < 0.05


def test_the_likeliest_lengths_are_short_where_the_target_bends_and_long_where_it_does_not_depend() -> None:
    x = RNG.uniform(0.0, 6.0, size=(150, 3))
    lengths, noise = likeliest(x, np.sin(2.0 * x[:, 0]) + 0.1 * x[:, 1])
    assert lengths[0] < 0.5 * lengths[1] < lengths[2]
    assert noise < 1e-3


def test_features_that_do_not_matter_are_told_from_few_points() -> None:
    x, y = known(160)
    noisy = np.column_stack([x, RNG.uniform(0.0, 6.0, size=(160, 4))])
    mean, _ = Surrogate(noisy[:80], y[:80]).predicted(noisy[80:])
    assert np.abs(mean[:, 0] - y[80:, 0]).max() < 0.3


def test_what_becomes_known_leaves_the_doubt_that_a_surrogate_fitted_to_it_would_have() -> None:
    x, y = known()
    fitted = Surrogate(x, y)
    at = np.array([[8.0, 8.0, 8.0], [8.1, 8.0, 8.0], [-2.0, -2.0, -2.0], [9.0, 7.0, 8.0]])
    _, doubts = fitted.together(at)
    before = doubts.left
    assert np.sqrt(before / before[0]) == pytest.approx(
        fitted.predicted(at)[1][:, 0] / fitted.predicted(at)[1][0, 0]
    )
    for one in (0, 3):
        doubts.learn(one)
    assert doubts.left[[0, 3]] == pytest.approx(0.0, abs=1e-9)
    assert doubts.left[1] < 0.1 * before[1]
    assert doubts.left[2] > 0.9 * before[2]
    # The same by the definition: the covariance of all of them, less what the learnt ones tell.
    both = np.concatenate([x, at[[0, 3]]])
    lengths, noise = fitted._lengths, fitted._noise
    scaled, far = both / lengths, at / lengths
    distance = np.sqrt(3.0 * ((scaled[:, None] - scaled) ** 2).sum(axis=2))
    between = np.sqrt(3.0 * ((far[:, None] - scaled) ** 2).sum(axis=2))
    own = (1.0 + distance) * np.exp(-distance) + np.diag(np.append(np.full(len(x), noise), np.zeros(2)))
    shared = (1.0 + between) * np.exp(-between)
    assert doubts.left == pytest.approx(
        1.0 - (shared * np.linalg.solve(own, shared.T).T).sum(axis=1), abs=1e-6
    )


@settings(max_examples=20, deadline=None)
@given(y=arrays(np.float64, (12, 1 + len(CONSTRAINTS)), elements=st.floats(-1.5, 1.5)))
def test_any_values_can_be_fitted_and_predictions_are_finite(y: np.ndarray) -> None:
    x = np.linspace(0.0, 5.0, 36).reshape(12, 3) ** 1.5
    expected = Surrogate(x, y).expected(x + 0.5)
    assert np.isfinite(expected.mean).all()
    assert np.isfinite(expected.doubt).all()
    assert ((expected.chance >= 0.0) & (expected.chance <= 1.0)).all()


def test_real_candidates_have_finite_features_and_targets_and_are_predicted_within_six_per_cent() -> None:
    case = build("Qwen/Qwen3-30B-A3B-FP8", [{"name": "main", "accelerator": "h100", "count": 8}])
    where = space(gpus=[1, 2, 4, 8], ffn_gpus=[1, 2], tp=[1, 2, 4], chunk_tokens=[2048, 8192])
    together = parse_partition("PA PF DA DF")
    held = SampledSpace(case, where, together)
    rows = np.unique(held.canonical(RNG.integers(held.sizes, size=(500, len(held.sizes)))), axis=0)
    candidates = held.decode(RNG.permutation(rows)[:200])
    measured = Deployments(case, together, "throughput_per_gpu").measure(candidates)
    x, y = features(candidates, 1), measured.targets
    assert np.isfinite(x).all()
    assert np.isfinite(y).all()
    fitted = Surrogate(x[:150], y[:150])
    mean, _ = fitted.predicted(x[150:])
    assert np.median(np.abs(mean[:, 0] - y[150:, 0])) < 0.06
