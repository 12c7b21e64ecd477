"""What hardware costs: literal sums, sources, and prices of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plan_builder import RUN

from kvsim.checked import check
from kvsim.config import make_config
from kvsim.errors import UserError
from kvsim.plan.prices import (
    Price,
    PricesConfig,
    Resources,
    cost_usd,
    default_prices,
    prices_of,
    resources_of,
)
from kvsim.steptime.gpu import load_gpu
from kvsim.yamlfile import Document

GIB, TIB = 2**30, 2**40


def prices(data: dict[str, Any]) -> PricesConfig:
    """A checked section."""
    return check(PricesConfig, Document("plan.yaml", data))


def test_cost_is_hours_times_the_sum_of_the_parts() -> None:
    """Half an hour of 8 GPUs at 3 USD, 1,024 GiB at 0.01, 2 TiB at 0.5 and 800 Gbit/s at 0.001."""
    own = prices_of(
        prices(
            {
                "gpu_hour": {"h100-sxm": "3 USD"},
                "dram_gib_hour": 0.01,
                "nvme_tib_hour": "0.5 USD",
                "network_gbps_hour": 0.001,
            }
        )
    )
    takes = Resources(2, {"h100-sxm": 8}, 1024 * GIB, 2 * TIB, 800.0)
    found = cost_usd(own, takes, 1800.0)
    assert found == pytest.approx({"gpu": 12.0, "dram": 5.12, "nvme": 0.5, "network": 0.4, "total": 18.02})
    held = cost_usd(own, takes, 1800.0, unbounded_bytes=4 * TIB)
    assert held["nvme"] == pytest.approx(1.5)
    assert held["total"] == pytest.approx(19.02)


def test_every_shipped_price_has_a_source_and_a_date() -> None:
    """Each default names who asks for it and when that was read, or says that it is assumed; GPUs are known ones."""
    shipped = default_prices()
    assert shipped.gpu_hour["h100-sxm"].usd == 3.99
    assert shipped.dram_gib_hour.usd == 0.004237
    for name, price in shipped.gpu_hour.items():
        assert load_gpu(name).name == name
        assert price.usd > 0
    every = [*shipped.gpu_hour.values(), shipped.dram_gib_hour, shipped.nvme_tib_hour, shipped.network_gbps_hour]
    for price in every:
        assert "http" in price.source or "(" in price.source or price.source.startswith("assumed")
        assert price.date.startswith("2026-")


def test_own_prices_win_and_the_others_stay() -> None:
    """A price of a plan replaces the shipped one, under any name of the GPU; the rest are list prices."""
    own = prices_of(prices({"gpu_hour": {"h100": 1.5}}))
    assert own.gpu_hour["h100-sxm"] == Price(usd=1.5)
    assert own.gpu_hour["h200-sxm"] == default_prices().gpu_hour["h200-sxm"]
    assert own.dram_gib_hour == default_prices().dram_gib_hour
    assert (
        own.sources(Resources(1, {"h100-sxm": 4}))[0] == "price of a GPU-hour of h100-sxm: 1.5 USD (given in the plan)"
    )


def test_a_gpu_without_a_price_is_told() -> None:
    """No price is made up: a GPU that none is known of asks for one, with how to give it."""
    with pytest.raises(UserError, match=r"prices.gpu_hour.l4 is missing: no list price .* \{l4: 2.99 USD\}"):
        default_prices().per_hour(Resources(1, {"l4": 1}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"gpu_hour": {"h100": "cheap"}}, "gpu_hour.h100.usd: expected a price such as 2.99 USD, found 'cheap'"),
        ({"gpu_hour": {"h100": "2.99 EUR"}}, "expected a price such as 2.99 USD, found '2.99 EUR'"),
        ({"gpu_hour": {"h100": -1}}, "gpu_hour.h100.usd: expected at least 0, found -1"),
        ({"gpu_hour": {"h100": float("nan")}}, "gpu_hour.h100.usd: expected"),
        ({"gpu_hour": {"h100": "nan USD"}}, "expected a price such as 2.99 USD"),
        ({"dram_gb_hour": 1}, "unknown key dram_gb_hour, did you mean dram_gib_hour?"),
        ({"dram_gib_hour": True}, "dram_gib_hour.usd: expected"),
    ],
)
def test_a_bad_price_names_its_key(data: dict[str, Any], message: str) -> None:
    """A price that is none is one line with key, value and expectation."""
    with pytest.raises(UserError) as caught:
        prices(data)
    assert message in str(caught.value)


def test_an_unknown_gpu_is_told() -> None:
    """A price of a GPU that nobody knows is a mistake."""
    with pytest.raises(UserError, match=r"prices.gpu_hour.h1000: "):
        prices_of(prices({"gpu_hour": {"h1000": 1}}))


def resources(**sections: Any) -> Resources:
    """Of a run with these sections."""
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in RUN.items()} | sections
    return resources_of(make_config(Document("run.yaml", data), Path("/")))


def test_resources_of_one_server() -> None:
    """GPUs of all ranks, CPU memory in total, and NVMe with or without a capacity."""
    four = {"tensor_parallel_size": 4}
    assert resources(hardware=four) == Resources(1, {"h100-sxm": 4})
    tiers = [{"kind": "fs", "capacity": "2TiB"}, {"kind": "fs", "name": "more"}, {"kind": "obj"}]
    offloading = {"kind": "offloading", "cpu_bytes_to_use": "64GiB", "tiers": tiers}
    assert resources(hardware=four, connector=offloading) == Resources(
        1, {"h100-sxm": 4}, 64 * GIB, 2 * TIB, 0.0, unbounded_tiers=1
    )
    per_rank = {"kind": "simple_cpu", "cpu_bytes_to_use_per_rank": "8GiB"}
    assert resources(hardware=four, connector=per_rank).dram_bytes == 32 * GIB


def test_resources_of_a_cluster() -> None:
    """Groups add up, each with its own GPUs; a shared store adds what each node lends, and its NICs."""
    groups = [{"name": "a", "count": 3}, {"name": "b", "count": 2, "hardware": {"gpu": "a100-sxm"}}]
    assert resources(cluster={"instances": groups}) == Resources(5, {"h100-sxm": 3, "a100-sxm": 2})
    store = {"kind": "mooncake", "memory_per_node": "100GiB", "disk_per_node": "1TiB"}
    shared = resources(
        cluster={"instances": [{"name": "a", "count": 3}], "store": store}, connector={"kind": "mooncake_store"}
    )
    assert shared == Resources(3, {"h100-sxm": 3}, 300 * GIB, 3 * TIB, 1200.0)
