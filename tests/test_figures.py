"""The figures: what is drawn is what was measured, gaps stay gaps, one colour a variant, the same bytes each time."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rows import INFO, cost, quick_run, score, write_run

from bench import report
from bench.report.canvas import draw_line, look, new_axes
from bench.report.digits import Estimate
from bench.report.document import read_document
from bench.report.figures import Figure, draw_figures
from bench.report.page import inline_svg
from bench.report.styles import COLOURS, CONTROL_COLOUR, Style, preferred_slot, styles_of
from bench.results import Gap, Row

PAPERS = {"light": "#ffffff", "dark": "#15181d"}


def figures(tmp_path: Path, *rows: Row) -> dict[str, Figure]:
    document = read_document(write_run(tmp_path / "run", rows, INFO))
    return {figure.name: figure for figure in draw_figures(document, png=False)}


def drawn_lines(figure: Figure) -> dict[str, list[list[tuple[float, float]]]]:
    """Points of each coloured line of an SVG, one list for each unbroken stretch, in the SVG's own units."""
    body, lines = figure.svg[: figure.svg.find('id="legend_1"')], {}
    for path, ink, rest in re.findall(
        r'<path d="([^"]*)"[^>]*?style="fill: none; stroke: (#[0-9a-f]{6});([^"]*)"', body
    ):
        stretches: list[list[tuple[float, float]]] = []
        for command, x, y in re.findall(r"([ML]) ([-\d.]+) ([-\d.]+)", path):
            if command == "M":
                stretches.append([])
            stretches[-1].append((float(x), float(y)))
        if ink in COLOURS and "stroke-opacity" not in rest:  # the bars of the intervals are translucent
            lines.setdefault(ink, []).extend(stretches)
    return lines


def colour(variant: str) -> str:
    return COLOURS[preferred_slot(variant)]


def marks(figure: Figure, variant: str) -> int:
    """Number of markers of a variant inside the axes."""
    body = figure.svg[: figure.svg.find('id="legend_1"')]
    return len(re.findall(rf'<use [^>]*style="fill: {colour(variant)}', body))


@pytest.mark.filterwarnings("error")
def test_c23_zero_and_null_are_not_drawn_and_a_note_lists_them(tmp_path: Path) -> None:
    times = {128: 1.0, 256: 2.0, 512: 0.0, 1024: None, 2048: 6.0}
    rows = [cost("full", n, ms=ms, spread=None, peak=None) for n, ms in times.items()]
    figure = figures(tmp_path, *rows)["time-block-forward-cpu-float32-bidirectional"]
    assert figure.note == "Not drawn: full at 512 (0 on a log axis); full at 1024 (n/a)."
    assert marks(figure, "full") == 3
    assert [len(stretch) for stretch in drawn_lines(figure)[colour("full")]] == [
        2,
        1,
    ]  # 1 to 2 is a line; 6 stands alone; nothing dips to 0


def test_failed_cells_leave_a_gap_not_a_bridge(tmp_path: Path) -> None:
    rows = [cost("x", n, status="oom" if n == 1024 else "ok") for n in (256, 512, 1024, 2048, 4096)]
    figure = figures(tmp_path, *rows)["time-block-forward-cpu-float32-bidirectional"]
    assert figure.note == "Not drawn: x at 1024 (oom)."
    assert [len(stretch) for stretch in drawn_lines(figure)[colour("x")]] == [2, 2]


def test_points_lie_where_log_axes_put_them(tmp_path: Path) -> None:
    rows = [cost("full", n, ms=n / 100, spread=None) for n in (512, 1024, 2048, 8192)]
    figure = figures(tmp_path, *rows)["time-block-forward-cpu-float32-bidirectional"]
    (points,) = drawn_lines(figure)[colour("full")]
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = points
    assert x1 - x0 == pytest.approx(x2 - x1) == pytest.approx((x3 - x2) / 2)
    assert y0 - y1 == pytest.approx(y1 - y2) == pytest.approx((y2 - y3) / 2)  # time doubles with the length


def test_ticks_are_the_lengths(tmp_path: Path) -> None:
    rows = [cost("full", n) for n in (512, 8192, 1024)]
    figure = figures(tmp_path, *rows)["time-block-forward-cpu-float32-bidirectional"]
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", figure.svg)
    assert [text for text in texts if text in {"512", "1024", "8192"}] == ["512", "1024", "8192"]
    ticks = [text for text in texts if not text.startswith("full")]
    assert not [text for text in ticks if "^" in text or "e+" in text or "$" in text]


