"""All figures of speed and scale as one table: ``python -m benchmarks``; ``list`` names the other benchmarks."""

import ast
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import answers, evaluator, growth, incumbent, start
from benchmarks.figures import Figure, Options
from benchmarks.jobs import MODELS, POOLS
from benchmarks.process import machine, machine_words
from benchmarks.table import document, render

GROUPS: Mapping[str, Callable[[Options], Iterator[Figure]]] = {
    "evaluator": evaluator.figures,
    "answers": answers.figures,
    "start": start.figures,
    "growth": growth.figures,
    "incumbent": incumbent.figures,
}
# Files that can be run, but are parts of the table.
_PARTS = ("__main__", "probes")

app = typer.Typer(
    add_completion=False, help=__doc__, context_settings={"help_option_names": ["-h", "--help"]}
)

Quick = Annotated[bool, typer.Option("--quick", help="Small sizes, one repeat each: a minute or two.")]
Limit = Annotated[float, typer.Option("--limit", help="Seconds that one measured process may take.", min=1.0)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Out = Annotated[Path | None, typer.Option("--out", help="Write the JSON document to this file.")]
AicPython = Annotated[
    str | None,
    typer.Option(
        "--aic-python", envvar="AIC_PYTHON", help="Python of an environment that holds aiconfigurator."
    ),
]


@app.callback(invoke_without_command=True)
def table(
    context: typer.Context,
    quick: Quick = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", help=f"Groups to measure: {', '.join(GROUPS)}; repeatable.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(help="How often to measure each figure.", min=1)] = None,
    limit: Limit = 900.0,
    aic_python: AicPython = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Measure everything, each in a process of its own; a figure that a busy machine spoils says so."""
    if context.invoked_subcommand is not None:
        return
    chosen = only or list(GROUPS)
    unknown = [name for name in chosen if name not in GROUPS]
    if unknown:
        raise typer.BadParameter(
            f"{', '.join(unknown)}: no such group; choose from {', '.join(GROUPS)}", param_hint="--only"
        )
    options = Options(quick=quick, limit_s=limit, repeats=repeats, aic_python=aic_python)
    facts = machine()
    said = Console(stderr=True)
    found: list[Figure] = []
    for name in chosen:
        for figure in GROUPS[name](options):
            found.append(figure)
            said.print(f"{figure.group}: {figure.name}", style="dim", highlight=False)
    _report(facts, found, out, as_json)


@app.command("growth")
def grow(
    space: Annotated[str, typer.Option(help="Search space of every point.")] = "default",
    gpus: Annotated[str, typer.Option(help="Cluster sizes.")] = ",".join(map(str, growth.GPUS)),
    pools: Annotated[int, typer.Option(min=1, max=len(POOLS))] = len(POOLS),
    models: Annotated[int, typer.Option(min=1, max=len(MODELS))] = len(MODELS),
    chart: Annotated[
        Path | None, typer.Option(help="Draw the curves into this PNG; needs a Chromium.")
    ] = None,
    limit: Limit = 900.0,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Time and memory over GPUs, kinds of GPUs, and models, with a picture."""
    try:
        sizes = sorted({int(size) for size in gpus.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise typer.BadParameter(f"{gpus}: give whole numbers, as in 8,128,1024", param_hint="--gpus")
    facts, curves = machine(), []
    found: list[Figure] = []
    for curve in growth.curves(space, sizes, pools, models, limit):
        curves.append(curve.document())
        found += growth.of_curve(curve)
        Console(stderr=True).print(f"curve over {curve.axis}", style="dim", highlight=False)
    if chart is not None:
        from benchmarks.growth_chart import draw

        draw(curves, chart)
    _report(facts, found, out, as_json)


@app.command("incumbent")
def compare(
    question: Annotated[
        list[str] | None, typer.Option(help=f"Which: {', '.join(incumbent.QUESTIONS)}; repeatable.")
    ] = None,
    limit: Limit = 3600.0,
    aic_python: AicPython = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """The same questions to aiconfigurator and to us: time, configurations, answers."""
    chosen = question or list(incumbent.USUAL)
    unknown = [name for name in chosen if name not in incumbent.QUESTIONS]
    if unknown:
        raise typer.BadParameter(
            f"{', '.join(unknown)}: choose from {', '.join(incumbent.QUESTIONS)}", param_hint="--question"
        )
    facts = machine()
    options = Options(limit_s=limit, aic_python=aic_python)
    found = [figure for name in chosen for figure in incumbent.compared(name, options)]
    _report(facts, found, out, as_json)


@app.command("page")
def renew(
    documents: Annotated[
        list[Path], typer.Argument(help="Files that --out wrote; later ones count.", exists=True)
    ],
) -> None:
    """Write stored figures into docs/performance.md, and the picture of their growth curves."""
    from benchmarks.page import renew as renew_page

    renew_page([json.loads(path.read_text(encoding="utf-8")) for path in documents])


@app.command("list")
def others() -> None:
    """The benchmarks that the table does not hold, which run on their own."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.stem not in _PARTS and "__main__" in text:
            words = ast.get_docstring(ast.parse(text)) or ""
            print(f"python -m benchmarks.{path.stem:22s} {words.splitlines()[0]}")


def _report(facts: Mapping[str, Any], found: Sequence[Figure], out: Path | None, as_json: bool) -> None:
    """Store the figures where ``out`` says, and print them: one JSON document, or the machine and a table."""
    text = json.dumps(document(facts, found), indent=1, ensure_ascii=False)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n", encoding="utf-8")
    if as_json:
        sys.stdout.write(text + "\n")
        return
    console = Console()
    _say_machine(console, facts)
    render(console, found)


def _say_machine(console: Console, facts: Mapping[str, Any]) -> None:
    load, cores = facts["load"]["1 min"], facts["cores"]
    console.print(machine_words(facts), highlight=False)
    if load > 0.25 * cores:
        text = f"The machine was busy (load {load:.1f} on {cores} cores): wall times are too long, ratios less so."
        console.print(text, style="yellow", highlight=False)
    console.print()


if __name__ == "__main__":
    app()
