"""`dr model …` and its options. What they do is in the modules that they import when run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dr_cli.commands import CommandGroup

model_app = typer.Typer(
    name="model", cls=CommandGroup, help="Model packages.", no_args_is_help=True
)


@model_app.command("inspect")
def model_inspect(
    package: Annotated[Path, typer.Argument(help="A model package: folder or model.tar.gz.")],
) -> None:
    """Check a model package and show what it says about itself."""
    from dr_cli.models import inspect

    inspect(package)


@model_app.command("card")
def model_card(
    package: Annotated[Path, typer.Argument(help="Folder of the model package.")],
) -> None:
    """Write the model card anew, as Markdown and as HTML with pictures."""
    from dr_cli.card import write_card

    write_card(package)


@model_app.command("quantise")
def model_quantise(
    package: Annotated[Path, typer.Argument(help="A package with a SavedModel.")],
    table: Annotated[Path, typer.Argument(help="A table of labelled images.")],
    split: Annotated[
        Path, typer.Option(help="Its training part represents, validation chooses, test measures.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new packages, one for each variant.")],
    kind: Annotated[
        list[str] | None,
        typer.Option(help="int8, float16, dynamic-range or f32, once for each; all when left out."),
    ] = None,
    representatives: Annotated[
        int, typer.Option(min=1, help="Training images that show int8 its ranges.")
    ] = 300,
    sensitivity: Annotated[float, typer.Option(help="Aim of high_sensitivity.")] = 0.95,
    specificity: Annotated[float, typer.Option(help="Aim of high_specificity.")] = 0.95,
    margin: Annotated[float, typer.Option(help="How far sensitivity may have fallen.")] = 0.02,
    network: Annotated[
        Path | None,
        typer.Option(help="The trained .keras: trained on with int8's rounding if int8 fails."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Of that training.")] = 3,
    draws: Annotated[
        int, typer.Option(min=20, max=100_000, help="Bootstrap draws behind the intervals.")
    ] = 1000,
) -> None:
    """Make quantised variants, calibrate, measure and gate each; exit code 1 if int8 fails."""
    from dr_cli.tensorflow_side import hand_over

    arguments = {
        "package": str(package),
        "table": str(table),
        "split": str(split),
        "out": str(out),
        "kinds": kind or [],
        "representatives": representatives,
        "sensitivity": sensitivity,
        "specificity": specificity,
        "margin": margin,
        "draws": draws,
        "network": None if network is None else str(network),
        "epochs": epochs,
    }
    raise typer.Exit(hand_over("dr_cli.quantise:quantise_package", arguments))


@model_app.command("import")
def model_import(
    source: Annotated[Path, typer.Argument(help="A SavedModel folder, .keras, .h5 or .tflite.")],
    out: Annotated[Path, typer.Option(help="Folder of the new package.")],
    labels: Annotated[
        str | None,
        typer.Option(help="Class of each output, in order: 0,1,2,3,4 or not referable,referable."),
    ] = None,
    scaling: Annotated[
        str | None, typer.Option(help="What pixels become: 0..255, 0..1, -1..1, torch or caffe.")
    ] = None,
    channel_order: Annotated[str | None, typer.Option(help="rgb or bgr.")] = None,
    preparation: Annotated[
        str, typer.Option(help="crop (to the fundus, with quality gate) or none.")
    ] = "crop",
    threshold: Annotated[float, typer.Option(help="On P(referable), not validated.")] = 0.5,
    licence: Annotated[str | None, typer.Option(help="Of the weights.")] = None,
    images: Annotated[
        Path | None, typer.Option(help="A folder of photographs for the sanity check.")
    ] = None,
    model_id: Annotated[
        str | None, typer.Option("--id", help="Model id; the folder's name when left out.")
    ] = None,
) -> None:
    """Wrap somebody else's model as a package; asks for what its file does not say."""
    from dr_cli.importing import import_package, takes_tensorflow

    arguments: dict[str, Any] = {
        "source": str(source),
        "out": str(out),
        "model_id": model_id,
        "labels": labels,
        "scaling": scaling,
        "channel_order": channel_order,
        "preparation": preparation,
        "threshold": threshold,
        "licence": licence,
        "images": None if images is None else str(images),
    }
    if not takes_tensorflow(source):
        raise typer.Exit(import_package(**arguments))
    from dr_cli.tensorflow_side import hand_over

    raise typer.Exit(hand_over("dr_cli.importing:import_package", arguments))