def test_each_quantity_and_task_has_its_figure(tmp_path: Path) -> None:
    names = sorted(figures(tmp_path, *quick_run()))
    assert names == sorted(
        [
            *(
                f"{quantity}-block-{pass_}-cpu-float32-bidirectional"
                for quantity in ("time", "memory", "throughput")
                for pass_ in ("forward", "train")
            ),
            "accuracy-mqar-tiny-cpu-float32-causal",
            "accuracy-by-gap-mqar-tiny-cpu-float32-causal",
            "bits-per-byte-text-small-cpu-float32-causal",
            *(f"speedup-block-{pass_}-cpu-float32-bidirectional" for pass_ in ("forward", "train")),
            "tradeoff-mqar-tiny-choices",
            "tradeoff-text-small-bits-per-byte-choices",
        ]
    )


def test_alt_text_and_note_say_what_is_seen(tmp_path: Path) -> None:
    found = figures(tmp_path, *quick_run())
    time = found["time-block-train-cpu-float32-bidirectional"]
    assert time.note == "Not drawn: additive at 2048, 4096 and 8192 (skipped); full at 8192 (oom)."
    assert "Time against length, both on log axes: block, train, cpu" in time.alt
    assert "linear 51.1" in time.alt
    assert found["accuracy-mqar-tiny-cpu-float32-causal"].note.startswith("One seed")
    assert "Chance is 4.85." in found["bits-per-byte-text-small-cpu-float32-causal"].note


@pytest.mark.parametrize(
    "rows",
    [
        [cost("full")],
        [cost("full", spread=None, replicates=1)],
        [cost("full", None)],
        [cost("full", peak=0), cost("full", 1024, peak=0)],
        [cost("full", status="oom"), score("full", status="error")],
        [score("full", 0.5, half=None, chance=None)],
        [score("full", 0.5, by_gap={"1-8": None, "9-16": 0.4})],
        [score("full", 0.5, by_length={"64": None, "128": 0.4})],
        [score("none", 0.06)],
        [cost("full", 2**k) for k in range(5, 21)],
        [cost(f"v{i}") for i in range(25)],
        [cost("$x_1$ 注意 <b>"), cost("_hidden")],
    ],
    ids=lambda rows: f"{len(rows)} of {rows[0].variant} {rows[0].status}",
)
def test_odd_runs_draw_without_a_warning(tmp_path: Path, rows: list[Row]) -> None:
    written = report.write(write_run(tmp_path / "run", rows, INFO), formats=["svg", "png", "html"])
    for path in written:
        assert path.stat().st_size > 0
        if path.suffix == ".svg":
            assert "nan" not in path.read_text(encoding="utf-8").lower()


def test_an_interval_that_says_nothing_does_not_squeeze_the_others() -> None:
    with look():
        _, axes = new_axes("time", "heading", "")
        values = [Estimate(10, 1e-3, 1e5), Estimate(10, 9, 11), Estimate(10, 9, 11)]
        draw_line(axes, [1, 2, 3], values, "x", Style("#0077bb", "o", "-"))
        drawn = [height for part in axes.collections for path in part.get_paths() for _, height in path.vertices]
    assert drawn
    assert (min(drawn), max(drawn)) == (9, 11)


def test_png_and_svg_are_written_beside_each_other(tmp_path: Path) -> None:
    written = report.write(write_run(tmp_path / "run", [cost("full")], INFO), formats=["svg", "png", "md"])
    assert [path.suffix for path in written] == [".md", *[".svg", ".png"] * 3]
    assert (tmp_path / "run/figures/time-block-forward-cpu-float32-bidirectional.png").read_bytes()[:4] == b"\x89PNG"
    text = written[0].read_text(encoding="utf-8")
    for path in re.findall(r"\]\((figures/[^)]*)\)", text):
        assert (tmp_path / "run" / path).is_file()


def test_only_so_many_figures_are_drawn_and_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.report.figures.MOST_FIGURES", 3)
    rows = [cost("full", batch=batch, peak=None, tokens_per_s=None) for batch in range(1, 6)]
    (page,) = report.write(write_run(tmp_path / "run", rows, INFO), formats=["html"])
    text = page.read_text(encoding="utf-8")
    assert text.count('role="img"') == 3
    assert text.count("No figures are drawn for this part") == 2


def test_same_colour_and_marker_everywhere(tmp_path: Path) -> None:
    def styles(*rows: Row) -> dict[str, Any]:
        found = read_document(write_run(tmp_path / "run", rows, INFO))
        return styles_of([section.cells for section in found.sections])

    everywhere = styles(*quick_run())
    assert everywhere["full"] == styles(cost("full"))["full"] == styles(score("full"), cost("zeta"))["full"]
    assert everywhere["none"].colour == CONTROL_COLOUR
    many = styles(*(cost(f"v{i}") for i in range(40)))
    assert len({(style.colour, style.marker) for style in many.values()}) == 40
    assert len({style.colour for label, style in many.items()}) == len(COLOURS)


