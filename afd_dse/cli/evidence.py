"""Commands that hold the model to what others measured and published."""

from pathlib import Path
from typing import Annotated

import typer

from afd_dse.cli.errors import DONE
from afd_dse.cli.root import AsJson, CalibrationOption, app, print_json


@app.command()
def validate(
    measured: Annotated[
        Path,
        typer.Argument(metavar="MEASURED.csv", help="Measured runs, or measured KV capacities, one a row."),
    ],
    predictions: Annotated[
        Path | None, typer.Option("--predictions", metavar="OUT.csv", help="Write every row's prediction.")
    ] = None,
    calibration: CalibrationOption = None,
    as_json: AsJson = False,
) -> int:
    """Compare predictions with measured runs: errors, intervals, regret of the choice."""
    from afd_dse.calibration.api import validate as run
    from afd_dse.calibration.files import check_target, write_predictions

    if predictions is not None:
        check_target(predictions, "--predictions")
    facts, table = run(measured, calibration or "default")
    if predictions is not None:
        write_predictions(table, predictions)
    if as_json:
        print_json(facts)
    else:
        from afd_dse.cli.accuracy import print_validation

        print_validation(facts, measured)
    return DONE


@app.command()
def calibrate(
    measured: Annotated[
        Path, typer.Argument(metavar="MY_RUNS.csv", help="Your measured runs, five or more.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The calibration file to write.")] = Path(
        "calibration.yaml"
    ),
    start: Annotated[
        str | None,
        typer.Option("--start", metavar="default|none|FILE", help="What the fit shrinks to; none: fit anew."),
    ] = "default",
    as_json: AsJson = False,
) -> int:
    """Fit what engines take beyond their kernels to your own runs."""
    from afd_dse.calibration.api import calibrate as run
    from afd_dse.calibration.files import check_target, write_calibration

    check_target(out, "--out")
    fitted, errors = run(measured, None if start in (None, "none") else start)
    write_calibration(fitted, out)
    if as_json:
        print_json({"calibration": fitted.model_dump(mode="json"), "written": str(out), **errors})
    else:
        from afd_dse.cli.accuracy import print_calibration

        print_calibration(fitted, errors, out, set(errors["after"]["by"]["framework"]))
    return DONE


@app.command()
def literature(
    rows: Annotated[
        Path,
        typer.Argument(metavar="ROWS", help="CSV of published results: id, evaluator, inputs, expected."),
    ],
    as_json: AsJson = False,
) -> int:
    """Evaluate published results with the model's own functions and compare."""
    from afd_dse.cli.progress import waiting
    from afd_dse.literature.run import literature as run

    with waiting("evaluating published results; rows that need a search take a few seconds each"):
        document = run(rows)
    if as_json:
        print_json(document)
    else:
        from afd_dse.cli.literature import print_literature

        print_literature(document)
    return DONE


@app.command()
def hfu(
    model: Annotated[str, typer.Option(metavar="NAME", help="Catalogue name, or path of a config.json.")],
    accelerator: Annotated[str, typer.Option(metavar="NAME", help="Whose GPUs hold the experts.")],
    ffn_nodes: Annotated[str, typer.Option(metavar="1..64", help="FFN nodes: a range or a list.")] = "1..64",
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="Hardware figures: catalogue, or baidu as published.")
    ] = "catalogue",
    dispatch_bytes: Annotated[
        float, typer.Option(min=0.125, help="Bytes an element on the way to the experts.")
    ] = 1.0,
    combine_bytes: Annotated[float, typer.Option(min=0.125, help="Bytes an element on the way back.")] = 2.0,
    tpot_ms: Annotated[
        float | None, typer.Option(min=0.001, help="Also the tokens a GPU gets in a stage of this TPOT.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the chart as HTML.")] = None,
    as_json: AsJson = False,
) -> int:
    """How much of its FLOPS the network lets an FFN GPU use: bound, regimes, dead zone."""
    from afd_dse.architecture.catalogue import load_model
    from afd_dse.cli.hfu import document_of, node_counts, print_hfu, write_plot
    from afd_dse.network.hardware import supply_hardware
    from afd_dse.network.hfu import hfu_analysis

    analysis = hfu_analysis(
        load_model(model),
        supply_hardware(accelerator, profile),
        node_counts(ffn_nodes),
        dispatch_bytes=dispatch_bytes,
        combine_bytes=combine_bytes,
        tpot_s=None if tpot_ms is None else tpot_ms * 1e-3,
    )
    if plot is not None:
        write_plot(analysis, plot)
    document = document_of(analysis)
    if as_json:
        print_json(document)
    else:
        print_hfu(document)
    return DONE