@model_app.command("push")
def model_push(
    package: Annotated[Path, typer.Argument(help="Folder of the model package.")],
    bucket: Annotated[
        str | None, typer.Option(help="Bucket; the one of the shared stack when left out.")
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="Stage of the shared stack, as in -c stage=…")
    ] = None,
) -> None:
    """Publish a model package to the bucket, under the digest that names it."""
    from dr_cli.models import push

    push(package, bucket=bucket, stage=stage)


@model_app.command("recalibrate")
def model_recalibrate(
    package: Annotated[Path, typer.Argument(help="A model package: folder or model.tar.gz.")],
    table: Annotated[Path, typer.Argument(help="A table of the site's labelled images.")],
    out: Annotated[Path, typer.Option(help="Folder of the new package.")],
    split: Annotated[
        Path | None,
        typer.Option(help="Choose on its validation part, measure on its test part."),
    ] = None,
    sensitivity: Annotated[float, typer.Option(help="Aim of high_sensitivity.")] = 0.95,
    specificity: Annotated[float, typer.Option(help="Aim of high_specificity.")] = 0.95,
    prevalence: Annotated[
        float | None, typer.Option(help="Share of referable patients at the site.")
    ] = None,
    model_id: Annotated[
        str | None, typer.Option("--id", help="Model id; the folder's name when left out.")
    ] = None,
    draws: Annotated[
        int, typer.Option(min=20, max=100_000, help="Bootstrap draws behind the intervals.")
    ] = 1000,
) -> None:
    """Fit temperature and thresholds to a site's own images; writes a new package.

    The exit code is 1 where a photograph failed (not where it is ungradable).
    """
    from dr_cli.calibrate import recalibrate_package

    failed = recalibrate_package(
        package,
        table,
        out,
        split_path=split,
        sensitivity=sensitivity,
        specificity=specificity,
        prevalence=prevalence,
        model_id=model_id,
        draws=draws,
    )
    raise typer.Exit(1 if failed else 0)


@model_app.command("gate")
def model_gate(
    candidate: Annotated[Path, typer.Argument(help="Folder of the quantised package.")],
    table: Annotated[Path, typer.Argument(help="A table of held-out labelled images.")],
    reference: Annotated[Path, typer.Option(help="The f32 package: folder or model.tar.gz.")],
    split: Annotated[Path | None, typer.Option(help="A split; its test part counts.")] = None,
    part: Annotated[str | None, typer.Option(help="Another part of the split than test.")] = None,
    operating_point: Annotated[
        str | None, typer.Option(help="The reference's default when left out.")
    ] = None,
    margin: Annotated[float, typer.Option(help="How far sensitivity may have fallen.")] = 0.02,
    specificity_margin: Annotated[
        float, typer.Option(help="How far specificity may have fallen.")
    ] = 0.05,
    draws: Annotated[
        int, typer.Option(min=20, max=100_000, help="Bootstrap draws behind the intervals.")
    ] = 1000,
    record: Annotated[
        bool, typer.Option(help="Write the verdict into the candidate's model.json.")
    ] = True,
) -> None:
    """Refuse a quantised variant that may miss more patients.

    The exit code is 1 unless it passed, and where a photograph failed.
    """
    from dr_cli.calibrate import gate_package

    passed = gate_package(
        candidate,
        table,
        reference=reference,
        split_path=split,
        part=part,
        operating_point=operating_point,
        margin=margin,
        specificity_margin=specificity_margin,
        draws=draws,
        record=record,
    )
    raise typer.Exit(0 if passed else 1)


