"""Scripts and configurations of the three frameworks."""

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from afd_dse.launch import sglang, trtllm, vllm
from afd_dse.launch.placement import Place, places_of
from afd_dse.launch.plan import DECODE, PREFILL, SERVE, Engine, Plan
from afd_dse.launch.shell import Option
from tests.launch.deployments import plan

Writer = Callable[[Plan, Mapping[str, Sequence[Place]]], dict[str, str]]
WRITERS: dict[str, Writer] = {"vllm": vllm.scripts, "sglang": sglang.scripts, "trtllm": trtllm.scripts}
BASH = shutil.which("bash") or "bash"
CASES = [("vllm", "afd"), *((name, mode) for name in WRITERS for mode in ("colocated", "pd"))]


def scripts(framework: str, name: str) -> dict[str, str]:
    found = plan(framework, name)
    return WRITERS[framework](found, places_of(found))


def engine(found: Plan, role: str) -> Engine:
    one = found.engine(role)
    assert one is not None
    return one


def printing(folder: Path, line: str) -> dict[str, str]:
    """An environment in which frameworks do ``line`` instead of serving."""
    for command in ("vllm", "python3", "trtllm-serve", "mpirun", "vllm-router"):
        (folder / command).write_text(f"#!/bin/sh\n{line}\n")
        (folder / command).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def values(options: Sequence[Option]) -> dict[str, str]:
    return {one[0]: " ".join(one[1:]) for one in options}


@pytest.mark.parametrize(("framework", "name"), CASES)
def test_every_engine_of_every_node_runs_its_command_with_its_own_gpus_and_port(
    framework: str, name: str, tmp_path: Path
) -> None:
    environment = printing(tmp_path, 'echo "$CUDA_VISIBLE_DEVICES|$VLLM_NIXL_SIDE_CHANNEL_HOST|$*"')
    found = plan(framework, name)
    places = places_of(found)
    for file, text in scripts(framework, name).items():
        (tmp_path / file).write_text(text)
    seen = []
    for one in found.engines:
        for number, place in enumerate(places[one.role]):
            ranks = range(1 if framework == "trtllm" else one.nodes)
            for rank in ranks:
                words = [BASH, str(tmp_path / f"{one.role}.sh"), str(number), str(rank)]
                done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
                gpus, here, line = done.stdout.strip().split("|", 2)
                assert gpus == ",".join(map(str, place.gpus))
                assert here in ("", place.hosts[rank])
                assert "deepseek-ai/DeepSeek-V3" in line
                told = line.split()
                seen.append((place.hosts[0], rank, told[told.index("--port") + 1]))
    assert len(seen) == len(set(seen))
    if "router.sh" in scripts(framework, name):
        done = subprocess.run(
            [BASH, str(tmp_path / "router.sh")], env=environment, capture_output=True, text=True, check=True
        )
        for place in places.get(PREFILL, places.get(SERVE, [])):
            assert f"{place.hosts[0]}:" in done.stdout + scripts(framework, name).get("router.yaml", "")


