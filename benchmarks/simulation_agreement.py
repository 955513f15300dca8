"""The cost model's steady-state formulas against the simulation: random jobs, the best deployment of each mode."""

from collections import defaultdict
from typing import Annotated, Any

import numpy as np
import typer

from afd_dse import load_job, optimize
from afd_dse.results.simulate import Options, simulate

CLUSTERS = (
    ("Qwen/Qwen3-32B-FP8", "h200_sxm", 8, "vllm"),
    ("openai/gpt-oss-120b", "b200_sxm", 8, "trtllm"),
    ("Qwen/Qwen3-30B-A3B-FP8", "h100_sxm", 8, "sglang"),
    ("deepseek-ai/DeepSeek-V3", "b200_sxm", 32, "trtllm"),
)
QUANTITIES = (
    ("tpot_ms", "mean", "tpot_ms"),
    ("ttft_ms", "mean", "ttft_ms"),
    ("ttft_ms", "p90", "ttft_percentile_ms"),
)


def drawn(rng: np.random.Generator) -> dict[str, Any]:
    """A random job: lengths over two decades, calm or varied, with limits that a good deployment meets."""
    model, accelerator, count, framework = CLUSTERS[int(rng.integers(len(CLUSTERS)))]
    varied = float(rng.choice([0.0, 0.5, 1.0]))
    return {
        "model": model,
        "framework": framework,
        "cluster": {"pools": [{"name": "main", "accelerator": accelerator, "count": count}]},
        "workload": {
            "input_tokens": {"mean": float(np.exp(rng.uniform(np.log(300), np.log(8000)))), "cv": varied},
            "output_tokens": {"mean": float(np.exp(rng.uniform(np.log(100), np.log(1500)))), "cv": varied},
        },
        "slo": {"ttft_ms": 4000.0, "tpot_ms": float(rng.choice([20.0, 40.0])), "percentile": 90.0},
        "search": {"space": "quick"},
    }


def main(
    jobs: Annotated[int, typer.Option(help="Random jobs.")] = 12,
    seed: Annotated[int, typer.Option(help="Seed of the jobs.")] = 0,
) -> None:
    """Print simulated / formula by mode: median and the range of the middle 80 per cent."""
    rng = np.random.default_rng(seed)
    ratios: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for _ in range(jobs):
        job = load_job(drawn(rng))
        varied = "varied" if job.workload.isl_cv else "equal"
        result = optimize(job, confirm=0)
        for mode, best in result.best_per_mode.items():
            if not best["feasible"]:
                continue
            # A quarter below its best load: at the very limit a queue's mean is a matter of the sample.
            rate = 0.75 * best["requests_per_s"]
            calmer = {key: value for key, value in best.items() if key != "batch_size"} | {
                "requests_per_s": rate
            }
            calmer["groups"] = [
                {key: value for key, value in group.items() if key != "batch_size"}
                for group in best["groups"]
            ]
            found = simulate(job, calmer, Options(requests=4000))
            ratios[mode, varied].append(
                [found[key][name] / found["formula"][of] for key, name, of in QUANTITIES]
            )
    head = "".join(f"{f'{of}':>28s}" for _, _, of in QUANTITIES)
    print(f"{'mode':22s}{'lengths':8s}{'n':>4s}{head}")
    for (mode, varied), rows in sorted(ratios.items()):
        low, middle, high = np.percentile(np.array(rows), [10, 50, 90], axis=0)
        cells = "".join(f"{m:14.2f} ({a:.2f} to {b:.2f})" for a, m, b in zip(low, middle, high, strict=True))
        print(f"{mode:22s}{varied:8s}{len(rows):4d}{cells}")


if __name__ == "__main__":
    typer.run(main)
