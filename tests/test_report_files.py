"""The files and the terminal: every number is that of its row, and nothing in a row can break a page or a code page."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rows import INFO, cost, html, quick_run, read_csv, score, shown, write_run

from bench import report
from bench.errors import UserError
from bench.results import Row

TEXT_ONLY = ("md", "html", "csv")


def test_c14_and_read_back_every_number_in_the_csv_is_that_of_its_row(tmp_path: Path) -> None:
    rows = quick_run()
    report.write(write_run(tmp_path / "run", rows, INFO), formats=["csv"])
    lines = read_csv(tmp_path / "run" / "cells.csv")
    by_key = {row.key: row for row in rows}
    assert len(lines) == len(rows)
    for line in lines:
        row = by_key[line["key"]]
        assert line["time.median_s"] == ("" if row.time is None else repr(row.time.median_s))
        assert line["memory.peak_bytes"] == ("" if row.memory is None else str(row.memory.peak_bytes))
        assert line["accuracy.value"] == ("" if row.accuracy is None else repr(row.accuracy.value))
        assert line["seq_len"] == ("" if row.seq_len is None else str(row.seq_len))
        assert "nan" not in ",".join(line.values()).lower()
        json.loads(line["knobs"], parse_constant=pytest.fail)
    tables = read_csv(tmp_path / "run" / "tables.csv")
    times = {(line["variant"], line["column"], line["pass"]): line for line in tables if line["table"] == "time"}
    for row in rows:
        if row.workload == "block":
            line = times[row.variant, str(row.seq_len), row.pass_ or ""]
            assert line["value"] == (
                "" if row.time is None or row.time.median_s is None else repr(row.time.median_s * 1e3)
            )
            assert line["text"] == row.status or row.status == "ok"


def test_every_number_on_the_page_is_that_of_its_row(tmp_path: Path) -> None:
    """Read back: the figure behind each place is the row's to the last digit, its text to three digits."""
    rows = quick_run()
    page = Tables(html(tmp_path, *rows))
    takes: dict[str, Callable[[Row], float | None]] = {
        "Time [ms]": lambda row: row.time and row.time.median_s and row.time.median_s * 1e3,
        "Peak memory [MiB]": lambda row: row.memory and row.memory.peak_bytes and row.memory.peak_bytes / 2**20,
        "Throughput [tokens/s]": lambda row: row.tokens_per_s,
    }
    seen = 0
    for row in rows:
        heading = f"{row.workload.removeprefix('task:')}, {row.pass_}, cpu, float32, bidirectional"
        for title, take in takes.items() if row.workload == "block" else ():
            expected, text = take(row), page.found[heading, title][row.variant][str(row.seq_len)]
            value = page.values.get((heading, title, row.variant, str(row.seq_len)))
            assert value == expected
            seen += 1
            if expected is None:
                assert text == row.status
            else:
                assert math.isclose(float(text.split(" ")[0].replace(",", "").rstrip("†")), expected, rel_tol=5e-3)
        if row.accuracy is not None:
            unit, column, scale = ("%", "accuracy [%]", 100) if row.task == "mqar" else ("bits per byte",) * 2 + (1,)
            heading = f"{row.task} ({row.preset}), cpu, float32, causal"
            name = f"{row.variant}{' (control)' if row.variant == 'none' else ''}"
            title = f"{'Accuracy' if row.task == 'mqar' else 'Bits per byte'} [{unit}]"
            assert page.values[heading, title, name, column] == (row.accuracy.value or 0) * scale
            seen += 1
    assert seen == 3 * 60 + 14


def test_figures_of_what_to_take_are_those_of_the_rows(tmp_path: Path) -> None:
    rows = quick_run()
    times = {row.time.median_s * 1e3 for row in rows if row.time and row.time.median_s}
    peaks = {row.memory.peak_bytes / 2**20 for row in rows if row.memory and row.memory.peak_bytes}
    scores = {row.accuracy.value * (100 if row.task == "mqar" else 1) for row in rows if row.accuracy}
    page = Tables(html(tmp_path, *rows))
    found = {key: value for key, value in page.values.items() if key[0] == "What to take"}
    for (_, title, _, column), value in found.items():
        known = times if "[ms]" in column else peaks if "MiB" in column else scores
        if column not in {"length", "chance"}:
            assert value in known, (title, column)
    assert len(found) > 30


