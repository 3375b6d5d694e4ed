"""Variants that stand for kernels of other libraries: refused with cause and remedy where they cannot run."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stand_ins
import torch

from bench import registry
from bench.commands.author import check
from bench.conformance.run import run_checks
from bench.launch import Launcher
from bench.variant import Shape, Unsupported, admit

ENTRIES = {entry.name: entry for entry in registry.entries()}
MODULES = {
    "flash_attn": ("flash_attn", "flash-attn"), "fla": ("fla.ops.linear_attn", "flash-linear-attention"),
    "natten": ("natten.functional", "natten"), "sageattention": ("sageattention", "sageattention"),
}  # fmt: skip
EXTRAS = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


def build(name: str, shape: Shape, **knobs: Any) -> Any:
    return registry.load(ENTRIES[name].source())(shape, **knobs)


@pytest.mark.parametrize("name", MODULES)
def test_an_absent_library_is_named_with_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = registry.load(ENTRIES[name].source())
    asked, package = MODULES[name]
    top = asked.partition(".")[0]

    def absent(module: str) -> None:
        assert module == asked
        raise ModuleNotFoundError(f"No module named '{top}'", name=top)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(Unsupported) as refused:
        cls(Shape(2, 64, causal=True))
    told = re.fullmatch(r"(\S+) is not installed: pip install (\S+) \(or attn-bench\[(\S+)\]\)", str(refused.value))
    assert told is not None
    assert told[1] == told[2] == package
    assert [re.split("[>=;]", one)[0] for one in EXTRAS[told[3]]] == [package]


def test_flash_attention_3_is_not_installed_from_the_empty_package_of_its_name() -> None:
    with pytest.raises(Unsupported, match=r"pip install flash-attn-3 --index-url https://download\.pytorch\.org\S+$"):
        build("flash_attn", Shape(2, 64, causal=True), version="3")


@pytest.mark.parametrize("error", ["ImportError('libcudart.so.12: cannot open')", "RuntimeError('0 active drivers')"])
def test_a_broken_library_is_unsupported_with_its_own_cause(error: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "flash_attn.py").write_text(f"raise {error}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    with pytest.raises(Unsupported, match=r"flash-attn is installed but cannot be imported: (libcudart|0 active)"):
        build("flash_attn", Shape(2, 64, causal=True))


def test_importing_every_variant_imports_no_optional_library() -> None:
    code = (
        "import sys; from bench import registry\n"
        "for entry in registry.entries(): registry.load(entry.source())\n"
        "print(sorted({'flash_attn', 'fla', 'natten', 'sageattention', 'xformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_check_all_passes_over_what_cannot_run_here_and_check_by_name_does_not(capsys, monkeypatch) -> None:
    monkeypatch.setattr(registry, "entries", lambda *_: [ENTRIES["none"], ENTRIES["sageattention"]])
    settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", "settings": {}}
    assert check([], True, **settings) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "sageattention: cannot run here: " in told
    assert check(["sageattention"], False, **settings) == 1


def test_what_has_no_backward_is_refused_for_training_and_admitted_for_a_forward() -> None:
    shape = Shape(2, 16, causal=True)
    module = build("flex", shape)
    asked = {"dtype": "float32", "device": "cpu", "query_len": 8, "key_len": 8}
    admit(module, shape, **asked)
    with pytest.raises(Unsupported, match="training is not supported: FlexAttention has no backward on CPUs"):
        admit(module, shape, **asked, train=True)


MASKS: list[dict[str, Any]] = [
    *({"window": window} for window in (0, 1, 20, 200, 500)),
    *({"layout": layout, "block": block, "blocks": 3} for layout in ("window", "window+global") for block in (64, 128)),
    {"layout": "random", "block": 48, "blocks": 4},
]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("knobs", MASKS)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (128, 128), (300, 300), (130, 400), (400, 130), (256, 1000)])
def test_flex_lists_the_blocks_of_its_mask_and_no_others(n: int, m: int, knobs: dict, causal: bool) -> None:
    module = build("flex", Shape(1, 16, causal=causal), **knobs)
    mask = module.mask(n, m, torch.device("cpu"))
    pattern = module.pattern(n, m)
    rows, columns = torch.arange(n)[:, None], torch.arange(m)
    assert torch.equal(mask.mask_mod(0, 0, rows, columns), pattern)
    shown = torch.zeros_like(pattern)
    size = mask.BLOCK_SIZE[0]
    for counts, indices, whole in (
        (mask.kv_num_blocks, mask.kv_indices, False),
        (mask.full_kv_num_blocks, mask.full_kv_indices, True),
    ):
        for row in range(-(-n // size)):
            for column in indices[0, 0, row, : counts[0, 0, row]].tolist():
                rows, columns = slice(row * size, row * size + size), slice(column * size, column * size + size)
                assert pattern[rows, columns].all() if whole else pattern[rows, columns].any()
                shown[rows, columns] = True
    assert not (pattern & ~shown).any()


def test_list_says_whether_each_variant_can_run_here() -> None:
    with Launcher() as launcher:
        sources = [ENTRIES[name].source() for name in ("flash", "sageattention")]
        reply = launcher.call({"function": "try out", "sources": sources}, timeout_s=60)
    assert reply["broken"] == {"flash": None, "sageattention": None}
    assert reply["refused"]["flash"] is None
    assert reply["refused"]["sageattention"]


def draw(n: int, m: int, kv_heads: int = 2, head_dim: int = 8, value_dim: int = 8) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((2, 4, n, head_dim), (2, kv_heads, m, head_dim), (2, kv_heads, m, value_dim))
    return [torch.randn(size, generator=generator) for size in sizes]


def close(out: torch.Tensor, right: torch.Tensor) -> None:
    torch.testing.assert_close(out.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [None, 0.0, -1.0])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 1, 4])
@pytest.mark.parametrize(("n", "m"), [(9, 9), (3, 9), (9, 3), (1, 9)])
@pytest.mark.parametrize("name", ["flash_attn", "xformers"])
def test_a_kernel_is_asked_for_the_pattern_in_its_own_terms(name, n, m, window, causal, scale, monkeypatch) -> None:
    stand_ins.install(monkeypatch, name)
    module = build(name, Shape(4, 8, kv_heads=2, causal=causal), window=window, scale=scale)
    q, k, v = draw(n, m)
    reach = window - 1 if window else None
    allowed = stand_ins.seen(n, m, reach, 0 if causal else reach)
    assert torch.equal(module.pattern(n, m), allowed)
    close(module(q, k, v), stand_ins.plain(q, k, v, allowed, module.scale))


@pytest.mark.parametrize("kernel", ["cutlass", "flash"])
def test_xformers_is_asked_for_a_kernel_by_name(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins.install(monkeypatch, "xformers")
    ops = importlib.import_module("xformers.ops")
    asked: list[Any] = []

    def call(*qkv: torch.Tensor, op: Any, **more: Any) -> torch.Tensor:
        asked.extend(op)
        return stand_ins.memory_efficient_attention(*qkv, op=op, **more)

    monkeypatch.setattr(ops, "memory_efficient_attention", call)
    build("xformers", Shape(4, 8, kv_heads=2), kernel=kernel)(*draw(9, 9))
    assert [f"{one.__module__}.{one.__name__}" for one in asked] == [
        f"xformers.ops.fmha.{kernel}.{one}" for one in ("FwOp", "BwOp")
    ]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [2, 3, 4, 9])
def test_natten_moves_its_window_inwards_at_the_borders(window: int, causal: bool, monkeypatch) -> None:
    stand_ins.install(monkeypatch, "natten")
    module = build("natten", Shape(4, 8, causal=causal), window=window)
    for n in (9, window - 1, 1):
        q, k, v = draw(n, n, kv_heads=4)
        pattern = module.pattern(n, n)
        assert n >= window or torch.equal(pattern, stand_ins.seen(n, n, None, 0 if causal else None))
        close(module(q, k, v), stand_ins.plain(q, k, v, pattern, 8**-0.5))


@pytest.mark.parametrize(("head_dim", "value_dim"), [(8, 8), (64, 64), (65, 8), (8, 128)])
def test_sageattention_gets_one_of_its_widths(head_dim: int, value_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins.install(monkeypatch, "sageattention")
    module = build("sageattention", Shape(4, head_dim, kv_heads=2, value_dim=value_dim, causal=True))
    q, k, v = draw(9, 9, head_dim=head_dim, value_dim=value_dim)
    close(module(q, k, v), stand_ins.plain(q, k, v, stand_ins.seen(9, 9, None, 0), head_dim**-0.5))
    with pytest.raises(Unsupported, match="at most 128, got 129"):
        build("sageattention", Shape(2, 129))


@pytest.mark.parametrize(
    ("name", "dtype", "knobs"),
    [
        ("flash_attn", "bfloat16", {"window": 5}),
        ("flash_attn", "float16", {}),
        ("xformers", "float32", {"window": 5}),
        ("xformers", "bfloat16", {}),
        ("natten", "float32", {"window": 3}),
        ("natten", "float32", {}),
        ("sageattention", "bfloat16", {}),
    ],
)
def test_all_checks_pass_where_a_stand_in_takes_the_place_of_the_kernel(name, dtype, knobs, monkeypatch) -> None:
    """What the kernel itself does shows on a GPU only; what is around it, and what is claimed, shows here."""
    stand_ins.install(monkeypatch, name)
    cls: Any = registry.load(ENTRIES[name].source())
    monkeypatch.setattr(cls, "claims", replace(cls.claims, devices=("cpu",)))
    findings = run_checks(cls, knobs, device="cpu", dtype=dtype)
    assert [finding for finding in findings if finding.status == "fail"] == []
    judged = {finding.check for finding in findings if finding.status in ("pass", "info")}
    assert judged >= {"values", "lengths", "causality", "claims", "widths"}


def test_fla_refuses_float32_where_the_package_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("fla", "fla.ops", "fla.ops.delta_rule"):
        monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(chunk_delta_rule=None))
    shape = Shape(2, 8, causal=True)
    module = build("fla", shape, op="delta")
    asked = {"device": "cuda", "query_len": 8, "key_len": 8}
    admit(module, shape, dtype="bfloat16", **asked)
    with pytest.raises(Unsupported, match="op 'delta' of flash-linear-attention takes bfloat16, got float32"):
        admit(module, shape, dtype="float32", **asked)