def test_shipped_variants_have_six_colours_of_their_own() -> None:
    shipped = ("additive", "flash", "full", "linear", "local", "sparse")
    assert {preferred_slot(name) for name in shipped} == set(range(6))


def test_knobs_of_a_variant_share_its_colour_and_differ_in_dash(tmp_path: Path) -> None:
    rows = [cost("local", knobs={"window": window}) for window in (64, 128)]
    found = read_document(write_run(tmp_path / "run", rows, INFO))
    a, b = styles_of([section.cells for section in found.sections]).values()
    assert a.colour == b.colour
    assert a.dash != b.dash


@pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)
@pytest.mark.parametrize("ink", [*COLOURS, CONTROL_COLOUR])
def test_colours_stand_out_on_both_papers(ink: str, paper: str) -> None:
    light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3  # WCAG 2.2, 1.4.11


def luminance(colour: str) -> float:
    """Relative luminance of WCAG."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_inline_svg_takes_the_ink_of_the_page_and_ids_of_its_own() -> None:
    svg = (
        '<?xml version="1.0"?>\n<svg width="1pt" height="2pt" viewBox="0 0 1 2">'
        '<g id="a" style="fill: #ffffff"/><use xlink:href="#a" clip-path="url(#c)" style="fill: #262626"/></svg>\n'
    )
    assert inline_svg(svg, "f1-") == (
        '<svg viewBox="0 0 1 2" aria-hidden="true" focusable="false"><g id="f1-a" style="fill: none"/>'
        '<use xlink:href="#f1-a" clip-path="url(#f1-c)" style="fill: currentColor"/></svg>'
    )


def test_figures_leave_global_state_alone(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    pyplot = sys.modules.get("matplotlib.pyplot")
    figures(tmp_path, cost("full"), cost("full", 1024))
    assert dict(matplotlib.rcParams) == before
    if pyplot is not None:
        assert pyplot.get_fignums() == []


def test_a_bin_without_positions_is_a_gap(tmp_path: Path) -> None:
    row = score("full")
    assert row.accuracy is not None
    scores = {"1-8": 0.9, "9-16": None, "17-32": 0.7, "33-64": 0.6}
    row.accuracy.by_gap = [
        Gap(label=label, value=value, count=int(value is not None)) for label, value in scores.items()
    ]
    figure = figures(tmp_path, row)["accuracy-by-gap-mqar-tiny-cpu-float32-causal"]
    assert [len(stretch) for stretch in drawn_lines(figure)[colour("full")]] == [1, 2]
    assert marks(figure, "full") == 3


def test_a_long_list_of_missing_points_is_counted(tmp_path: Path) -> None:
    rows = [cost("full", n) for n in (512, 1024)] + [cost(f"v{i}", 512, status="error") for i in range(7)]
    figure = figures(tmp_path, *rows)["time-block-forward-cpu-float32-bidirectional"]
    assert figure.note == "Not drawn: 14 points that have no figure; the table shows why."


def test_more_variants_than_eyes_can_follow_are_spread_over_figures(tmp_path: Path) -> None:
    rows = [cost(f"v{i:02}", n, ms=(50 - i) * n / 512) for i in range(45) for n in (512, 1024)]
    rows.append(cost("lost", 512, status="oom"))
    found = [figure for name, figure in figures(tmp_path, *rows).items() if name.startswith("time-")]
    assert [figure.title for figure in found] == [f"Time against length, {i} of 6" for i in range(1, 7)]
    shown = [re.findall(r"v\d\d(?= n\^)", figure.svg) for figure in found]
    assert sorted(label for labels in shown for label in labels) == [f"v{i:02}" for i in range(45)]
    assert max(map(len, shown)) <= 8
    assert shown[0] == [f"v{i:02}" for i in range(37, 45)]  # the fastest first
    for figure, labels in zip(found, shown, strict=True):
        body = figure.svg[: figure.svg.find('id="legend_1"')]
        assert len(re.findall("stroke: #808080; stroke-opacity: 0.35", body)) == 45 - len(labels)
    lost = "Not drawn: lost at 512 (oom); lost at 1024 (not run). "
    assert [figure.note for figure in found] == [lost + "Grey: all others.", *["Grey: all others."] * 5]


def test_every_variant_is_named_by_its_exponent(tmp_path: Path) -> None:
    rows = [cost(name, n, ms=n**power / 1e4) for name, power in (("full", 2), ("linear", 1)) for n in (512, 1024, 2048)]
    found = figures(tmp_path, *rows)
    for name, expected in (("time", {"full n^2.00", "linear n^1.00"}), ("throughput", {"full", "linear"})):
        texts = re.findall(r"<text [^>]*>([^<]*)</text>", found[f"{name}-block-forward-cpu-float32-bidirectional"].svg)
        assert {text for text in texts if text.startswith(("full", "linear"))} == expected


@pytest.mark.parametrize(("limit", "drawn"), [(0.125, True), (64.0, False)])
def test_the_memory_limit_is_a_line_where_it_is_near(tmp_path: Path, limit: float, drawn: bool) -> None:
    info = {**INFO, "sweep": {"memory_limit": limit}}
    document = read_document(write_run(tmp_path / "run", [cost("full"), cost("full", 1024)], info))
    figure = next(figure for figure in draw_figures(document, png=False) if figure.name.startswith("memory-"))
    assert (">memory limit<" in figure.svg) == drawn
    assert figure.note == ("" if drawn else "The memory limit, 65,536 MiB, is above the figure.")


def test_a_band_breaks_where_a_point_is_missing_and_a_lone_point_has_a_bar(tmp_path: Path) -> None:
    rows = [cost("x", n, status="oom" if n == 1024 else "ok") for n in (256, 512, 1024, 2048)]
    figure = figures(tmp_path, *rows)["time-block-forward-cpu-float32-bidirectional"]
    (band,) = re.findall(r'<g id="FillBetween\w*">(.*?)</g>', figure.svg, flags=re.DOTALL)
    assert band.count("<path") == 1
    xs = [float(x) for x in re.findall(r"[ML] ([-\d.]+) ", band)]
    (first, alone) = drawn_lines(figure)[colour("x")]
    assert min(xs) == pytest.approx(first[0][0]) and max(xs) == pytest.approx(first[-1][0])
    bars = re.findall(r'<path d="M ([-\d.]+) [-\d.]+ \nL [-\d.]+ [-\d.]+ \n" [^>]*stroke-opacity: 0.4', figure.svg)
    assert [float(x) for x in bars] == pytest.approx([alone[0][0]])


def test_the_map_of_speed_ups_shows_ratios_and_statuses(tmp_path: Path) -> None:
    rows = [cost("full", n, ms=10) for n in (512, 1024)] + [cost("x", 512, ms=5), cost("x", 1024, status="oom")]
    figure = figures(tmp_path, *rows)["speedup-block-forward-cpu-float32-bidirectional"]
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", figure.svg)
    assert [texts.count(text) for text in ("2.00", "1.00", "oom")] == [1, 2, 1]
    assert "x 2.00× at 512, oom at 1024" in figure.alt


def test_accuracy_against_length_needs_two_lengths(tmp_path: Path) -> None:
    rows = [score(name, value / n, seq_len=n) for n in (64, 128) for name, value in (("full", 60), ("x", 30))]
    found = figures(tmp_path, *rows)
    (figure,) = [figure for name, figure in found.items() if name.startswith("accuracy-against-length")]
    assert "full 93.8 at 64, 46.9 at 128; x 46.9 at 64, 23.4 at 128" in figure.alt
    assert not [name for name in figures(tmp_path / "one", score("full")) if "against-length" in name]


def test_quality_against_time_has_its_front(tmp_path: Path) -> None:
    rows = [cost("fast", ms=5), cost("good", ms=50), cost("worse", ms=60), cost("no-score", ms=1)]
    rows += [score("fast", 0.5), score("good", 0.9), score("worse", 0.8)]
    figure = figures(tmp_path, *rows)["tradeoff-mqar-tiny-choices"]
    assert "On the front: fast and good." in figure.alt
    assert "Not drawn: no-score (no such figure)." in figure.note


@pytest.mark.parametrize("count", [45])
def test_forty_five_variants_draw_all_kinds_of_figures(tmp_path: Path, count: int) -> None:
    names = ["full", *(f"v{i}" for i in range(count - 1))]
    rows = [cost(name, n, ms=n / (3 + len(name))) for name in names for n in (512, 1024)]
    rows += [score(name, 0.5, by_gap={"1-8": 0.4, "9-16": 0.6}) for name in names]
    kinds = {re.sub(r"-\d+-.*|-block.*|-mqar.*", "", name) for name in figures(tmp_path, *rows)}
    assert kinds == {"time", "memory", "speedup", "accuracy", "accuracy-by-gap", "tradeoff"}