class Tables(HTMLParser):
    """The tables of a page by (h2, h3), row and column; also the balance of its tags."""

    void = frozenset({"meta", "link", "br", "path", "use", "rect", "input"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
        self.headings = {"h2": "", "h3": ""}
        self.columns: list[str] = []
        self.line: list[str] = []
        self.values: dict[tuple[str, str, str, str], float] = {}
        self.line_values: list[str | None] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)
        assert self.stack == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.ids += [value or "" for name, value in attributes if name == "id"]
        if tag not in self.void:
            self.stack.append(tag)
        if tag in self.headings:
            self.headings[tag] = ""
        if tag == "tr":
            self.line, self.line_values = [], []
        if tag in {"td", "th"}:
            self.line.append("")
            self.line_values.append(dict(attributes).get("data-value"))

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attributes if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag
        if tag == "thead":
            self.columns = self.line[1:]
        if tag == "tr" and "tbody" in self.stack:
            section = self.found.setdefault((self.headings["h2"], self.headings["h3"]), {})
            section[self.line[0]] = dict(zip(self.columns, self.line[1:], strict=True))
            for column, value in zip(self.columns, self.line_values[1:], strict=True):
                if value is not None:
                    self.values[self.headings["h2"], self.headings["h3"], self.line[0], column] = float(value)

    def handle_data(self, data: str) -> None:
        for name in self.headings:
            if name in self.stack:
                self.headings[name] += data
        if "td" in self.stack or "th" in self.stack:
            self.line[-1] += data


def test_page_is_whole_and_needs_nothing_from_outside(tmp_path: Path) -> None:
    text = html(tmp_path, *quick_run())
    page = Tables(text)
    assert len(page.ids) == len(set(page.ids))
    assert not page.tags & {"link", "img", "iframe"}
    assert re.findall("<script[^>]*>", text) == ["<script>"]
    outside = set(re.findall(r"https?://[^\"' <)]*", text)) - {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert outside == set()
    assert text.count('role="img" aria-label="') == 13
    assert {"h1", "h2", "h3", "caption", "th", "main", "nav"} <= page.tags
    assert "prefers-color-scheme: dark" in text


HOSTILE = "<script>alert(1)</script>|`*[x](y)$a_b$\\\n\x1b[31m&amp; ü注意مرحبا"


def test_hostile_names_stay_text_in_every_format(tmp_path: Path) -> None:
    rows = [cost(HOSTILE, reason=HOSTILE, flags=[HOSTILE], knobs={HOSTILE: HOSTILE}), cost("full"), cost("\ud800")]
    rows += [cost(HOSTILE, 1024, status="error", reason=HOSTILE), score(HOSTILE, by_gap={HOSTILE: 0.5}, preset=HOSTILE)]
    info = {"run": HOSTILE, "command": HOSTILE, "environment": {HOSTILE: HOSTILE, "packages": {HOSTILE: HOSTILE}}}
    folder = write_run(tmp_path / "run", [row for row in rows if row.variant != "\ud800"], info)
    with (folder / "rows.jsonl").open("ab") as file:
        file.write(rows[2].to_line().encode("utf-8", "surrogatepass").replace(b"\xed\xa0\x80", rb"\ud800"))
    written = report.write(folder, formats=["md", "html", "csv", "svg", "tex"])
    for path in written:
        content = path.read_bytes().decode("utf-8")
        assert "\x1b" not in content
        if path.suffix in {".html", ".svg", ".md"}:
            code_apart = re.sub("^    .*$", "", content, flags=re.MULTILINE)  # the command, as code
            assert code_apart.count("<script") == (path.suffix == ".html")  # the page's own
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    Tables(page)
    blocks = (folder / "report.md").read_text(encoding="utf-8").split("\n\n")
    tables = [block.strip().splitlines() for block in blocks if block.strip().startswith("| ")]
    assert any("script" in line for lines in tables for line in lines)
    for lines in tables:  # no name opens a column
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert r"\$a\_b\$" in (folder / "report.tex").read_text(encoding="utf-8")
    assert "\x1b[31m" not in shown(folder)


@pytest.mark.parametrize("name", ["注意", "внимание", "انتباه", "ध्यान", "[bold]x[/bold]"])
def test_names_in_any_script(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "run", [cost(name), cost("full")], INFO)
    for path in report.write(folder, formats=TEXT_ONLY):
        assert name.replace("[", r"\[").replace("]", r"\]") in path.read_text(encoding="utf-8") or path.suffix != ".md"
        assert name in path.read_text(encoding="utf-8").replace("\\", "")
    assert name in shown(folder)


def test_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        folder = write_run(tmp_path / name, quick_run(), INFO)
        written = report.write(folder, formats=["md", "html", "csv", "svg", "tex"])
        contents.append({str(path.relative_to(folder)): path.read_bytes() for path in written})
    assert contents[0] == contents[1]


def test_zero_rows_give_a_report_that_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [], INFO)
    written = {path.name: path for path in report.write(folder)}
    assert "There is nothing to compare." in written["report.md"].read_text(encoding="utf-8")
    assert "There is nothing to compare." in written["report.html"].read_text(encoding="utf-8")
    assert "0 cells" in shown(folder)


def test_two_thousand_rows(tmp_path: Path) -> None:
    lengths, passes = (128, 256, 512, 1024, 2048), ("forward", "train")
    rows = [
        cost(f"v{variant}", n, ms=n / 100 + variant, pass_=pass_, batch=batch)
        for variant in range(20) for n in lengths for pass_ in passes for batch in range(1, 11)
    ]  # fmt: skip
    assert len(rows) == 2000
    folder = write_run(tmp_path / "run", rows, INFO)
    written = {path.name: path for path in report.write(folder, formats=["md", "csv", "tex"])}
    assert len(read_csv(written["cells.csv"])) == 2000
    assert "2000 cells: 2000 ok" in written["report.md"].read_text(encoding="utf-8")


def test_formats_and_places(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [cost("full")], INFO)
    with pytest.raises(UserError, match="unknown format 'hmtl'; did you mean 'html'"):
        report.write(folder, formats=["hmtl"])
    with pytest.raises(UserError, match=r"no results in '.*nowhere'"):
        report.write(tmp_path / "nowhere")
    taken = tmp_path / "taken"
    taken.write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot write the report to '.*taken'"):
        report.write(folder, formats=["md"], out=taken)
    (path,) = report.write(str(folder), formats=["md", "md"], out=tmp_path / "new" / "place")
    assert path == tmp_path / "new" / "place" / "report.md"


def test_parquet_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "fastparquet", None)
    folder = write_run(tmp_path / "run", [cost("full")], INFO)
    with pytest.raises(UserError, match=r"pip install 'attn-bench\[parquet\]'"):
        report.write(folder, formats=["parquet"])


