"""Figures of the serving benchmark, derived from samples, and the page that shows them."""

import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compiled
from benchmarks.serving import peak, report
from benchmarks.serving.peak import vgg19_products

CONTENDERS = {"service": 300.0, "baseline": 15.0, "litserve": 250.0, "bentoml": 275.0}


def document(*, rounds: int = 3) -> dict[str, Any]:
    """Three rounds on a machine that gets slower: ratios hold, rates do not."""
    samples = [
        {
            "round": number,
            "network": "mobilenet",
            "photograph": "224px",
            "clients": clients,
            "contender": contender,
            "per_s": per_s / (number + 1),
            "median_ms": 1000 / per_s * (number + 1),
            "p95_ms": 2000 / per_s,
            "cpu_ms": 6.0,
            "generator_cpu_share": 0.02,
        }
        for number in range(rounds)
        for clients in (1, 40)
        for contender, per_s in {**CONTENDERS, "ceiling": 320.0}.items()
    ]
    starts = [
        {
            "contender": contender,
            "network": "mobilenet",
            "first_answer_s": seconds,
            "cpu_s": 1.0,
            "resident_mb": 85.0,
        }
        for contender, seconds in (("service", 0.4), ("service", 0.5), ("baseline", 9.0))
    ]
    stages = {
        "decode": 0.4,
        "locate": 0.4,
        "resize": 0.3,
        "quality": 0.3,
        "network": 4.0,
        "json": 0.05,
        "log": 0.05,
        "predict": 5.4,
    }
    return {
        "measured_on": "2026-11-28",
        "machine": {
            "processor": "a processor",
            "cores": 2,
            "memory_gib": 24,
            "architecture": "x86_64",
            "kernel": "6",
            "python": "3.11",
            "versions": {"pillow": "13"},
        },
        "plan": {
            "rounds": rounds,
            "starts": 2,
            "seconds": 4,
            "warm_up_s": 1,
            "workers": 2,
            "clients": [1, 40],
        },
        "photographs": {"224px": {"bytes": 11_000, "width_px": 224, "height_px": 224}},
        "load_average": [0.1],
        "samples": samples,
        "starts": starts,
        "breakdown": {"mobilenet": {"224px": stages}},
        "images": [],
        "failures": [],
    }


def test_ratios_are_taken_within_a_round() -> None:
    measured = document()
    # The service slower in one round alone must not decide.
    for sample in measured["samples"]:
        if sample["round"] == 2 and sample["contender"] == "service":
            sample["per_s"] /= 10
    ratio = report.rate_ratio("baseline", "mobilenet", "224px")(measured)
    assert ratio == pytest.approx(20.0)
    assert report.latency_ratio("mobilenet", "224px")(measured) == pytest.approx(20.0)


def test_a_missing_round_of_one_contender_leaves_the_others() -> None:
    measured = document()
    measured["samples"] = [
        s for s in measured["samples"] if (s["round"], s["contender"]) != (0, "baseline")
    ]
    assert report.rate_ratio("baseline", "mobilenet", "224px")(measured) == pytest.approx(20.0)


def test_what_was_not_measured_is_said_and_not_counted() -> None:
    measured = document()
    by_figure = {(t.figure, t.against): t.reached(measured) for t in report.TARGETS}
    assert by_figure["VGG19: resident memory after it", ""] is None
    assert by_figure["MobileNet, 224 px, 40 clients: answers a second", "baseline"] is True
    text = report.markdown(measured)
    assert "| VGG19: resident memory after it | ≤ 140 MB | not measured |  |" in text


def test_every_aim_is_decided_by_its_bound() -> None:
    measured = document()
    for target in report.TARGETS:
        value = target.measure(measured)
        if value is None:
            continue
        worse = value - 1e-9 if target.at_most else value + 1e-9
        same = report.Target(**{**vars(target), "bound": value})
        harder = report.Target(**{**vars(target), "bound": worse})
        assert same.reached(measured) is True, target.figure
        assert harder.reached(measured) is False, target.figure


def test_beside_the_network_is_all_that_a_request_costs_but_the_network() -> None:
    share = report.beside_network("mobilenet", "224px")(document())
    assert share == pytest.approx((6.0 - 4.0) / 4.0)


def test_the_rest_of_a_request_is_what_the_stages_leave() -> None:
    text = report.markdown(document())
    (rest,) = re.findall(r"\| the rest: [^|]*\| ([\d.]+) \|", text)
    assert float(rest) == pytest.approx(6.0 - 5.5)


def test_sizes_are_those_of_the_largest_litert_image_on_the_default_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def image(runtime: str, base: str, size: int) -> dict[str, Any]:
        kind = {"runtime": runtime, "architecture": "amd64", "base": base, "layers": []}
        return {**kind, "compressed_bytes": size, "on_disk_bytes": 3 * size}

    rows = [
        image("litert", "Debian packages (default)", 50_000_000),
        image("litert", "Debian packages (default)", 61_000_000),
        image("litert", "Debian minimal system", 90_000_000),
        image("tensorflow", "Debian packages (default)", 400_000_000),
    ]
    monkeypatch.setattr(report, "IMAGE_DOCUMENT", tmp_path / "image.json")
    assert report.images() == []
    (tmp_path / "image.json").write_text(json.dumps({"images": rows}))
    text = report.markdown({**document(), "images": report.images()})
    assert "| Image, compressed | ≤ 60 MB | 61.0 MB | **no** |" in text
    assert "| Image, on disk | ≤ 180 MB | 183 MB | **no** |" in text


