import pytest

from afd_dse.launch.plan import ATTENTION, DECODE, FFN, PREFILL, SERVE
from tests.launch.deployments import deployment, plan


@pytest.mark.parametrize(
    ("name", "roles"),
    [("colocated", (SERVE,)), ("pd", (PREFILL, DECODE)), ("afd", (PREFILL, ATTENTION, FFN))],
)
def test_engines_are_the_groups_of_the_deployment_and_have_its_gpus(
    name: str, roles: tuple[str, ...]
) -> None:
    found = plan("vllm", name)
    assert tuple(engine.role for engine in found.engines) == roles
    assert sum(e.gpus * e.replicas for e in found.engines) == deployment("vllm", name)["gpus"]
    assert all(engine.gpus == engine.nodes * engine.gpus_per_node for engine in found.engines)
    assert all(engine.gpus_per_node <= engine.node_gpus for engine in found.engines)


def test_a_batch_may_exceed_its_mean_and_a_step_holds_what_is_asked_of_it() -> None:
    serve = plan("trtllm", "colocated").engine(SERVE)
    assert serve is not None
    assert serve.sequences == 25 + 3 * 5
    assert serve.tokens == 2048
    pd = plan("trtllm", "pd")
    prefill, decode = pd.engine(PREFILL), pd.engine(DECODE)
    assert prefill is not None
    assert decode is not None
    # Two prompts of 4,096 tokens fill a step of 8,192; a third has begun.
    assert (prefill.sequences, prefill.tokens) == (3, 8192)
    assert decode.tokens == decode.sequences


def test_drafts_take_room_in_a_step_of_decode_and_in_a_request() -> None:
    drafting = plan("trtllm", "pd", speculative={"draft_tokens": 1, "accepted_tokens_per_step": 1.7})
    decode = drafting.engine(DECODE)
    assert decode is not None
    assert decode.tokens == 2 * decode.sequences
    assert drafting.draft_tokens == 1


def test_the_longest_request_leaves_room_above_the_mean_and_grows_with_the_variation_of_lengths() -> None:
    fixed = plan("trtllm", "pd")
    workload = {"input_tokens": {"mean": 4096, "cv": 1.0}, "output_tokens": 1024}
    varied = plan("trtllm", "pd", workload=workload)
    assert fixed.longest > 4096 + 1024
    assert varied.longest_prompt > 3 * 4096
    assert varied.longest >= varied.longest_prompt + 1024


def test_memory_is_what_the_framework_may_fill() -> None:
    shares = {"trtllm": 0.9, "sglang": 0.95, "vllm": 0.92}
    found = {name: {e.memory_fraction for e in plan(name, "pd").engines} for name in shares}
    assert found == {name: {share} for name, share in shares.items()}


def test_a_cached_prefix_asks_for_prefix_caching() -> None:
    workload = {"input_tokens": 4096, "output_tokens": 1024, "prefix_tokens": 2048}
    assert plan("vllm", "pd", workload=workload).prefix_caching
    assert not plan("vllm", "pd").prefix_caching
