"""SGLang: options of an engine, and scripts that start all of them.

Options as of SGLang 0.5.23 (python/sglang/srt/arg_groups), router as of sglang-router 0.3.2. Limits on requests and on
tokens of a step count all attention ranks together.
"""

from collections.abc import Mapping, Sequence

from afd_dse.launch.placement import Place
from afd_dse.launch.plan import DECODE, PREFILL, SERVE, Engine, Plan
from afd_dse.launch.shell import Expression, Option, command, degree, flag, option, router, script

PORT, ROUTER_PORT = 30000, 8000
_BOOTSTRAP_PORT, _INIT_PORT = 8998, 20000
# Tokens that a step of prefill holds at least, by default.
_PREFILL_TOKENS = 16384
# Tokens that a rank dispatches at once with low latency: by default, and at most.
_DISPATCHED, _MOST_DISPATCHED = 128, 1024
_DEEPEP_MODES = {PREFILL: "normal", DECODE: "low_latency", SERVE: "auto"}
# Sequences are cut into blocks that alternate among ranks, but where a model's kernels ask for single tokens.
_INTERLEAVED = ("deepseek_v32",)


def options(plan: Plan, engine: Engine, *, before_0_5_22: bool = False) -> list[Option]:
    """Options of an engine, but for the model and addresses; attention DP had another name ``before_0_5_22``."""
    found = [option("--tp-size", engine.tp * engine.dp * engine.cp), *degree("--pp-size", engine.pp)]
    if engine.dp > 1 and before_0_5_22:
        found += [option("--dp-size", engine.dp), ("--enable-dp-attention",)]
    else:
        found += degree("--attn-dp-size", engine.dp)
    return [
        *found,
        *_sequences_spread(plan, engine),
        *_experts(plan, engine),
        *_limits(plan, engine),
        *_role(plan, engine),
    ]


def environment(plan: Plan, engine: Engine) -> dict[str, str]:
    """Variables that an engine needs."""
    tokens = _dispatched(plan, engine)
    if not _exchanges(engine) or engine.role == PREFILL or not _DISPATCHED < tokens <= _MOST_DISPATCHED:
        return {}
    return {"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": str(tokens)}


def _exchanges(engine: Engine) -> bool:
    """Whether experts are spread over all ranks that attend apart, as its exchange backends want them."""
    return engine.dp > 1 and engine.ep > 1 and engine.moe_tp == 1


def _dispatched(plan: Plan, engine: Engine) -> int:
    """Tokens that a rank dispatches at once in decode."""
    return -(-engine.sequences // engine.micro_batches) * (1 + plan.draft_tokens)


def _sequences_spread(plan: Plan, engine: Engine) -> list[Option]:
    if engine.cp == 1:
        return []
    if engine.role != PREFILL:
        return [option("--dcp-size", engine.cp)]
    strategy = "interleave" if plan.family in _INTERLEAVED else "zigzag"
    return [("--enable-prefill-cp",), option("--cp-strategy", strategy), option("--attn-cp-size", engine.cp)]


def _experts(plan: Plan, engine: Engine) -> list[Option]:
    found = degree("--ep-size", engine.ep)
    if _exchanges(engine):
        mode = _DEEPEP_MODES[engine.role] if _dispatched(plan, engine) <= _MOST_DISPATCHED else "normal"
        found += [option("--moe-a2a-backend", "deepep"), option("--deepep-mode", mode)]
    if engine.redundant:
        found += [option("--ep-num-redundant-experts", engine.redundant), ("--enable-eplb",)]
    return [*found, *flag("--enable-two-batch-overlap", engine.micro_batches > 1)]


def _limits(plan: Plan, engine: Engine) -> list[Option]:
    found = [
        option("--max-running-requests", engine.sequences * engine.dp),
        option("--context-length", plan.longest),
        option("--mem-fraction-static", engine.memory_fraction),
        option("--kv-cache-dtype", "fp8_e4m3" if plan.kv_cache == "fp8" else "bfloat16"),
    ]
    if engine.role != DECODE:
        found += [
            option("--chunked-prefill-size", engine.tokens * engine.dp),
            option("--max-prefill-tokens", max(_PREFILL_TOKENS, engine.tokens)),
        ]
    if engine.role != PREFILL:
        found.append(option("--cuda-graph-max-bs-decode", engine.sequences))
    if plan.draft_tokens:
        found += [
            option("--speculative-algorithm", "EAGLE"),
            option("--speculative-num-steps", plan.draft_tokens),
            option("--speculative-eagle-topk", 1),
            option("--speculative-num-draft-tokens", plan.draft_tokens + 1),
        ]
    return found


def _role(plan: Plan, engine: Engine) -> list[Option]:
    if not plan.hands_over:
        return []
    return [
        option("--disaggregation-mode", engine.role),
        option("--disaggregation-transfer-backend", "nixl"),
    ]


def scripts(plan: Plan, places: Mapping[str, Sequence[Place]]) -> dict[str, str]:
    """A script a role, and one of the router where there is anything to choose between."""
    found = {}
    for engine in plan.engines:
        name = f"{engine.role}.sh"
        found[name] = script(name, engine, places[engine.role], _lines(plan, engine))
    urls = {role: [f"http://{place.address(PORT)}" for place in places[role]] for role in places}
    lists: list[Option]
    if plan.hands_over:
        ports = [str(_BOOTSTRAP_PORT + place.number) for place in places[PREFILL]]
        prefill = (("--prefill", url, port) for url, port in zip(urls[PREFILL], ports, strict=True))
        lists = [("--pd-disaggregation",), *prefill, *(("--decode", url) for url in urls[DECODE])]
    elif len(urls[SERVE]) > 1:
        lists = [("--worker-urls", *urls[SERVE])]
    else:
        return found
    where = [option("--host", "0.0.0.0"), option("--port", ROUTER_PORT)]
    words = ["python3", "-m", "sglang_router.launch_router"]
    return found | {"router.sh": router(words, [*where, *lists], "sglang-router")}


def _lines(plan: Plan, engine: Engine) -> list[str]:
    where: list[Option] = [("--host", "0.0.0.0"), ("--port", Expression(f"$(({PORT} + NUMBER))"))]
    if engine.role == PREFILL:
        where.append(("--disaggregation-bootstrap-port", Expression(f"$(({_BOOTSTRAP_PORT} + NUMBER))")))
    if engine.nodes > 1:
        where += [
            option("--nnodes", engine.nodes),
            ("--node-rank", Expression('"$RANK"')),
            ("--dist-init-addr", Expression(f'"$HEAD:$(({_INIT_PORT} + NUMBER))"')),
        ]
    words = ["exec", "python3", "-m", "sglang.launch_server", "--model-path", plan.checkpoint]
    exports = [f"export {name}={value}" for name, value in environment(plan, engine).items()]
    return [*exports, command(words, [*where, *options(plan, engine)])]