@model_app.command("train")
def model_train(
    records: Annotated[Path, typer.Argument(help="Folder of `dr data prepare`.")],
    out: Annotated[Path, typer.Option(help="Folder of weights, logs and package.")],
    network: Annotated[str, typer.Option(help="A backbone's name (docs/networks.md).")],
    weights: Annotated[
        str, typer.Option(help="auto (ImageNet's where they can be had), imagenet or random.")
    ] = "auto",
    task: Annotated[str, typer.Option(help="grade5 or referable.")] = "grade5",
    network_size_px: Annotated[
        int | None, typer.Option(help="Enlarge the pictures to this inside the network.")
    ] = None,
    train: Annotated[str, typer.Option(help="all, or head: a frozen backbone.")] = "all",
    epochs: Annotated[int, typer.Option(help="At most so many.")] = 50,
    batch_size: Annotated[int, typer.Option(help="Of all devices together.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="At the start.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.")] = 1e-4,
    loss: Annotated[str, typer.Option(help="cross-entropy, focal or ordinal.")] = "cross-entropy",
    class_weights: Annotated[str, typer.Option(help="none or balanced.")] = "none",
    dropout: Annotated[float, typer.Option(help="Share of pooled features.")] = 0.0,
    augment: Annotated[bool, typer.Option(help="Flips and colour jitter.")] = True,
    monitor: Annotated[
        str, typer.Option(help="loss, kappa or auc of validation: best epoch, rate and end.")
    ] = "loss",
    reduce_patience: Annotated[int, typer.Option(help="Epochs until the rate is reduced.")] = 4,
    reduce_factor: Annotated[float, typer.Option(help="What the rate is multiplied by.")] = 0.5,
    stop_patience: Annotated[int, typer.Option(help="Epochs until the training ends.")] = 10,
    precision: Annotated[
        str, typer.Option(help="float32, mixed_bfloat16, mixed_float16 or auto.")
    ] = "float32",
    strategy: Annotated[
        str, typer.Option(help="auto, cpu, one-gpu, mirrored, multi-worker or tpu.")
    ] = "auto",
    cpu_devices: Annotated[int, typer.Option(help="Logical devices of the CPU.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads that compute and decode.")] = 2,
    seed: Annotated[int, typer.Option(help="Of weights, order and augmentation.")] = 0,
    restart: Annotated[bool, typer.Option("--restart", help="Forget what --out holds.")] = False,
    saved_model: Annotated[
        bool,
        typer.Option(
            "--saved-model",
            help="Package with a SavedModel, and network.keras: what `dr model quantise` takes.",
        ),
    ] = False,
    model_id: Annotated[
        str | None, typer.Option("--id", help="Model id; the folder's name when left out.")
    ] = None,
) -> None:
    """Train a network on records and write its package; SIGTERM stops it so that it can go on."""
    from dr_cli.tensorflow_side import hand_over
    from dr_cli.train import arguments

    raise typer.Exit(hand_over("dr_cli.training:train", arguments(records, out, locals())))


@model_app.command("compare")
def model_compare(
    records: Annotated[Path, typer.Argument(help="Folder of `dr data prepare`.")],
    networks: Annotated[str, typer.Option(help="Names of backbones, with commas between.")],
    out: Annotated[Path, typer.Option(help="Folder of trainings and ranking.")],
    weights: Annotated[
        str, typer.Option(help="auto (ImageNet's where they can be had), imagenet or random.")
    ] = "auto",
    network_size_px: Annotated[
        int | None, typer.Option(help="Enlarge the pictures to this inside the networks.")
    ] = None,
    train: Annotated[str, typer.Option(help="all, or head: frozen backbones.")] = "all",
    epochs: Annotated[int, typer.Option(help="At most so many.")] = 20,
    batch_size: Annotated[int, typer.Option(help="Of all devices together.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="At the start.")] = 1e-3,
    strategy: Annotated[str, typer.Option(help="auto, cpu, one-gpu, mirrored or tpu.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="Threads that compute and decode.")] = 2,
    seed: Annotated[int, typer.Option(help="Of weights, order and augmentation.")] = 0,
    restart: Annotated[bool, typer.Option("--restart", help="Forget what --out holds.")] = False,
) -> None:
    """Train several networks alike and rank their quality against latency and size."""
    from dr_cli.tensorflow_side import hand_over
    from dr_cli.train import comparison_arguments

    chosen = comparison_arguments(records, out, locals())
    raise typer.Exit(hand_over("dr_cli.training:compare", chosen))


@model_app.command("linear-head")
def model_linear_head(
    records: Annotated[Path, typer.Argument(help="Folder of `dr data prepare`.")],
    out: Annotated[Path, typer.Option(help="Folder of report and package.")],
    network: Annotated[
        str, typer.Option(help="A backbone with ImageNet weights.")
    ] = "efficientnet-lite0",
    network_size_px: Annotated[
        int | None, typer.Option(help="Enlarge the pictures to this inside the network.")
    ] = None,
    copies: Annotated[
        int, typer.Option(min=1, max=8, help="Orientations of each training picture.")
    ] = 4,
    seed: Annotated[int, typer.Option(help="Of folds and orientations.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads that compute.")] = 2,
    model_id: Annotated[
        str | None, typer.Option("--id", help="Model id; the folder's name when left out.")
    ] = None,
) -> None:
    """Fit a regularised linear head on a frozen backbone and write its package."""
    from dr_cli.tensorflow_side import hand_over
    from dr_cli.train import linear_head_arguments

    chosen = linear_head_arguments(records, out, locals())
    raise typer.Exit(hand_over("dr_cli.training:fit_linear_head", chosen))
