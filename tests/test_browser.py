"""The page in a real browser: no error, no request, tables sort and filter, nothing is cut off, anyone can read it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Page, browser
from rows import INFO, cost, quick_run, write_run

from bench import report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
PHONE, PAPER = 390, 794  # CSS pixels: a phone, A4 at 96 dpi
TIME = "#block-forward-cpu-float32-bidirectional table"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with all there is: every status but one, two tasks, errors of numbers, long and foreign names."""
    statuses = ("unsupported", "timeout", "diverged", "incorrect", "fallback", "crashed", "error")
    rows = [*quick_run(), *(cost(f"v_{status}", status=status, reason=f"because {status}") for status in statuses)]
    errors = {f"{name}, spread 1": 0.5 for name in ("output_vs_mean", "gradient", "top1")}
    for name in ("linear", "注意" * 12, "a_very_long_name_without_any_place_to_break_it_" * 2):
        rows.append(
            cost(name, workload="fidelity", pass_=None, time=None, memory=None, tokens_per_s=None, error=errors)
        )
    folder = write_run(tmp_path_factory.mktemp("browser") / "run", rows, INFO)
    return report.write(folder, formats=["html"])[0]


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture
def page(tab: Page, path: Path) -> Page:
    """The page, freshly loaded in a light window of ordinary size."""
    tab.events.clear()
    tab.look()
    tab.open(path)
    return tab


def names(page: Page, table: str = TIME) -> list[str]:
    """The first column of a table as shown."""
    shown = f"[...document.querySelector('{table}').tBodies[0].rows].filter((row) => !row.hidden)"
    return page.run(f"{shown}.map((row) => row.cells[0].textContent)")


def texts(page: Page, column: int) -> list[str]:
    return page.run(
        f"[...document.querySelector('{TIME}').tBodies[0].rows].map((row) => row.cells[{column}].textContent)"
    )


def press(page: Page, column: int) -> str:
    """Click on a heading; its direction afterwards."""
    head = f"document.querySelector('{TIME}').tHead.rows[0].cells[{column}]"
    page.run(f"{head}.querySelector('button').click()")
    return page.run(f"{head}.getAttribute('aria-sort')")


def test_it_loads_without_a_complaint_and_without_a_request(page: Page) -> None:
    for options in ({}, {"dark": True}, {"width": PHONE}, {"media": "print"}):
        page.look(**options)
        assert page.run("document.querySelectorAll('table.rows').length") > 10
    assert page.complaints == []
    assert page.requests == []


def test_a_heading_sorts_up_down_and_back(page: Page) -> None:
    before = names(page)
    assert before == sorted(before)
    assert press(page, 1) == "ascending"
    figures = [float(text.split(" ")[0]) for text in texts(page, 1) if text[0].isdigit()]
    assert len(figures) == 6
    assert figures == sorted(figures)
    assert not any(text[0].isdigit() for text in texts(page, 1)[6:])  # cells without a figure come last
    assert press(page, 1) == "descending"
    figures = [float(text.split(" ")[0]) for text in texts(page, 1)[:6]]
    assert figures == sorted(figures, reverse=True)
    assert press(page, 0) == "ascending"
    states = page.run(f"[...document.querySelector('{TIME}').tHead.rows[0].cells].map((head) => head.ariaSort)")
    assert states == ["ascending", *["none"] * 5]
    press(page, 0)
    assert press(page, 0) == "none"
    assert names(page) == before


def test_figures_sort_as_numbers_not_as_text(page: Page) -> None:
    press(page, 5)
    figures = [float(text.split(" ")[0].replace(",", "")) for text in texts(page, 5) if text[0].isdigit()]
    assert any(figure >= 1000 for figure in figures)
    assert any(figure < 1000 for figure in figures)
    assert figures == sorted(figures)


def test_sorting_by_keyboard(page: Page) -> None:
    page.run(f"document.querySelector('{TIME} thead button').focus()")
    page.key("Tab", 9)
    assert page.run("document.activeElement.textContent") == "512"
    page.key("Enter", 13, "\r")
    assert page.run("document.activeElement.closest('th').getAttribute('aria-sort')") == "ascending"
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_filtering_by_what_is_typed(page: Page) -> None:
    assert page.run("document.querySelector('form.filter').hidden") is False
    everyone = names(page)
    rows = page.run("document.querySelectorAll('table.rows tbody tr').length")
    page.run("document.querySelector('#filter').focus()")
    page.call("Input.insertText", text="Flash, linear")
    assert names(page) == ["flash", "linear"]
    shown = page.run("[...document.querySelectorAll('table.rows tbody tr')].filter((row) => !row.hidden).length")
    assert page.run("document.querySelector('.filter output').textContent") == f"{shown} of {rows} rows"
    page.key("Enter", 13, "\r")  # sends nothing
    assert names(page) == ["flash", "linear"]
    page.run("document.querySelector('#filter').select()")
    page.call("Input.insertText", text="no such thing")
    assert names(page) == []
    page.run("document.querySelector('#filter').select()")
    page.key("Delete", 46)
    assert names(page) == everyone
    assert page.run("document.querySelector('.filter output').textContent") == ""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, PHONE, 800, 1600])