def test_a_script_without_its_number_says_what_it_wants(tmp_path: Path) -> None:
    (tmp_path / "decode.sh").write_text(scripts("vllm", "pd")["decode.sh"])
    done = subprocess.run([BASH, str(tmp_path / "decode.sh")], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "number of the engine, 0 to 0" in done.stderr


def test_vllm_counts_ranks_by_tp_and_dp_and_limits_by_rank() -> None:
    found = plan("vllm", "pd")
    decode = values(vllm.options(found, engine(found, DECODE)))
    assert decode["--data-parallel-size"] == "16"
    assert "--tensor-parallel-size" not in decode
    assert "--enable-expert-parallel" in decode
    assert decode["--all2all-backend"] == "deepep_low_latency"
    assert decode["--max-num-seqs"] == "40"
    assert json.loads(decode["--kv-transfer-config"])["kv_connector"] == "NixlConnector"
    assert "--enable-dbo" not in decode
    overlapped = plan("vllm", "overlapped")
    assert "--enable-dbo" in values(vllm.options(overlapped, engine(overlapped, DECODE)))
    prefill = values(vllm.options(found, engine(found, PREFILL)))
    assert prefill["--max-num-batched-tokens"] == "8192"
    alone = plan("vllm", "colocated")
    assert "--kv-transfer-config" not in values(vllm.options(alone, engine(alone, SERVE)))


def test_attention_cut_in_ways_that_do_not_divide_each_other_is_warned_of_under_vllm() -> None:
    found = plan("vllm", "pd")
    prefill, decode = engine(found, PREFILL), engine(found, DECODE)
    for ways, warned in (((4, 1), False), ((1, 4), False), ((4, 8), False), ((3, 2), True), ((2, 3), True)):
        engines = replace(prefill, tp=ways[0]), replace(decode, tp=ways[1])
        assert len(vllm.warnings(replace(found, engines=engines))) == warned


def test_both_sides_of_afd_are_told_of_each_other(tmp_path: Path) -> None:
    environment = printing(tmp_path, 'printf "%s\\n" "$@"')
    found = scripts("vllm", "afd")
    places = places_of(plan("vllm", "afd"))
    for role in ("attention", "ffn"):
        (tmp_path / f"{role}.sh").write_text(found[f"{role}.sh"])
        for number, partner in enumerate(places["ffn"]):
            words = [BASH, str(tmp_path / f"{role}.sh"), str(number), "0"]
            told = subprocess.run(
                words, env=environment, capture_output=True, text=True, check=True
            ).stdout.split("\n")
            afd = json.loads(told[told.index("--additional-config") + 1])["afd"]
            assert afd["role"] == role
            assert afd["host"] == partner.hosts[0]
            assert (afd["num_attention_ranks"], afd["num_ffn_ranks"]) == (16, 8)
            assert "--enable-dbo" in told
            assert ("--kv-transfer-config" in told) == (role == "attention")
    # Requests of decode go to attention.
    assert all(f"--decode http://{place.hosts[0]}:" in found["router.sh"] for place in places["attention"])


def test_sglang_counts_all_ranks_as_tp_and_limits_over_all_of_them() -> None:
    found = plan("sglang", "colocated")
    serve = values(sglang.options(found, engine(found, SERVE)))
    assert (serve["--tp-size"], serve["--attn-dp-size"], serve["--ep-size"]) == ("16", "16", "16")
    assert serve["--max-running-requests"] == str(40 * 16)
    assert serve["--chunked-prefill-size"] == str(2048 * 16)
    assert serve["--cuda-graph-max-bs-decode"] == "40"
    assert serve["--kv-cache-dtype"] == "fp8_e4m3"
    older = values(sglang.options(found, engine(found, SERVE), before_0_5_22=True))
    assert older["--dp-size"] == "16"
    assert "--enable-dp-attention" in older
    assert "--attn-dp-size" not in older


def test_trtllm_counts_all_ranks_as_tp_and_prefill_has_no_overlap_of_steps() -> None:
    found = plan("trtllm", "pd")
    prefill, decode = (trtllm.configuration(found, engine(found, role)) for role in (PREFILL, DECODE))
    assert decode["tensor_parallel_size"] == 16
    assert decode["enable_attention_dp"]
    assert decode["moe_tensor_parallel_size"] * decode["moe_expert_parallel_size"] == 16
    assert decode["max_batch_size"] == decode["cuda_graph_config"]["max_batch_size"] == 40
    assert prefill["disable_overlap_scheduler"]
    assert not decode["disable_overlap_scheduler"]
    assert prefill["cache_transceiver_config"]["max_tokens_in_buffer"] >= 4096
    router = yaml.safe_load(scripts("trtllm", "pd")["router.yaml"])
    for section in ("context_servers", "generation_servers"):
        assert router[section]["num_instances"] == len(router[section]["urls"])


def test_an_mpi_rank_a_gpu_is_started_on_every_node() -> None:
    text = scripts("trtllm", "colocated")["serve.sh"]
    assert "mpirun -n 16" in text
    assert '"%s:8,"' in text


def test_sequences_spread_over_gpus_are_spread_as_each_framework_counts_its_ranks() -> None:
    found = plan("vllm", "context")
    options = values(vllm.options(found, engine(found, DECODE)))
    # Ranks of TP hold a sequence's parts.
    assert (options["--tensor-parallel-size"], options["--decode-context-parallel-size"]) == ("2", "2")
    found = plan("sglang", "context")
    options = values(sglang.options(found, engine(found, DECODE)))
    assert (options["--tp-size"], options["--dcp-size"], options["--attn-dp-size"]) == ("16", "2", "8")
    found = plan("trtllm", "context")
    configuration = trtllm.configuration(found, engine(found, DECODE))
    assert configuration["tensor_parallel_size"] * configuration["context_parallel_size"] == 16
    cache = configuration["kv_cache_config"]
    assert cache["tokens_per_block"] == configuration["cp_config"]["tokens_per_block"]
    assert not cache["enable_block_reuse"]


def test_drafts_are_those_of_the_models_own_module() -> None:
    drafting = {"speculative": {"draft_tokens": 2, "accepted_tokens_per_step": 2.2}}
    found = plan("vllm", "pd", **drafting)
    options = values(vllm.options(found, engine(found, DECODE)))
    assert json.loads(options["--speculative-config"]) == {"method": "mtp", "num_speculative_tokens": 2}
    found = plan("sglang", "pd", **drafting)
    options = values(sglang.options(found, engine(found, DECODE)))
    assert options["--speculative-num-steps"] == "2"
    assert options["--speculative-num-draft-tokens"] == "3"
    found = plan("trtllm", "pd", **drafting)
    configuration = trtllm.configuration(found, engine(found, DECODE))
    assert configuration["speculative_config"]["num_nextn_predict_layers"] == 2
    assert configuration["max_num_tokens"] == 3 * configuration["max_batch_size"]


def test_deepeps_buffers_hold_what_a_rank_dispatches_at_once() -> None:
    found = plan("sglang", "overlapped")
    decode = engine(found, DECODE)
    assert "--enable-two-batch-overlap" in values(sglang.options(found, decode))
    assert sglang.environment(found, decode) == {}
    name = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
    assert sglang.environment(found, replace(decode, sequences=600)) == {name: "300"}
    # More than they can hold goes the other way.
    large = replace(decode, sequences=4000)
    assert sglang.environment(found, large) == {}
    assert values(sglang.options(found, large))["--deepep-mode"] == "normal"


def test_redundant_experts_are_slots_beyond_those_of_the_model() -> None:
    found = plan("trtllm", "pd")
    decode = replace(engine(found, DECODE), redundant=32)
    balancer = trtllm.configuration(found, decode)["moe_config"]["load_balancer"]
    assert balancer["num_slots"] == 256 + 32
    told = values(vllm.options(found, decode))
    assert json.loads(told["--eplb-config"]) == {"num_redundant_experts": 32}
    assert values(sglang.options(found, decode))["--ep-num-redundant-experts"] == "32"
