"""vLLM: options of an engine, and scripts that start all of them.

Options as of vLLM 0.33 (vllm/engine/arg_utils.py and vllm/config/), router as of vllm-router 0.1.17, AFD as the
afd-plugin (vllm-project/afd-plugin) takes it.
"""

import json
import shlex
from collections.abc import Mapping, Sequence

from afd_dse.launch.placement import Place
from afd_dse.launch.plan import ATTENTION, DECODE, FFN, PREFILL, SERVE, Engine, Plan
from afd_dse.launch.shell import Expression, Option, command, degree, flag, option, router, script

PORT, ROUTER_PORT = 8000, 8080
# Ports of engines on one node lie so far apart; each of their data parallel ranks takes one for handing KV over.
_KV_PORT, _KV_PORTS = 5600, 128
_MASTER_PORT, _RPC_PORT, _AFD_PORT = 29501, 29650, 6239
# Caches in 8 bits are the default of these, so that other types must be named.
_PACKED = ("deepseek_v32",)
_NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}


def options(plan: Plan, engine: Engine) -> list[Option]:
    """Options of ``vllm serve`` for an engine, but for addresses."""
    # Of decode the ranks of TP spread sequences, in prefill others do.
    spread = engine.cp if engine.role != PREFILL else 1
    degrees = [
        *degree("--tensor-parallel-size", engine.tp * spread),
        *degree("--prefill-context-parallel-size", engine.cp // spread),
        *degree("--decode-context-parallel-size", spread),
        *degree("--pipeline-parallel-size", engine.pp),
        *degree("--data-parallel-size", engine.dp),
    ]
    if engine.role == FFN:
        degrees = [
            *degree("--tensor-parallel-size", engine.moe_tp),
            *degree("--data-parallel-size", engine.ep),
        ]
    return [*degrees, *_experts(plan, engine), *_limits(plan, engine), *_between(plan, engine)]


def _experts(plan: Plan, engine: Engine) -> list[Option]:
    ffn = plan.engine(FFN)
    spread = (ffn or engine).ep > 1
    found = flag("--enable-expert-parallel", spread)
    if spread and engine.dp > 1 and ffn is None:
        latency = engine.role == DECODE
        found.append(
            option("--all2all-backend", "deepep_low_latency" if latency else "deepep_high_throughput")
        )
    if engine.redundant:
        found += [("--enable-eplb",), option("--eplb-config", {"num_redundant_experts": engine.redundant})]
    return found


def _limits(plan: Plan, engine: Engine) -> list[Option]:
    cache = "fp8" if plan.kv_cache == "fp8" else "bfloat16" if plan.family in _PACKED else "auto"
    found = [
        option("--max-num-seqs", engine.sequences),
        option("--max-num-batched-tokens", max(engine.tokens, engine.sequences)),
        option("--max-model-len", plan.longest),
        option("--gpu-memory-utilization", engine.memory_fraction),
        option("--kv-cache-dtype", cache),
        *flag("--enable-prefix-caching", plan.prefix_caching),
    ]
    if plan.draft_tokens:
        drafts = {"method": "mtp", "num_speculative_tokens": plan.draft_tokens}
        found.append(option("--speculative-config", drafts))
    return found


def _between(plan: Plan, engine: Engine) -> list[Option]:
    """Micro-batches, and what groups of GPUs tell each other."""
    found = flag("--enable-dbo", engine.micro_batches > 1)
    if engine.role in (ATTENTION, FFN):
        # Every micro-batch goes through the other side: there is no size below which that does not pay.
        found += [option("--dbo-decode-token-threshold", 2), option("--dbo-prefill-token-threshold", 12)]
    if plan.hands_over and engine.role != FFN:
        found.append(option("--kv-transfer-config", _NIXL))
    return found


def _afd(plan: Plan, engine: Engine, partners: Sequence[Place]) -> tuple[list[str], list[Option]]:
    """What the AFD plugin is told: lines of a script, and options. ``partners`` are the places of the FFN engines."""
    attention, ffn = plan.engine(ATTENTION), plan.engine(FFN)
    if attention is None or ffn is None or engine.role not in (ATTENTION, FFN):
        return [], []
    settings = {
        "role": engine.role,
        "connector": "P2pNcclAFDConnector",
        "host": "${FFN_HOST[ENGINE]}",
        "port": 0,
        "num_attention_ranks": attention.gpus,
        "num_ffn_ranks": ffn.gpus,
    }
    text = json.dumps({"afd": settings}).replace('"port": 0', '"port": ${FFN_PORT[ENGINE]}')
    lines = [
        f"FFN_HOST=({' '.join(shlex.quote(place.hosts[0]) for place in partners)})",
        f"FFN_PORT=({' '.join(str(_AFD_PORT + place.number) for place in partners)})",
        "export VLLM_USE_V2_MODEL_RUNNER=0  # as the plugin asks for",
    ]
    quoted = text.replace('"', '\\"')
    return lines, [("--additional-config", Expression(f'"{quoted}"'))]


def warnings(plan: Plan) -> list[str]:
    """What may keep the engines of a plan from starting, and no term of the catalogue tells."""
    prefill, decode = plan.engine(PREFILL), plan.engine(DECODE) or plan.engine(ATTENTION)
    if prefill is None or decode is None or max(decode.tp, prefill.tp) % min(decode.tp, prefill.tp) == 0:
        return []
    return [
        f"prefill cuts attention {prefill.tp} ways and decode {decode.tp}: vLLM's NIXL connector wants one to divide "
        "the other"
    ]


def scripts(plan: Plan, places: Mapping[str, Sequence[Place]]) -> dict[str, str]:
    """A script a role, and one of the router where there is anything to choose between."""
    found = {}
    for engine in plan.engines:
        name = f"{engine.role}.sh"
        found[name] = script(name, engine, places[engine.role], _lines(plan, engine, places))
    heads = {
        role: [f"http://{place.address(PORT)}" for place in places[role]] for role in places if role != FFN
    }
    if plan.hands_over:
        decode = heads.get(DECODE) or heads[ATTENTION]
        lists = [option("--prefill", url) for url in heads[PREFILL]]
        lists += [option("--decode", url) for url in decode]
        lists = [("--vllm-pd-disaggregation",), *lists]
    elif len(heads[SERVE]) > 1:
        lists = [("--worker-urls", *heads[SERVE])]
    else:
        return found
    where = [option("--host", "0.0.0.0"), option("--port", ROUTER_PORT)]
    return found | {"router.sh": router(["vllm-router"], [*where, *lists], "vllm-router")}


def _lines(plan: Plan, engine: Engine, places: Mapping[str, Sequence[Place]]) -> list[str]:
    lines, afd = _afd(plan, engine, places.get(FFN, ()))
    if plan.hands_over and engine.role != FFN:
        lines += [
            "# Where other engines fetch KV: an address of this node that they reach.",
            "export VLLM_NIXL_SIDE_CHANNEL_HOST=$HERE",
            f"export VLLM_NIXL_SIDE_CHANNEL_PORT=$(({_KV_PORT} + {_KV_PORTS} * NUMBER))",
        ]
    where: list[Option] = [("--host", "0.0.0.0"), ("--port", Expression(f"$(({PORT} + NUMBER))"))]
    if engine.nodes > 1:
        lines += [
            f'NODE=(--nnodes {engine.nodes} --node-rank "$RANK" --master-addr "$HEAD"',
            f"  --master-port $(({_MASTER_PORT} + NUMBER)) --data-parallel-rpc-port $(({_RPC_PORT} + NUMBER)))",
            'if [ "$RANK" -gt 0 ]; then NODE+=(--headless); fi',
        ]
        where.append((Expression('"${NODE[@]}"'),))
    words = ["exec", "vllm", "serve", plan.checkpoint]
    return [*lines, command(words, [*where, *options(plan, engine), *afd])]
