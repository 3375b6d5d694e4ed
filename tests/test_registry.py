"""bench.registry: variants are found by file, entry point and path, read without being imported, and never replaced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import registry
from bench.errors import UserError

HERE = Path(__file__).parent
BUILT_IN = {"full", "additive", "linear", "sparse", "local", "flash", "none"}


def one(path: str) -> registry.Entry:
    return registry.entries([path])[-1]


def distribution(folder: Path, name: str, points: str, source: str | None = None, group: str = registry.GROUP) -> None:
    """An installed package as the import system sees it: metadata with entry points, and its module."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{group}]\n{points}\n", encoding="utf-8")
    if source is not None:
        (folder / f"{name.replace('-', '_')}.py").write_text(source, encoding="utf-8")


def test_built_in_variants_are_files() -> None:
    found = {entry.name: entry for entry in registry.entries()}
    assert found.keys() >= BUILT_IN
    assert all(entry.broken is None and entry.summary and entry.claims for entry in found.values())


def test_listing_imports_no_variant_and_no_torch() -> None:
    code = (
        "import sys; from bench import registry; registry.entries(); registry.near_miss_groups();"
        "bad = [m for m in sys.modules if m == 'torch' or m.startswith('variants.')]; assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=HERE.parent)


def test_claims_and_knobs_are_read_as_declared(plugin) -> None:
    entry = one(plugin("knobbed"))
    assert entry.name == "knobbed"
    assert {name: knob.default for name, knob in entry.knobs.items()} == {
        "window": 4, "mode": "a", "rate": None, "on": False,
    }  # fmt: skip
    loaded = registry.load(entry.source())
    assert loaded.claims == entry.claims


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_what_is_read_equals_what_is_imported(name: str) -> None:
    entry = registry.find(name, registry.entries())
    assert registry.load(entry.source()).claims == entry.claims


def test_knobs_resolve_to_given_or_default(plugin) -> None:
    entry = one(plugin("knobbed"))
    assert registry.resolve_knobs(entry, {"window": 64, "rate": 0.0}) == {
        "window": 64, "mode": "a", "rate": 0.0, "on": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"window": 0}, "knob window must be greater than or equal to 1, got 0"),
        ({"window": 65}, "knob window must be less than or equal to 64, got 65"),
        ({"window": "8"}, "knob window must be a valid integer, got '8'"),
        ({"window": True}, "knob window must be a valid integer, got True"),
        ({"mode": "c"}, "knob mode must be 'a' or 'b', got 'c'"),
        ({"windw": 4}, "did you mean 'window'? (valid: mode, on, rate, window)"),
    ],
)
def test_a22_a_knob_outside_its_domain_is_refused_with_its_name_and_range(plugin, given, told) -> None:
    with pytest.raises(UserError) as error:
        registry.resolve_knobs(one(plugin("knobbed")), given)
    assert told in str(error.value)


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown variant 'flahs'; did you mean 'flash'"):
        registry.find("flahs", registry.entries())


def test_missing_file_is_an_error() -> None:
    with pytest.raises(UserError, match=r"variant file './nothing\.py' does not exist"):
        registry.entries(["./nothing.py"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [("broken_syntax", "SyntaxError"), ("unmarked", "one class marked by @variant, found none")],
)
def test_broken_source_is_listed_with_its_cause(plugin, name: str, reason: str) -> None:
    entry = one(plugin(name))
    assert entry.broken is not None
    assert reason in entry.broken
    with pytest.raises(UserError, match="is broken"):
        registry.find(name, [entry])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("@variant(kind='best', paper='')\nclass A:\n    pass\n", "kind must be one of exact, approximate, different"),
        ("@variant(kind='exact', paper='', caussal=True)\nclass A:\n    pass\n", "caussal"),
        ("@variant(kind='exact', paper=PAPER)\nclass A:\n    pass\n", "malformed node or string"),
        (
            "@variant(kind='exact', paper='')\nclass A:\n    def __init__(self, shape, *, a: list = 1): ...\n",
            "knob type 'list' is not known",
        ),
        (
            "@variant(kind='exact', paper='')\nclass A:\n    def __init__(self, shape, *, a=1): ...\n",
            "knob a needs a type and a default",
        ),
        (
            "@variant(kind='exact', paper='', causal=False, bidirectional=False)\nclass A: ...\n",
            "causal or bidirectional",
        ),
    ],
)
def test_wrong_declarations_say_what_is_wrong(tmp_path: Path, source: str, reason: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source, encoding="utf-8")
    entry = one(str(path))
    assert entry.broken is not None
    assert reason in entry.broken


