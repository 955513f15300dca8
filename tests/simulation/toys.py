"""Clocks, plants and traffic small enough to reason about, and an engine written in simpy as an oracle."""

from typing import Any

import numpy as np
import simpy

from afd_dse.simulation.plant import KvStore, Plant
from afd_dse.simulation.simulator import Simulator
from afd_dse.simulation.traffic import Requests

ROOMY = KvStore(1e15, 1.0, 0.0)


class LinearClock:
    """Step times linear in the load, independent of the context unless ``per_context`` is given."""

    def __init__(self, per_context: float = 0.0) -> None:
        self.per_context = per_context

    def decode(self, batch: float, context: float, mean_batch: float, prefilling: bool) -> float:
        slow = 2.0 if prefilling else 1.0
        return slow * (0.01 + 1e-4 * batch + self.per_context * batch * context)

    def prefill(self, tokens: float, attended: float, mean_tokens: float, decoding: float) -> float:
        return tokens * 1e-3 * (1.0 + min(decoding, 1.0))

    def mixed(
        self,
        batch: float,
        context: float,
        tokens: float,
        attended: float,
        mean_batch: float,
        mean_tokens: float,
    ) -> float:
        return 0.01 + 1e-4 * batch + 1e-3 * tokens + self.per_context * batch * context


def plant(**changes: Any) -> Plant:
    """One prefill and one decode engine of one rank each, one prompt a step, unless changed."""
    fields: dict[str, Any] = {
        "replicas": 1,
        "prefill_lanes": 1,
        "prefill_ranks": 1,
        "decode_lanes": 1,
        "decode_ranks": 1,
        "shared_steps": False,
        "prioritized": False,
        "one_cache": False,
        "interferes": False,
        "chunk_tokens": 1e9,
        "prefill_store": ROOMY,
        "decode_store": ROOMY,
    }
    return Plant(**(fields | changes))


def colocated(**changes: Any) -> Plant:
    """One engine of one rank that does both phases."""
    return plant(shared_steps=True, one_cache=True, prefill_lanes=0, **({"chunk_tokens": 256.0} | changes))


def traffic(arrivals: Any, inputs: Any, outputs: Any, **more: Any) -> Requests:
    return Requests(
        np.asarray(arrivals, dtype=np.float64),
        np.asarray(inputs, dtype=np.int64),
        np.asarray(outputs, dtype=np.int64),
        **more,
    )


def simulated(what: Plant, requests: Requests, clock: Any = None) -> Simulator:
    simulator = Simulator(what, clock or LinearClock(), requests)
    simulator.run()
    return simulator


def waits_by_simpy(arrivals: np.ndarray, services: np.ndarray, servers: int) -> np.ndarray:
    """Waiting times of a queue with ``servers`` servers, first come first served."""
    environment = simpy.Environment()
    resource = simpy.Resource(environment, servers)
    waits = np.zeros(len(arrivals))

    def customer(number: int) -> Any:
        yield environment.timeout(arrivals[number])
        with resource.request() as turn:
            yield turn
            waits[number] = environment.now - arrivals[number]
            yield environment.timeout(services[number])

    for number in range(len(arrivals)):
        environment.process(customer(number))
    environment.run()
    return waits


def engine_by_simpy(requests: Requests, clock: LinearClock, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """First-token and finish times of one colocated rank with chunked prefill, stepped one token at a time."""
    environment = simpy.Environment()
    count = len(requests)
    first, finish = np.zeros(count), np.zeros(count)
    waiting: list[list[int]] = []  # request, prompt tokens left
    running: dict[int, int] = {}  # request, tokens left
    work = [environment.event()]

    def arrivals() -> Any:
        for number in range(count):
            yield environment.timeout(requests.arrival_s[number] - environment.now)
            waiting.append([number, int(requests.input_tokens[number])])
            if not work[0].triggered:
                work[0].succeed()

    def engine() -> Any:
        ended = 0
        while ended < count:
            if not waiting and not running:
                work[0] = environment.event()
                yield work[0]
            room, pieces = chunk - len(running), []
            for entry in waiting:
                if room < 1:
                    break
                pieces.append((entry, min(entry[1], room)))
                room -= pieces[-1][1]
            batch, tokens = len(running), sum(size for _, size in pieces)
            if tokens and batch:
                yield environment.timeout(clock.mixed(batch, 0.0, tokens, 0.0, batch, tokens))
            elif tokens:
                yield environment.timeout(clock.prefill(tokens, 0.0, tokens, 0.0))
            else:
                yield environment.timeout(clock.decode(batch, 0.0, batch, False))
            for number in list(running):
                running[number] -= 1
                if not running[number]:
                    del running[number]
                    finish[number] = environment.now
                    ended += 1
            for entry, size in pieces:
                entry[1] -= size
                if not entry[1]:
                    number = entry[0]
                    first[number] = environment.now
                    running[number] = int(requests.output_tokens[number]) - 1
                    if not running[number]:
                        del running[number]
                        finish[number] = environment.now
                        ended += 1
            waiting[:] = [entry for entry in waiting if entry[1]]

    environment.process(arrivals())
    environment.process(engine())
    environment.run()
    return first, finish
