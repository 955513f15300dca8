from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.errors import InputError
from afd_dse.simulation.traffic import Requests, requests_of, traced, whole_lengths
from afd_dse.spec.trace import read_requests
from afd_dse.spec.workload import Workload

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
MOONCAKE = (
    '{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 9]}\n'
    '{"timestamp": 1000, "input_length": 1024, "output_length": 7, "hash_ids": [1, 2]}\n'
)


def drawn(
    count: int = 20_000, seed: int = 0, rate: float = 4.0, concurrency: int = 5, **workload: Any
) -> Requests:
    given = Workload.model_validate({"input_tokens": 100, "output_tokens": 10} | workload)
    return requests_of(
        given, count=count, requests_per_s=rate, concurrency=concurrency, rng=np.random.default_rng(seed)
    )


@pytest.mark.parametrize(
    ("arrival", "cv"),
    [
        ({"kind": "poisson"}, 1.0),
        ({"kind": "gamma", "cv": 3.0}, 3.0),
        ({"kind": "gamma", "cv": 0.3}, 0.3),
    ],
)
def test_gaps_have_the_rate_and_the_variation_that_are_asked_for(arrival: dict[str, Any], cv: float) -> None:
    gaps = np.diff(drawn(count=100_000, arrival=arrival).arrival_s)
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_a_rate_that_jumps_keeps_its_mean_and_bursts_for_as_long_as_asked() -> None:
    arrival = {"kind": "mmpp", "peak_ratio": 10.0, "peak_share": 0.1, "peak_s": 50.0}
    sent = drawn(count=400_000, arrival=arrival)
    assert len(sent) / sent.arrival_s[-1] == pytest.approx(4.0, rel=0.1)
    # Base and peak rates: 4 / (0.9 + 0.1·10) and ten times that.
    counts = np.histogram(sent.arrival_s, bins=np.arange(0.0, sent.arrival_s[-1], 10.0))[0] / 10.0
    low, high = np.percentile(counts, [40, 97])
    assert low == pytest.approx(4.0 / 1.9, rel=0.2)
    assert high == pytest.approx(40.0 / 1.9, rel=0.2)
    # Jumps are rare against arrivals, where the cost model's variation of the gaps holds.
    cv2 = Workload.model_validate({"input_tokens": 1, "output_tokens": 1, "arrival": arrival}).arrival_cv2
    gaps = np.diff(sent.arrival_s)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(cv2, rel=0.1)


def test_a_closed_loop_starts_with_a_burst_of_its_concurrency() -> None:
    sent = drawn(count=50, arrival={"kind": "closed_loop", "concurrency": 5})
    assert (sent.arrival_s[:5] == 0.0).all()
    assert np.isinf(sent.arrival_s[5:]).all()
    assert not sent.steady


@settings(max_examples=30)
@given(
    st.floats(5, 5000),
    st.floats(0, 0.57),
    st.sampled_from(["lognormal", "uniform"]),
    st.integers(0, 2**32 - 1),
)
def test_lengths_have_the_mean_and_the_variation_that_are_asked_for(
    mean: float, cv: float, shape: str, seed: int
) -> None:
    values = whole_lengths(mean, cv, shape, 20_000, np.random.default_rng(seed))
    assert values.min() >= 1
    assert values.mean() == pytest.approx(mean, rel=0.05)
    assert values.std() / values.mean() == pytest.approx(cv, abs=0.05 + 0.5 / mean)


def test_lengths_of_one_trace_are_drawn_together(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("input_tokens,output_tokens\n100,1\n200,2\n300,3\n")
    sent = drawn(count=500, input_tokens={"trace": str(path)}, output_tokens={"trace": str(path)})
    assert (sent.input_tokens == 100 * sent.output_tokens).all()
    assert set(sent.output_tokens.tolist()) == {1, 2, 3}


def test_azures_and_mooncakes_traces_are_read(tmp_path: Path) -> None:
    azure, mooncake = tmp_path / "azure.csv", tmp_path / "mooncake.jsonl"
    azure.write_text(AZURE)
    mooncake.write_text(MOONCAKE)
    sent = traced(read_requests(azure), 10)
    assert sent.arrival_s.tolist() == pytest.approx([0.0, 4.314579])
    assert sent.input_tokens.tolist() == [374, 396]
    assert sent.output_tokens.tolist() == [44, 109]
    # Mooncake's are sorted by time, in milliseconds, with their blocks.
    found = traced(read_requests(mooncake), 10)
    assert found.arrival_s.tolist() == [0.0, 2.0]
    assert found.input_tokens.tolist() == [1024, 1100]
    assert found.blocks == ((1, 2), (1, 2, 9))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("input_tokens,timestamp\n5,1\n6,2\n", "no column output_tokens"),
        ('{"input_length": 5, "output_length": 5, "hash_ids": ["a"]}\n', "hash_ids"),
    ],
)
def test_a_trace_that_cannot_be_simulated_says_why(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_requests(path, "--trace")
