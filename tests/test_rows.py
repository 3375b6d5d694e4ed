"""bench.rows: the row of a cell from its replicates."""

from __future__ import annotations

from typing import Any

import pytest

from bench.rows import flags_of


def reply(time_s: float = 1e-3, trend: float = 0.0, stable: bool = True, others: float = 0.0) -> dict[str, Any]:
    return {"samples_s": [time_s] * 3, "trend": trend, "stable": stable, "overhead_s": 1e-7, "others": others}


@pytest.mark.parametrize(
    ("replies", "flags"),
    [
        ([reply()] * 3, []),
        ([reply(trend=0.2), reply(), reply(trend=-0.01)], []),
        ([reply(trend=0.2), reply(trend=-0.2), reply()], []),
        ([reply(trend=0.06), reply(trend=0.09), reply()], ["drifting"]),
        ([reply(trend=-0.06)] * 2, ["drifting"]),
        ([reply(stable=False), reply(), reply()], []),
        ([reply(stable=False), reply(stable=False), reply()], ["warm-up not stable"]),
        ([reply(time_s=9e-7)] * 3, ["overhead-bound"]),
        ([reply(time_s=11e-7)] * 3, []),
        ([reply(others=0.2), reply(others=0.2), reply()], ["busy machine"]),
        ([reply(others=0.2), reply(), reply()], []),
        ([reply(time_s=1e-3), reply(time_s=9e-2), reply(time_s=1e-3)], ["replicates disagree"]),
        ([{**reply(), "slowdowns": ["power cap"]}] * 2 + [reply()], ["throttled: power cap"]),
        ([{**reply(), "slowdowns": ["power cap"]}, reply(), reply()], []),
    ],
)
def test_b23_b41_a_flag_says_what_most_replicates_show(replies: list[dict[str, Any]], flags: list[str]) -> None:
    assert flags_of(replies) == flags
