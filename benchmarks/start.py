"""How long the command line takes from a cold process."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, Options, Target, busy
from benchmarks.jobs import DEPLOYMENT, deepseek
from benchmarks.process import CLI, NotMeasuredError, run

GROUP = "from the command line"


def figures(options: Options) -> Iterator[Figure]:
    """``--help``, the first estimate, and a whole answer, start and reading of tables included."""
    with tempfile.TemporaryDirectory(prefix="afd-dse-benchmarks-") as folder:
        job, deployment = Path(folder) / "job.json", Path(folder) / "deployment.json"
        job.write_text(json.dumps(deepseek(space=options.space)), encoding="utf-8")
        deployment.write_text(json.dumps(DEPLOYMENT), encoding="utf-8")
        commands: Sequence[tuple[str, list[str], float | None, int]] = (
            ("afd-dse --help", ["--help"], 0.5, 5),
            ("afd-dse estimate", ["estimate", str(job), str(deployment)], 1.5, 5),
            (f"afd-dse optimize, {options.space} space", ["optimize", str(job)], None, 1),
        )
        for name, arguments, seconds, usual in commands:
            target = None if seconds is None else Target("at most", seconds)
            yield _timed(name, arguments, target, options, options.times(usual))


def _timed(
    name: str, arguments: Sequence[str], target: Target | None, options: Options, times: int
) -> Figure:
    try:
        runs = [run([*CLI, *arguments], limit_s=options.limit_s) for _ in range(times)]
    except NotMeasuredError as error:
        return Figure(GROUP, name, None, "s", target, str(error))
    failed = next((found for found in runs if found.returncode), None)
    if failed is not None:
        lines = failed.stderr.strip().splitlines() or ["no message"]
        return Figure(GROUP, name, None, "s", target, f"exit code {failed.returncode}: {lines[-1]}")
    wall, cpu = median(found.wall_s for found in runs), median(found.cpu_s for found in runs)
    facts = {"wall_s": [found.wall_s for found in runs], "cpu_s": [found.cpu_s for found in runs]}
    return Figure(GROUP, name, wall, "s", target, busy(wall, cpu), facts)
