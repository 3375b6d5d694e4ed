"""bench.measure.memory and bench.plan: exact bytes on the CPU, and a prediction that equals the measurement."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench import plan, registry
from bench.cells import Cell, cells
from bench.measure import kernels, memory, workload
from bench.sweep import make_sweep

MIB = 2**20
SHAPE = {"heads": [8], "head_dim": [64], "batch": [1]}


def cell(variant: str, n: int, pass_: str, *, causal: bool = False, load: str = "attention", **more: Any) -> Cell:
    sweep = make_sweep({
        "variant": [variant], "workload": [load], "seq_len": [n], "pass": [pass_], "causal": [causal], **SHAPE, **more,
    })  # fmt: skip
    files = [variant] if registry.is_file(variant) else []
    return cells(sweep, registry.entries(files), devices=["cpu"], threads=1, environment="e")[0]


def built(of: Cell) -> workload.Workload:
    return workload.build(of, registry.load(of.source), "cpu")


def peak(of: Cell) -> int:
    call = built(of).call
    return memory.peak_of(kernels.profile_call(call, "cpu").deltas)


@pytest.mark.parametrize(
    ("n", "pass_", "mib"), [(1024, "forward", 66), (1024, "train", 98), (4096, "forward", 1032), (4096, "train", 1544)]
)
def test_naive_softmax_needs_exactly_what_is_computed_by_hand(n: int, pass_: str, mib: int) -> None:
    of = cell("full", n, pass_)
    assert peak(of) == mib * MIB
    assert plan.predict(of)["peak_bytes"] == mib * MIB


def test_b12_memory_freed_within_the_call_counts(plugin) -> None:
    honest, hidden = (peak(cell(plugin(name), 128, "forward")) for name in ("honest", "hidden"))
    assert hidden == max(honest, 64 * MIB)


def test_b14_a_small_cell_after_a_big_one_has_its_own_peak() -> None:
    big = peak(cell("full", 2048, "forward"))
    small = peak(cell("linear", 128, "forward"))
    assert small < 0.1 * big


def test_b18_inputs_params_output_and_saved_are_told_apart() -> None:
    of = cell("full", 256, "train")
    work = built(of)
    profile = kernels.profile_call(work.call, "cpu")
    found = memory.measure_memory(
        work.call, work.forward, inputs=work.inputs, params=work.params, train=True, device="cpu", profile=profile
    )
    one = 8 * 256 * 64 * 4
    assert found.inputs_bytes == 4 * one  # q, k, v and the gradient that comes from above
    assert found.params_bytes == 0
    assert found.output_bytes == one
    assert found.saved_bytes == 8 * 256 * 256 * 4  # the weights


def test_b19_a_hundred_train_calls_keep_nothing() -> None:
    work = built(cell("full", 64, "train", load="block"))

    def hundred() -> None:
        for _ in range(100):
            work.call()

    assert sum(kernels.profile_call(hundred, "cpu").deltas) == 0
    assert all(leaf.grad is None for leaf in [*work.inputs, *work.params])


def test_b11_the_inputs_are_three_separate_seeded_tensors_equal_for_all_variants() -> None:
    first, second = (built(cell(name, 32, "forward")).inputs for name in ("full", "linear"))
    assert len({x.data_ptr() for x in first}) == 3
    assert not torch.equal(first[1], first[2])
    assert all(x.abs().min() > 0 and torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_b15_a_device_without_a_counter_gives_null_and_a_reason() -> None:
    found, reason = memory.measure_peak(lambda: None, "mps", kernels.Profile([], []))
    assert found is None
    assert reason == "device mps has no peak memory counter"


def test_b33_the_causal_flash_kernel_gets_no_dense_mask() -> None:
    peaks = [peak(cell("flash", n, "forward", causal=True)) for n in (512, 1024, 2048)]
    assert peaks[2] < 2.5 * peaks[1] < 2.5 * 2.5 * peaks[0]
    operators = kernels.profile_call(built(cell("flash", 512, "forward", causal=True)).call, "cpu").operators
    assert kernels.missing(operators, ("flash_attention",)) == []
    assert kernels.missing(operators, ("efficient_attention",)) == ["efficient_attention"]


@pytest.mark.parametrize("variant", ["linear", "local", "sparse", "flash", "additive"])
@pytest.mark.parametrize("pass_", ["forward", "train"])
def test_peak_grows_linearly_where_it_is_claimed(variant: str, pass_: str) -> None:
    heads = {"heads": [1], "head_dim": [16]}
    short, long = (peak(cell(variant, n, pass_, causal=True, **heads)) for n in (1024, 2048))
    assert long < 2.2 * short


@pytest.mark.parametrize("variant", ["full", "linear", "local", "sparse", "additive", "flash", "none"])
@pytest.mark.parametrize("pass_", ["forward", "train"])
@pytest.mark.parametrize("load", ["attention", "block", "model"])
def test_the_prediction_equals_the_measurement(variant: str, pass_: str, load: str) -> None:
    """Fused operators allocate inside what fake tensors cannot see: their prediction may be lower, by a bounded sum."""
    of = cell(variant, 300, pass_, causal=True, load=load, heads=[2], head_dim=[16])
    predicted, measured = plan.predict(of)["peak_bytes"], peak(of)
    assert predicted is not None
    hidden = 2 * MIB if variant in ("flash", "local", "sparse") else 0
    assert predicted <= measured <= predicted + hidden


def test_b30_grouped_heads_change_memory_not_flops() -> None:
    costs = [built(cell("full", 64, "forward", kv_heads=[g])) for g in (1, 2, 8)]
    assert len({work.flops for work in costs}) == 1
    assert len({memory.tensor_bytes(work.inputs) for work in costs}) == 3


def test_b28_flops_of_fused_attention_are_counted_by_our_rule() -> None:
    of = cell("flash", 64, "forward", heads=[12])
    assert built(of).flops == 12582912


def test_flops_of_a_block_and_a_train_call_are_those_worked_out_by_hand() -> None:
    """d=128, n=32: q, k, v, o are 4 d*d, the feed-forward 8 d*d; causal attention 32*33/2 pairs * 4 * 128."""
    width, n = 128, 32
    of = {"heads": [2], "head_dim": [64], "causal": True, "load": "block"}
    by_hand = 2 * 12 * width * width * n + n * (n + 1) // 2 * 4 * width
    assert built(cell("full", n, "forward", **of)).flops == by_hand
    assert built(cell("full", n, "train", **of)).flops == 3 * by_hand
    head = 2 * width * 256 * n
    assert built(cell("full", n, "forward", **{**of, "load": "model"})).flops == 2 * by_hand + head


def test_a_recurrent_step_costs_the_same_at_any_length() -> None:
    short, long = (built(cell("linear", n, "decode", causal=True)) for n in (64, 512))
    assert short.flops == long.flops
    assert memory.tensor_bytes(short.inputs) == memory.tensor_bytes(long.inputs)
    cached = [built(cell("full", n, "decode", causal=True)) for n in (64, 512)]
    assert cached[1].flops == 8 * (cached[0].flops or 0)