def test_what_bounds_the_share_of_the_ceiling_is_told_apart() -> None:
    text = report.markdown(document())
    (row,) = re.findall(r"\| mobilenet, 224px \|([^\n]*)\|", text)
    ceiling, gate, around, generator, share, without_gate = map(float, row.split("|"))
    assert (ceiling, gate) == (5.1, 0.3)
    assert around == pytest.approx(6.0 - 5.1 - 0.3)
    # 2 % of a CPU at 300, 150 and 100 answers a second.
    assert generator == pytest.approx(20 / 150, abs=0.005)
    assert share == pytest.approx(5.1 / (6.0 + 20 / 150), abs=0.005)
    assert without_gate == pytest.approx(5.1 / (5.7 + 20 / 150), abs=0.005)


def test_a_failure_is_shown() -> None:
    measured = document()
    measured["failures"] = [{"network": "vgg19", "contender": "litserve", "error": "it\nended"}]
    assert "| vgg19 | litserve | it ended |" in report.markdown(measured)


def test_the_page_keeps_what_stands_around_the_tables(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.update(page, document())
    once = page.read_text()
    report.update(page, document())
    assert page.read_text() == once
    assert once.startswith(f"before\n{report.BEGIN}\n")
    assert once.endswith(f"{report.END}\nafter\n")
    assert "old" not in once


def test_a_page_without_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("nothing generated")
    with pytest.raises(ValueError, match=r"performance\.md lacks the lines"):
        report.update(page, document())


def test_the_page_shows_the_figures_of_the_document(repository: Path) -> None:
    page = (repository / "docs" / "performance.md").read_text(encoding="utf-8")
    shown = page.partition(report.BEGIN)[2].partition(report.END)[0].strip()
    assert shown == report.markdown(json.loads(report.DOCUMENT.read_bytes())), (
        "run `python -m benchmarks.serving --report`"
    )


def test_the_servers_differ_in_nothing_but_themselves(repository: Path) -> None:
    """The benchmark's lock has the versions that the service's image has."""

    def pins(path: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name, pin in re.findall(
            r"^([a-z0-9-]+)==([^ ;\\]+)", (repository / path).read_text(), re.MULTILINE
        ):
            found.setdefault(name, set()).add(pin)
        return found

    bench = pins("requirements/bench.txt")
    image = pins("inference_image/requirements-litert.txt")
    for name in ("ai-edge-litert", "httptools", "numpy", "pillow", "starlette", "uvicorn"):
        assert bench[name] == image[name], name


def test_the_page_says_what_the_processor_allows() -> None:
    measured = document()
    assert "What the processor allows" not in report.markdown(measured)
    measured["peak"] = [{"int8": int8, "float32": int8 / 4} for int8 in (100.0, 195.084288, 400.0)]
    for sample in measured["samples"]:
        sample["network"] = "vgg19"
        sample["cpu_ms"] = {"service": 125.0, "baseline": 800.0}.get(sample["contender"], 1.0)
    text = report.markdown(measured)
    # 19.5 thousand million products at 195 thousand million a second are 100 ms.
    assert "| service, int8 | 195 | 100 | 125 | 0.80 |" in text
    assert "| baseline, float32 | 48.8 | 400 | 800 | 0.50 |" in text
    # Two cores: 20 a second, beside a median of 7.5.
    assert "2 cores would give 20.0 answers a second, 2.67 times the baseline's 7.50" in text


def test_vgg19_has_the_products_that_its_convolutions_have() -> None:
    # Counted by hand for 32 x 32 pixels: each block has a quarter of the pixels of the one before.
    blocks = [3 * 64 + 64 * 64, 64 * 128 + 128 * 128, 128 * 256 + 3 * 256 * 256]
    blocks += [256 * 512 + 3 * 512 * 512, 4 * 512 * 512]
    assert vgg19_products(32) == sum(
        9 * weights * 32**2 // 4**number for number, weights in enumerate(blocks)
    )
    assert vgg19_products(224) == 19_508_428_800


def test_the_peak_is_more_than_python_can_do_and_int8_more_than_float32() -> None:
    found = peak.measure_peak(1, repeats=1, seconds=0.02)
    able = {"avx512f", "avx512_vnni"} <= peak._flags() and compiled.compilers()
    if able and platform.machine() == "x86_64":
        assert found is not None
        assert found["int8"] > 1.5 * found["float32"] > 1.5
    else:
        assert found is None


def test_a_processor_without_the_instructions_has_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "_flags", lambda: frozenset({"avx2"}))
    assert peak.measure_peak(1) is None


def test_without_a_compiler_there_is_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "_flags", lambda: peak._NEEDS)
    monkeypatch.setattr(compiled, "compilers", lambda: [["false"]])
    assert peak.measure_peak(1) is None