def test_parquet_reads_back(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    import pandas as pd

    report.write(write_run(tmp_path / "run", quick_run(), INFO), formats=["parquet"])
    assert len(pd.read_parquet(tmp_path / "run" / "cells.parquet")) == len(quick_run())


# The terminal


@pytest.mark.parametrize("width", [40, 80, 200])
def test_terminal_tables_fit_the_width(tmp_path: Path, width: int) -> None:
    text = shown(write_run(tmp_path / "run", quick_run(), INFO), width=width)
    assert max(map(len, text.splitlines())) <= width
    for value in ("3,416 ±51", "n^1.97", "0.06× (3 of 5, 2 skipped)" if width > 40 else "0.06×"):
        assert value in text
    assert text.count("Speed-up over full") == 2


def test_terminal_is_plain_when_piped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", quick_run(), INFO)
    assert "\x1b" not in shown(folder)
    assert "\x1b" in shown(folder, force_terminal=True, color_system="standard", width=100)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "cp437"])
def test_c21_any_code_page(tmp_path: Path, encoding: str) -> None:
    folder = write_run(tmp_path / "run", [*quick_run(), cost("注意", reason=None, flags=["≈→✓"])], INFO)
    code = (
        "import sys, pathlib, bench.report, rich.console\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "bench.report.write(folder, formats=['md', 'html', 'csv', 'tex'])\n"
        "bench.report.show(folder, rich.console.Console())\n"
    )
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-c", code, str(folder)], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    assert "Short answer" in done.stdout.decode(encoding)
    assert "注意" in (folder / "report.html").read_text(encoding="utf-8")
    assert "注意" in (folder / "report.md").read_text(encoding="utf-8")


def test_report_starts_without_heavy_libraries() -> None:
    code = (
        "import sys, bench.report; print([m for m in ('torch', 'pandas', 'matplotlib', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_writing_a_report_never_imports_torch(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [cost("full"), score("full")], INFO)
    code = "import sys, bench.report; bench.report.write(sys.argv[1]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, check=True)
