import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.cost.queueing import (
    conditional_wait,
    running_share,
    wait_percentile,
    waiting_probability,
)

rhos = st.floats(0.01, 0.99)
services = st.floats(1e-3, 1e3)


def mean_wait(
    service: float, rho: float, servers: float, arrival_cv2: float = 1.0, service_cv2: float = 1.0
) -> float:
    return wait_at(50.0, service, rho, servers, arrival_cv2, service_cv2)


def wait_at(
    percentile: float,
    service: float,
    rho: float,
    servers: float,
    arrival_cv2: float = 1.0,
    service_cv2: float = 1.0,
) -> float:
    utilization, count = np.array([rho]), np.array([servers])
    probability = waiting_probability(utilization, count)
    conditional = conditional_wait(np.array([service]), utilization, count, arrival_cv2, service_cv2)
    return float(wait_percentile(probability, conditional, percentile)[0])


@given(services, rhos, st.floats(0.0, 4.0))
def test_one_server_with_random_arrivals_waits_as_pollaczek_and_khinchine_say(
    service: float, rho: float, cv2: float
) -> None:
    exact = rho / (1 - rho) * service * (1 + cv2) / 2
    assert mean_wait(service, rho, 1, 1.0, cv2) == pytest.approx(exact, rel=1e-9)


def test_the_textbook_cases_of_one_server() -> None:
    assert mean_wait(1.0, 0.5, 1, 1.0, 1.0) == pytest.approx(1.0)  # M/M/1
    assert mean_wait(1.0, 0.5, 1, 1.0, 0.0) == pytest.approx(0.5)  # M/D/1
    assert mean_wait(1.0, 0.9, 1, 0.0, 0.0) == pytest.approx(0.0)  # D/D/1


@pytest.mark.parametrize(("servers", "rho"), [(2, 0.7), (4, 0.8), (16, 0.9), (64, 0.95)])
def test_several_servers_wait_about_as_erlang_says(servers: int, rho: float) -> None:
    offered = servers * rho
    blocked = 1.0
    for k in range(1, servers + 1):  # Erlang B by recursion, then C
        blocked = offered * blocked / (k + offered * blocked)
    erlang_c = blocked / (1 - rho * (1 - blocked))
    exact = erlang_c / (servers * (1 - rho))
    assert mean_wait(1.0, rho, servers) == pytest.approx(exact, rel=0.10)


@given(services, rhos, st.integers(1, 100), st.floats(50, 99.9), st.floats(50, 99.9), st.floats(0, 3))
def test_a_higher_percentile_never_waits_less(
    service: float, rho: float, servers: int, one: float, other: float, cv2: float
) -> None:
    low, high = sorted((one, other))
    assert wait_at(low, service, rho, servers, 1.0, cv2) <= wait_at(high, service, rho, servers, 1.0, cv2) * (
        1 + 1e-12
    )


@given(services, st.integers(1, 100), st.floats(50, 99.9))
def test_the_wait_explodes_as_the_server_fills(service: float, servers: int, percentile: float) -> None:
    waits = [wait_at(percentile, service, rho, servers) for rho in (0.5, 0.9, 0.99, 0.999, 0.999999)]
    assert waits == sorted(waits)
    assert waits[-1] > 1e3 * service / servers
    assert wait_at(percentile, service, 1.0, servers) == np.inf
    assert wait_at(percentile, service, 1.7, servers) == np.inf


@given(services, rhos, st.integers(1, 100))
def test_more_servers_at_the_same_utilisation_wait_less(service: float, rho: float, servers: int) -> None:
    assert mean_wait(service, rho, servers + 1) < mean_wait(service, rho, servers)


@given(services, rhos, st.floats(50.1, 99.9))
def test_a_percentile_of_one_exponential_server_is_exact(
    service: float, rho: float, percentile: float
) -> None:
    # M/M/1: P(W > t) = rho·exp(−(1 − rho)t/s).
    exact = max(np.log(rho / (1 - percentile / 100)), 0.0) * service / (1 - rho)
    assert wait_at(percentile, service, rho, 1) == pytest.approx(
        max(exact, mean_wait(service, rho, 1)), rel=1e-9
    )


def test_an_idle_server_does_not_keep_anyone_waiting() -> None:
    assert wait_at(99.0, 1.0, 0.0, 4) == 0.0


@pytest.mark.parametrize("arrivals", [0.05, 0.5, 1.0, 3.0])
def test_an_engine_whose_steps_take_all_that_waits_is_idle_only_when_none_came(arrivals: float) -> None:
    rng = np.random.default_rng(1)
    came, gaps = rng.poisson(arrivals, 40_000), rng.exponential(1.0 / arrivals, 40_000)
    simulated = 40_000 / (40_000 + gaps[came == 0].sum())
    assert running_share(np.array([arrivals]))[0] == pytest.approx(simulated, rel=0.01)
