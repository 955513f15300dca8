"""Prefill engines are queues: theory and simpy say how long one waits."""

from math import factorial

import numpy as np
import pytest

from afd_dse.cost.queueing import conditional_wait, waiting_probability
from tests.simulation.toys import LinearClock, plant, simulated, traffic, waits_by_simpy

SECONDS_PER_TOKEN = 1e-3
MEAN_TOKENS = 1000.0  # hence a mean service of one second
REQUESTS = 40_000
# Utilisation, and how well the mean of so many waits is known: a busy queue remembers long.
SAMPLING = {0.3: 0.05, 0.7: 0.06, 0.85: 0.12}


def drawn(kind: str, rng: np.random.Generator, count: int) -> np.ndarray:
    """Prompts of a mean of 1000 tokens: exponential, constant, or widely varying (cv 2)."""
    if kind == "M":
        return np.maximum(np.rint(rng.exponential(MEAN_TOKENS, count)), 1.0)
    if kind == "D":
        return np.full(count, MEAN_TOKENS)
    return np.maximum(
        np.rint(rng.lognormal(np.log(MEAN_TOKENS) - np.log(5.0) / 2, np.log(5.0) ** 0.5, count)), 1
    )


def waits(kind: str, servers: int, load: float, seed: int, count: int = REQUESTS) -> tuple[np.ndarray, ...]:
    """Simulated waits, arrivals and services of M/``kind``/``servers`` at utilisation ``load``."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1.0 / (load * servers), count))
    prompts = drawn(kind, rng, count)
    queue = plant(prefill_lanes=servers, prompts_per_step=1, routing="shared_queue")
    found = simulated(queue, traffic(arrivals, prompts, np.ones(count))).book
    return np.array(found.start_s) - arrivals, arrivals, prompts * SECONDS_PER_TOKEN


def erlang_c(servers: int, load: float) -> float:
    offered = servers * load
    last = offered**servers / factorial(servers) / (1.0 - load)
    return last / (sum(offered**k / factorial(k) for k in range(servers)) + last)


@pytest.mark.parametrize("load", SAMPLING)
def test_one_server_with_exponential_service_waits_as_erlang_says(load: float) -> None:
    found = waits("M", 1, load, seed=1)[0]
    assert found.mean() == pytest.approx(load / (1.0 - load), rel=SAMPLING[load])
    # The wait is zero or exponential: P(W > t) = rho · exp(-(1 - rho) t).
    assert (found > 2.0).mean() == pytest.approx(load * np.exp(-2.0 * (1.0 - load)), rel=0.1)


@pytest.mark.parametrize("load", SAMPLING)
def test_constant_service_halves_the_wait(load: float) -> None:
    found = waits("D", 1, load, seed=2)[0]
    assert found.mean() == pytest.approx(load / (1.0 - load) / 2.0, rel=SAMPLING[load])


def test_varying_service_lengthens_the_wait_as_pollaczek_and_khinchine_say() -> None:
    found, _, services = waits("G", 1, 0.5, seed=3)
    variation = services.var() / services.mean() ** 2
    expected = 0.5 / (1.0 - 0.5) * (1.0 + variation) / 2.0 * services.mean()
    assert found.mean() == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(("servers", "load"), [(2, 0.7), (4, 0.7), (8, 0.85)])
def test_several_servers_of_one_queue_wait_as_erlang_says(servers: int, load: float) -> None:
    found = waits("M", servers, load, seed=4)[0]
    probability = erlang_c(servers, load)
    assert (found > 0.0).mean() == pytest.approx(probability, rel=0.08)
    assert found.mean() == pytest.approx(probability / (servers * (1.0 - load)), rel=0.12)


@pytest.mark.parametrize(
    ("kind", "servers", "load"), [("M", 1, 0.8), ("D", 3, 0.9), ("G", 1, 0.6), ("G", 5, 0.8)]
)
def test_every_single_wait_is_that_of_simpy(kind: str, servers: int, load: float) -> None:
    found, arrivals, services = waits(kind, servers, load, seed=5, count=3000)
    assert np.allclose(found, waits_by_simpy(arrivals, services, servers), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(("kind", "cv2"), [("M", 1.0), ("D", 0.0), ("G", 4.0)])
def test_the_cost_models_wait_is_that_of_the_simulated_queue(kind: str, cv2: float) -> None:
    for servers, load in ((1, 0.8), (4, 0.8)):
        found, _, services = waits(kind, servers, load, seed=6)
        probability = waiting_probability(np.array([load]), np.array([float(servers)]))
        conditional = conditional_wait(
            np.array([1.0]),
            np.array([load]),
            np.array([float(servers)]),
            1.0,
            services.var() / services.mean() ** 2,
        )
        # Allen and Cunneen's formula is an approximation for several servers.
        assert found.mean() == pytest.approx(float((probability * conditional)[0]), rel=0.25), (servers, cv2)


class BatchClock(LinearClock):
    """A prefill step takes ``base`` seconds and ``each`` for every prompt of 100 tokens in it."""

    def __init__(self, base: float, each: float) -> None:
        super().__init__()
        self.base, self.each = base, each

    def prefill(self, tokens: float, attended: float, mean_tokens: float, decoding: float) -> float:
        return self.base + self.each * tokens / 100.0


def batch_response(rate: float, base: float, each: float) -> float:
    """Mean time in a server that takes all that waits at once, a tight bound (Inoue 2021, arXiv 1912.06322)."""
    load = rate * each
    light = (
        (each + base) / (2.0 * (1.0 - load)) * (1.0 + 2.0 * rate * base + (1.0 - rate * base) / (1.0 + load))
    )
    heavy = 1.5 * base / (1.0 - load) + each / 2.0 * (load + 2.0) / (1.0 - load**2)
    return min(light, heavy)


@pytest.mark.parametrize(("base", "each"), [(0.0, 1.0), (1.0, 0.2), (1.0, 1.0)])
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_an_engine_that_packs_what_waits_into_a_step_answers_as_inoue_says(
    base: float, each: float, load: float
) -> None:
    rng = np.random.default_rng(5)
    sent = traffic(
        np.cumsum(rng.exponential(each / load, REQUESTS)), np.full(REQUESTS, 100), np.ones(REQUESTS)
    )
    found = simulated(plant(), sent, BatchClock(base, each)).book
    response = float((np.array(found.first_s) - sent.arrival_s).mean())
    assert response == pytest.approx(batch_response(load / each, base, each), rel=0.07)


def test_routing_without_a_shared_queue_waits_longer() -> None:
    rng = np.random.default_rng(7)
    count = 8000
    requests = traffic(np.cumsum(rng.exponential(1 / 3.2, count)), drawn("M", rng, count), np.ones(count))

    def mean(routing: str) -> float:
        queue = plant(prefill_lanes=4, prompts_per_step=1, routing=routing)
        found = simulated(queue, requests, LinearClock()).book
        return float((np.array(found.start_s) - requests.arrival_s).mean())

    shared, least, turns = mean("shared_queue"), mean("least_loaded"), mean("round_robin")
    assert shared < 1.02 * least < turns