def test_d04_an_entry_point_to_a_missing_attribute_names_package_and_point(tmp_path: Path, monkeypatch) -> None:
    distribution(tmp_path, "some-plugin", "mine = some_plugin:Missing", "x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    entry = next(entry for entry in registry.entries() if entry.name == "mine")
    assert "some-plugin 1.0" in entry.origin
    assert "mine = some_plugin:Missing" in entry.origin
    assert entry.broken is not None
    assert "no class 'Missing'" in entry.broken


def test_a_missing_module_is_listed_as_broken(tmp_path: Path, monkeypatch) -> None:
    distribution(tmp_path, "gone-plugin", "gone = gone_module.inner:Thing")
    monkeypatch.syspath_prepend(tmp_path)
    entry = next(entry for entry in registry.entries() if entry.name == "gone")
    assert entry.broken == "module 'gone_module.inner' does not exist"
    assert registry.find("full", registry.entries()).name == "full"


def test_d09_a_taken_name_is_an_error_naming_both_origins(tmp_path: Path, monkeypatch) -> None:
    source = "from bench.variant import variant\n@variant(kind='exact', paper='')\nclass A:\n    pass\n"
    distribution(tmp_path, "one-plugin", "full = one_plugin:A\nfoo = one_plugin:A", source)
    distribution(tmp_path, "two-plugin", "foo = two_plugin:A", source)
    monkeypatch.syspath_prepend(tmp_path)
    known = registry.entries()
    with pytest.raises(UserError, match=r"'full' is defined twice: built-in variants/full\.py and package one-plugin"):
        registry.find("full", known)
    with pytest.raises(UserError, match=r"package one-plugin.* and package two-plugin"):
        registry.find("foo", known)
    assert registry.find("flash", known).name == "flash"


def test_d06_a_near_miss_of_the_group_name_is_told(tmp_path: Path, monkeypatch) -> None:
    distribution(tmp_path, "old-plugin", "mine = old_plugin:A", group="bench.variant")
    monkeypatch.syspath_prepend(tmp_path)
    assert any("old-plugin" in note and "'bench.variant'" in note for note in registry.near_miss_groups())


def test_source_hash_follows_the_file_the_shared_maths_and_the_harness(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "mine.py"
    source = "@variant(kind='exact', paper='')\nclass A:\n    pass\n"
    path.write_text(source, encoding="utf-8")
    plain = registry.source_hash(one(str(path)))
    assert plain == registry.source_hash(one(str(path)))
    assert plain != registry.source_hash(one(str(path)), registry.TRAINING)
    path.write_text(source + "# changed\n", encoding="utf-8")
    assert plain != registry.source_hash(one(str(path)))


def test_source_hash_of_a_plugin_covers_its_whole_package(tmp_path: Path, monkeypatch) -> None:
    distribution(tmp_path, "big-plugin", "mine = big_package.inner.attention:A")
    inner = tmp_path / "big_package" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "big_package" / "__init__.py").write_text("", encoding="utf-8")
    (inner / "__init__.py").write_text("", encoding="utf-8")
    (inner / "attention.py").write_text("@variant(kind='exact', paper='')\nclass A:\n    pass\n", encoding="utf-8")
    helper = tmp_path / "big_package" / "helper.py"
    helper.write_text("x = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    def found() -> str:
        return registry.source_hash(next(entry for entry in registry.entries() if entry.name == "mine"))

    before = found()
    helper.write_text("x = 2\n", encoding="utf-8")
    assert found() != before


def test_variants_import_only_the_contract_and_shared_maths() -> None:
    import ast

    allowed = ("bench.variant", "bench.pairs", "variants._")
    for path in registry.BUILT_IN.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            ours = [name for name in names if name and name.split(".")[0] in ("bench", "variants")]
            assert all(name.startswith(allowed) for name in ours), (path.name, ours)


def test_the_example_plugin_installs_and_is_found(tmp_path: Path) -> None:
    """D07, F01: a real installation by pip into an empty folder, nothing compiled."""
    project = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(HERE / "plugin_example"), str(project)], check=True)
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*command, str(target), str(project)], check=True, capture_output=True)
    code = (
        f"import sys; sys.path.insert(0, {str(target)!r}); from bench import registry;"
        "e = registry.find('averaged', registry.entries()); assert 'attn-bench-example 1.0' in e.origin, e.origin;"
        "assert 'torch' not in sys.modules; from bench.conformance import run_checks;"
        "bad = [f for f in run_checks(registry.load(e.source()), {}) if f.status == 'fail']; assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=HERE.parent)
