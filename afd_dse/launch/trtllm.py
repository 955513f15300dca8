"""TensorRT-LLM: the configuration of an engine, and scripts that start all of them.

Keys as of TensorRT-LLM 1.1 to 1.3 (tensorrt_llm/llmapi/llm_args.py): engines are told everything in one file, since
releases differ in whether the command line or the file has the last word.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from afd_dse.launch.placement import Place
from afd_dse.launch.plan import DECODE, PREFILL, SERVE, Engine, Plan
from afd_dse.launch.shell import IN_FOLDER, Expression, Option, command, option, router, script, yaml_text

PORT, ROUTER_PORT = 8100, 8000
# Seconds that the router waits for engines to load.
_STARTS_WITHIN_S = 3600


def configuration(plan: Plan, engine: Engine) -> dict[str, Any]:
    """Content of the file for ``--extra_llm_api_options``."""
    found: dict[str, Any] = {
        "tensor_parallel_size": engine.tp * engine.dp,
        "pipeline_parallel_size": engine.pp,
        "enable_attention_dp": engine.dp > 1,
    }
    if engine.nodes > 1:
        found["gpus_per_node"] = engine.gpus_per_node
    if engine.cp > 1:
        found["context_parallel_size"] = engine.cp
        found["cp_config"] = {"cp_type": "HELIX", "tokens_per_block": plan.block_tokens}
    if plan.experts:
        found |= {"moe_tensor_parallel_size": engine.moe_tp, "moe_expert_parallel_size": engine.ep}
    if engine.redundant:
        slots = plan.experts + engine.redundant
        found["moe_config"] = {"load_balancer": {"num_slots": slots, "layer_updates_per_iter": 1}}
    return found | _limits(plan, engine) | _between(plan, engine)


def _limits(plan: Plan, engine: Engine) -> dict[str, Any]:
    prefill = engine.role == PREFILL
    cache: dict[str, Any] = {
        "dtype": "fp8" if plan.kv_cache == "fp8" else "auto",
        "free_gpu_memory_fraction": engine.memory_fraction,
        # Helix neither reuses blocks nor cuts prompts.
        "enable_block_reuse": engine.cp == 1,
    }
    if engine.cp > 1:
        cache["tokens_per_block"] = plan.block_tokens
    graphs = {"enable_padding": True, "max_batch_size": engine.sequences}
    return {
        "max_batch_size": engine.sequences,
        "max_num_tokens": engine.tokens,
        "max_seq_len": plan.longest,
        "enable_chunked_prefill": engine.tokens < plan.longest_prompt and engine.role in (SERVE, PREFILL),
        "kv_cache_config": cache,
        "cuda_graph_config": None if prefill else graphs,
        "disable_overlap_scheduler": prefill or engine.cp > 1,
    }


def _between(plan: Plan, engine: Engine) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if plan.draft_tokens:
        found["speculative_config"] = {
            "decoding_type": "MTP",
            "num_nextn_predict_layers": plan.draft_tokens,
        }
    if plan.hands_over:
        found["cache_transceiver_config"] = {
            "backend": "DEFAULT",
            "max_tokens_in_buffer": plan.longest_prompt,
        }
    return found


def scripts(plan: Plan, places: Mapping[str, Sequence[Place]]) -> dict[str, str]:
    """A configuration and a script a role, and the router of prefill and decode."""
    found = {}
    for engine in plan.engines:
        name = f"{engine.role}.sh"
        found[f"{engine.role}.yaml"] = yaml_text(configuration(plan, engine))
        found[name] = script(name, engine, places[engine.role], _lines(plan, engine), heads=True)
    if plan.hands_over:
        servers = {
            section: {
                "num_instances": len(places[role]),
                "urls": [place.address(PORT) for place in places[role]],
            }
            for section, role in (("context_servers", PREFILL), ("generation_servers", DECODE))
        }
        found["router.yaml"] = yaml_text({"hostname": "0.0.0.0", "port": ROUTER_PORT, **servers})
        waits = [option("-t", _STARTS_WITHIN_S), option("-r", _STARTS_WITHIN_S)]
        words = ["trtllm-serve", "disaggregated", "-c", "router.yaml"]
        found["router.sh"] = router(words, waits)
    return found


def _lines(plan: Plan, engine: Engine) -> list[str]:
    options: list[Option] = [
        ("--backend", "pytorch"),
        ("--host", "0.0.0.0"),
        ("--port", Expression(f"$(({PORT} + NUMBER))")),
        option("--extra_llm_api_options", f"{engine.role}.yaml"),
    ]
    serve = ["trtllm-serve", plan.checkpoint]
    if engine.nodes == 1:
        return [IN_FOLDER, command(["exec", *serve], options)]
    every = engine.gpus_per_node
    return [
        f"{IN_FOLDER}  # the same folder on all nodes",
        f'SLOTS=$(printf "%s:{every}," "${{HOSTS[@]}}")',
        "# One rank a GPU. Under Slurm: srun with as many tasks in place of mpirun, --mpi=pmix.",
        command(
            [
                *("exec", "mpirun", "-n", str(engine.gpus), "-H"),
                *(Expression('"${SLOTS%,}"'), "-x", "CUDA_VISIBLE_DEVICES", "trtllm-llmapi-launch", *serve),
            ],
            options,
        ),
    ]
