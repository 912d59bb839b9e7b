"""`dr data …` and its options. What they do is in the modules that they import when run."""

from pathlib import Path
from typing import Annotated

import typer

from dr_cli.commands import CommandGroup

data_app = typer.Typer(
    name="data",
    cls=CommandGroup,
    help="Photographs to train on: tables, splits and records.",
    no_args_is_help=True,
)


@data_app.command("table")
def data_table(
    kind: Annotated[
        str,
        typer.Argument(help="aptos, eyepacs, messidor2, idrid, folders, csv, npz or drawn."),
    ],
    source: Annotated[Path, typer.Argument(help="The data set's folder, or its CSV or .npz file.")],
    out: Annotated[Path, typer.Option(help="CSV file to write.")],
    label: Annotated[
        list[str] | None,
        typer.Option(help="Grade of a folder as NAME=GRADE, once for each (folders)."),
    ] = None,
    image_column: Annotated[str, typer.Option(help="Column of image names (csv).")] = "image",
    grade_column: Annotated[str, typer.Option(help="Column of grades 0 to 4 (csv).")] = "grade",
    patient_column: Annotated[
        str | None, typer.Option(help="Column that says whose a photograph is (csv).")
    ] = None,
    eye_column: Annotated[
        str | None, typer.Option(help="Column with left and right (csv).")
    ] = None,
    keep_unreadable: Annotated[
        bool, typer.Option(help="Keep files that cannot be read, marked, instead of refusing.")
    ] = False,
    headers_only: Annotated[
        bool,
        typer.Option("--headers-only", help="Do not decode the photographs: for large data sets."),
    ] = False,
) -> None:
    """Read a data set into one table, and report duplicates."""
    from dr_cli.data import make_table

    make_table(
        kind,
        source,
        out,
        labels=label or [],
        image_column=image_column,
        grade_column=grade_column,
        patient_column=patient_column,
        eye_column=eye_column,
        keep_unreadable=keep_unreadable,
        headers_only=headers_only,
    )


@data_app.command("split")
def data_split(
    table: Annotated[Path, typer.Argument(help="A table of `dr data table`.")],
    out: Annotated[Path, typer.Option(help="CSV file to write.")],
    seed: Annotated[int, typer.Option(min=0, help="Decides between patients alike.")] = 0,
    shares: Annotated[
        str, typer.Option(help="Shares of train, validation and test.")
    ] = "0.70,0.15,0.15",
    column: Annotated[
        str | None, typer.Option(help="Use the split of this column (published_split) instead.")
    ] = None,
    allow_missing: Annotated[
        list[int] | None, typer.Option(min=0, max=4, help="A grade that a part may lack.")
    ] = None,
    exclude_conflicting: Annotated[
        bool, typer.Option(help="Leave out copies of a picture with different grades.")
    ] = False,
) -> None:
    """Divide a table by patient, with every grade in each part."""
    from dr_cli.data import make_split_file

    make_split_file(
        table,
        out,
        seed=seed,
        shares=shares,
        column=column,
        allow_missing=allow_missing or [],
        exclude_conflicting=exclude_conflicting,
    )


@data_app.command("prepare")
def data_prepare(
    table: Annotated[Path, typer.Argument(help="A table of `dr data table`.")],
    split: Annotated[Path, typer.Option(help="A split of `dr data split`.")],
    out: Annotated[Path, typer.Option(help="Folder for records, manifest.json and qc.csv.")],
    size_px: Annotated[
        int | None, typer.Option(min=16, max=2048, help="Side of the prepared square; 299.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Prepare exactly as this model package does.")
    ] = None,
    prepared_already: Annotated[
        bool, typer.Option(help="No crop and no quality gate: small pictures such as MedMNIST's.")
    ] = False,
    image_format: Annotated[
        str, typer.Option("--format", help="jpeg, or png for exact pixels.")
    ] = "jpeg",
    keep_ungradable: Annotated[
        bool, typer.Option(help="Write photographs that the gate refuses to the records too.")
    ] = False,
    records_per_shard: Annotated[int, typer.Option(min=1, help="Records of one file.")] = 1000,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Order of the records.")] = 0,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace records of other data in --out.")
    ] = False,
) -> None:
    """Prepare photographs as the service does, and write TFRecord files."""
    from dr_cli.data import prepare_records

    prepare_records(
        table,
        split,
        out,
        size_px=size_px,
        model=model,
        prepared_already=prepared_already,
        image_format=image_format,
        keep_ungradable=keep_ungradable,
        records_per_shard=records_per_shard,
        workers=workers,
        seed=seed,
        replace=replace,
    )


@data_app.command("check")
def data_check(
    target: Annotated[Path, typer.Argument(help="A table, or a folder of records.")],
    split: Annotated[Path | None, typer.Option(help="A split of the table.")] = None,
) -> None:
    """Check a table with its split, or every record of a folder."""
    from dr_cli.data import check

    check(target, split=split)