def test_nothing_is_cut_off(page: Page, width: int, dark: bool) -> None:
    page.look(width=width, dark=dark)
    wide, room = page.run("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= room == width
    over = (
        "[...document.querySelectorAll('body *')].filter((one) => !one.closest('.scroll, svg, .skip, pre')"
        f" && one.getBoundingClientRect().right > {width} + 0.5).map((one) => one.outerHTML.slice(0, 80))"
    )
    assert page.run(over) == []
    clipped = (
        "[...document.querySelectorAll('.scroll, pre')].filter((one) => getComputedStyle(one).overflowX === 'hidden')"
    )
    assert page.run(f"{clipped}.length") == 0


def test_on_paper_tables_fit_and_controls_are_gone(page: Page) -> None:
    page.look(width=PAPER, media="print")
    assert page.run("document.documentElement.scrollWidth") <= PAPER
    for gone in ("nav", "form.filter"):
        assert page.run(f"getComputedStyle(document.querySelector('{gone}')).display") == "none"


CONTRAST = """
(() => {
  const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return { r, g, b, a }; };
  const channel = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = (c) => 0.2126 * channel(c.r) + 0.7152 * channel(c.g) + 0.0722 * channel(c.b);
  const paper = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const found = parse(getComputedStyle(at).backgroundColor);
      if (found.a === 1) return found;
    }
    return parse("rgb(255, 255, 255)");
  };
  const poor = [];
  let seen = 0;
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const style = getComputedStyle(one);
    const inSvg = one instanceof SVGElement;
    if (!own || !one.getClientRects().length || one.tagName === "SCRIPT") continue;
    if (inSvg && style.fill === "rgb(1, 1, 1)") continue; // black on the shades of a map, whatever the page
    const [a, b] = [light(parse(inSvg ? style.fill : style.color)), light(paper(one))].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    seen += 1;
    if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5)) poor.push(one.outerHTML.slice(0, 120));
  }
  return { seen, poor };
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_has_contrast(page: Page, dark: bool) -> None:
    page.look(dark=dark)
    found = page.run(CONTRAST)
    assert found["poor"] == []  # WCAG 2.2, 1.4.3
    assert found["seen"] > 500


def test_structure_for_screen_readers(page: Page) -> None:
    assert page.run("document.documentElement.lang") == "en"
    assert page.run("document.title") == page.run("document.querySelector('h1').textContent")
    levels = page.run("[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))
    assert page.run("document.querySelectorAll('main').length") == 1
    unnamed = {
        "pictures": "[...document.querySelectorAll('[role=img]')].filter((one) => one.ariaLabel.length < 20)",
        "inputs": "[...document.querySelectorAll('input')].filter((one) => one.labels.length !== 1)",
        "buttons": "[...document.querySelectorAll('button')].filter((one) => !one.textContent.trim())",
        "links": "[...document.querySelectorAll('a')].filter((one) => !one.textContent.trim())",
        "regions": "[...document.querySelectorAll('[aria-labelledby]')].filter((one) =>"
        " !document.getElementById(one.getAttribute('aria-labelledby')))",
        "targets": "[...document.querySelectorAll('a')].filter((one) => !document.querySelector(one.hash))",
        "headings of columns": "[...document.querySelectorAll('thead th')].filter((one) => one.scope !== 'col')",
        "headings of rows": "[...document.querySelectorAll('tbody tr')].filter((one) => one.cells[0].scope !== 'row')",
        "lists": "[...document.querySelectorAll('ul > *')].filter((one) => one.tagName !== 'LI')",
        "areas out of reach": "[...document.querySelectorAll('.scroll')].filter((one) => one.tabIndex !== 0)",
    }
    for what, query in unnamed.items():
        assert page.run(f"{query}.map((one) => one.outerHTML.slice(0, 100))") == [], what
    ids = page.run("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))


def test_every_cell_without_a_figure_leads_to_its_reason(page: Page) -> None:
    places = page.run(
        "[...document.querySelectorAll('.map td a')].map((one) =>"
        " [one.textContent, one.title, document.querySelector(one.hash).nextElementSibling.textContent])"
    )
    assert {status for status, _, _ in places} >= {"oom", "skipped", "unsupported", "timeout", "crashed", "error"}
    assert all(reason in said for _, reason, said in places)


def test_without_scripts_all_rows_are_there(tab: Page, path: Path) -> None:
    tab.look()
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(path)
        assert tab.run("document.querySelectorAll('thead button').length") == 0
        assert tab.run("document.querySelector('form.filter').hidden") is True
        assert tab.run("getComputedStyle(document.querySelector('form.filter')).display") == "none"
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
