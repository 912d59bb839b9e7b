"""`dr model recalibrate` and `dr model gate`."""

import sys
from dataclasses import replace
from pathlib import Path

from dr_cli.console import print_note
from dr_cli.errors import CommandError
from dr_cli.evaluate import members, name_failures, print_report
from dr_cli.packages import opened_package, require_files
from dr_training.data.splits import TEST, VALIDATION
from dr_training.data.table import read_table
from dr_training.gate import PASSED, Margins, gate, record_verdict, variant_kind
from dr_training.origin import Judged, refuse_seen
from dr_training.recalibrate import recalibrate
from dr_training.remarks import REMARKS
from dr_training.scoring import Scored, score_package
from inference_image.model_spec import ModelSpec, load_model_spec


def recalibrate_package(
    package: Path,
    table_path: Path,
    out: Path,
    *,
    split_path: Path | None,
    sensitivity: float,
    specificity: float,
    prevalence: float | None,
    model_id: str | None,
    draws: int,
) -> int:
    """Write a package with the site's temperature and thresholds, and say what changed.

    Returns:
        How many photographs failed, and neither chose nor measured anything.
    """
    table = read_table(table_path)
    if split_path is None:
        choosing, testing = Judged(table=table, split=None, part=None), None
        if prevalence is not None:
            raise CommandError("--prevalence needs a --split with a test part to measure on")
    else:
        choosing = members(table, split_path, VALIDATION)
        testing = members(table, split_path, TEST)
    with opened_package(package) as (folder, spec):
        print_note(refuse_seen(spec, choosing))
        chosen = score_package(folder, choosing.photographs)
        name_failures(chosen)
        tested = None if testing is None else score_package(folder, testing.photographs)
        if tested is not None:
            name_failures(tested)
        made = recalibrate(
            folder,
            chosen,
            out,
            model_id=model_id or out.name,
            data=table_path.stem
            if split_path is None
            else f"{table_path.stem}, part {VALIDATION} of {split_path.stem}",
            sensitivity=sensitivity,
            specificity=specificity,
            test=tested,
            prevalence=prevalence,
            draws=draws,
            records={
                **choosing.digests(),
                "chosen_on": choosing.part,
                "measured_on": None if testing is None else testing.part,
            },
        )
    record = made.document["calibration"]
    error, temperature = record["expected_calibration_error"], record["temperature"]
    print(
        f"{record['photographs']:,} images chose: {record['gradable']:,} gradable, "
        f"{record['referable']:,} referable"
    )
    print(f"temperature {temperature['before']:g} → {temperature['after']:g}")
    print(f"calibration error {error['before']:.4f} → {error['after']:.4f} (on these images)")
    for point in made.spec.operating_points:
        print(f"{point.name}: threshold {point.threshold:.4f}")
    for remark in record[REMARKS]:
        print_note(remark)
    if made.document["metrics"] is not None:
        print("on the test part:")
        print_report(made.document["metrics"])
    else:
        print("not measured: give --split to measure on other images")
    print(f"wrote {out} ({made.spec.sha256[:12]})")
    failed = sum(int(one.failed.sum()) for one in (chosen, tested) if one is not None)
    if failed:
        # A script that goes by the exit code reads why on stderr.
        print(
            f"dr: {failed:,} photographs failed; temperature, thresholds and figures are of the "
            "others",
            file=sys.stderr,
        )
    return failed


def gate_package(
    candidate: Path,
    table_path: Path,
    *,
    reference: Path,
    split_path: Path | None,
    part: str | None,
    operating_point: str | None,
    margin: float,
    specificity_margin: float,
    draws: int,
    record: bool,
) -> bool:
    """Compare a variant with its reference and print the verdict.

    Returns:
        Whether it passed, and on every photograph that was to count.
    """
    margins = Margins(sensitivity=margin, specificity=specificity_margin)
    if not candidate.is_dir():
        raise CommandError(f"{candidate} is no folder; the verdict is written into its model.json")
    table = read_table(table_path)
    judged = Judged(table=table, split=None, part=None)
    data = table_path.stem
    if split_path is not None:
        wanted = part or TEST
        judged = members(table, split_path, wanted)
        data = f"{data}, part {wanted} of {split_path.stem}"
    elif part is not None:
        raise CommandError("--part needs a --split")
    candidate_spec = load_model_spec(candidate)
    require_files(candidate_spec, candidate)
    with opened_package(reference) as (folder, reference_spec):
        _check_pair(candidate_spec, reference_spec)
        # Mostly one sentence of both, since a variant has the record of what it was made of.
        for note in dict.fromkeys(
            refuse_seen(one, judged) for one in (reference_spec, candidate_spec)
        ):
            print_note(note)
        photographs = judged.photographs
        name = operating_point or reference_spec.default_operating_point
        before, after = score_package(folder, photographs), score_package(candidate, photographs)
        failed = before.failed | after.failed
        name_failures(replace(after, failed=failed, reasons=_reasons(before, after)))
        verdict = gate(
            before,
            after,
            thresholds=(
                reference_spec.operating_point(name).threshold,
                candidate_spec.operating_point(name).threshold,
            ),
            operating_point=name,
            margins=margins,
            draws=draws,
        )
    for kind in ("sensitivity", "specificity"):
        fall = verdict.document[kind]
        if fall["images"]:
            print(
                f"{kind}: {fall['reference']:.4f} → {fall['candidate']:.4f} on {fall['images']:,} "
                f"images ({fall['lost']} lost, {fall['gained']} gained); may have fallen by "
                f"{fall['fall_at_most']:.4f}"
            )
    for kind in ("auc", "kappa"):
        fall = verdict.document.get(kind)
        if fall and fall["reference"] is not None and fall["candidate"] is not None:
            print(f"{kind}: {fall['reference']:.4f} → {fall['candidate']:.4f}")
    if verdict.document.get("grade_agreement") is not None:
        print(f"same grade: {100 * verdict.document['grade_agreement']:.1f} % (decides nothing)")
    for reason in verdict.reasons:
        print(reason)
    print(f"verdict: {verdict.verdict}")
    if record:
        spec = record_verdict(candidate, verdict, reference=reference_spec, data=data)
        print(f"recorded in {candidate / 'model.json'}; the package is now {spec.sha256[:12]}")
    count = int(failed.sum())
    if count:
        print(
            f"dr: {count:,} of {len(after):,} photographs failed, and the verdict is of the others",
            file=sys.stderr,
        )
    return verdict.verdict == PASSED and not count


def _reasons(before: Scored, after: Scored) -> tuple[str, ...]:
    """Why photographs failed with either of two packages."""
    pairs = zip(before.reasons, after.reasons, after.failed, strict=True)
    return tuple(second if failed else first for first, second, failed in pairs)


def _check_pair(candidate: ModelSpec, reference: ModelSpec) -> None:
    """Refuse a comparison that could only pass, or that compares answers to two questions."""
    if candidate.sha256 == reference.sha256:
        raise CommandError("the candidate and the reference are the same package")
    if candidate.task != reference.task:
        raise CommandError(
            f"the candidate's task is {candidate.task}, the reference's {reference.task}; "
            "a variant is compared with the network that it was made of"
        )
    kind = variant_kind(reference)
    if kind is not None and kind != "f32":
        raise CommandError(f"the reference is the variant {kind}; name the f32 one")
