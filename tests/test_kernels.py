"""Variants that stand for kernels of other libraries: refused with cause and remedy where they cannot run."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import registry
from bench.commands.author import check
from bench.launch import Launcher
from bench.variant import Shape, Unsupported, admit

ENTRIES = {entry.name: entry for entry in registry.entries()}
MODULES = {
    "flash_attn": "flash_attn", "fla": "fla.ops.linear_attn", "natten": "natten.functional",
    "sageattention": "sageattention",
}  # fmt: skip


def build(name: str, shape: Shape, **knobs: Any) -> Any:
    return registry.load(ENTRIES[name].source())(shape, **knobs)


@pytest.mark.parametrize("name", MODULES)
def test_an_absent_library_is_named_with_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = registry.load(ENTRIES[name].source())
    top = MODULES[name].partition(".")[0]

    def absent(module: str) -> None:
        assert module == MODULES[name]
        raise ModuleNotFoundError(f"No module named '{top}'", name=top)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(Unsupported, match=r"is not installed: pip install \S+ \(extra: attn-bench\[kernels\]\)"):
        cls(Shape(2, 64, causal=True))


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


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 1, 20, 200, 500])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (128, 128), (300, 300), (130, 400), (400, 130), (256, 1000)])
def test_flex_lists_the_blocks_of_its_mask_and_no_others(n: int, m: int, window: int, causal: bool) -> None:
    module = build("flex", Shape(1, 16, causal=causal), window=window)
    mask = module._block_mask(n, m, torch.device("cpu"))
    pattern = module.pattern(n, m)
    shown = torch.zeros_like(pattern)
    for counts, indices, whole in (
        (mask.kv_num_blocks, mask.kv_indices, False),
        (mask.full_kv_num_blocks, mask.full_kv_indices, True),
    ):
        for row in range(-(-n // 128)):
            for column in indices[0, 0, row, : counts[0, 0, row]].tolist():
                rows, columns = slice(row * 128, row * 128 + 128), slice(column * 128, column * 128 + 128)
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
