"""What configs of ExampleConnector and LMCache mean: sizes of chunks, and what to tell the user."""

from __future__ import annotations

from kvsim.config import Connector, ExampleConnectorConfig, LMCacheConnectorConfig, LMCacheMPConnectorConfig, RunConfig
from kvsim.errors import UserError
from kvsim.profile import LinkProfile
from kvsim.results.records import ASSUMED

LMCache = LMCacheConnectorConfig | LMCacheMPConnectorConfig


def blocks_per_chunk(connector: Connector, block_tokens: int) -> int:
    """GPU blocks in a chunk of LMCache; 1 for whatever has no chunks.

    Raises:
        UserError: chunks are not made of whole blocks.
    """
    if not isinstance(connector, LMCache):
        return 1
    size = connector.chunk_size
    if size % block_tokens:
        raise UserError(f"connector.chunk_size: {size} tokens, expected a multiple of block_size ({block_tokens})")
    return size // block_tokens


def check_tenants(config: RunConfig) -> None:
    """Quotas are of tenants that there are.

    Raises:
        UserError: they are not.
    """
    connector, tenants = config.connector, config.trace.tenants
    store = config.cluster.store if config.cluster is not None else None
    if store is not None:
        _check_names("cluster.store.quotas", list(store.quotas), tenants)
    if not isinstance(connector, LMCacheMPConnectorConfig) or connector.l2 is None:
        return
    _check_names("connector.l2.quotas", list(connector.l2.quotas), tenants)
    _check_names("connector.l2.quota_changes", [change.tenant for change in connector.l2.quota_changes], tenants)


def _check_names(key: str, names: list[str], tenants: list[str]) -> None:
    unknown = [name for name in names if name not in tenants]
    if unknown:
        expected = ", ".join(tenants) or "names in trace.tenants, which is empty"
        raise UserError(f"{key}: no tenant {unknown[0]!r}, expected {expected}")


def one_copy_note(connector: Connector, model: str, ranks: int) -> str | None:
    """LMCache's way with latents that all ranks hold; None for others."""
    if not isinstance(connector, LMCache):
        return None
    return (
        f"the {ranks} ranks hold the same latent KV of {model}: LMCache's first rank keeps it and sends it on"
        " (save_only_first_rank), which takes no time here"
    )


def notes_of(config: RunConfig, link: LinkProfile) -> list[str]:
    """Choices and assumptions of these connectors."""
    connector = config.connector
    if not isinstance(connector, ExampleConnectorConfig | LMCache) or config.transfer.kind != "profile":
        return []
    unused = {"dma_loop", "kernel", "remote"}
    example = isinstance(connector, ExampleConnectorConfig)
    notes = [f"{ASSUMED}{link.name} {line}" for line in link.assumptions(unused if example else unused | {"pageable"})]
    if isinstance(connector, ExampleConnectorConfig):
        if not link.has("pageable"):
            notes.append(f"{ASSUMED}files are copied at the pinned rate of {link.name}, vLLM's memory is not pinned")
        return notes
    layerwise = isinstance(connector, LMCacheConnectorConfig) and connector.use_layerwise
    pieces = "chunk and layer" if layerwise else "chunk"
    notes.append(
        f"{ASSUMED}LMCache's copies (kernels, single copies) take the time of a batch of one piece per {pieces}"
    )
    if layerwise:
        notes.append("piecewise_launch: 4.7 us per layer is from one measurement (vllm#51167: H200, 58 layers)")
    if isinstance(connector, LMCacheMPConnectorConfig):
        notes.append(f"{ASSUMED}lookup_latency of the LMCache server")
    return notes


def cautions_of(config: RunConfig, ranks: int) -> list[str]:
    """What makes the setup itself questionable."""
    found: list[str] = []
    connector = config.connector
    if isinstance(connector, ExampleConnectorConfig) and ranks > 1:
        found.append(
            f"vLLM's ExampleConnector gives the files of all {ranks} ranks the same names, so that each overwrites the"
            " others': what it would load is wrong. Here every rank has its own."
        )
    if isinstance(connector, ExampleConnectorConfig | LMCacheConnectorConfig) and len(config.trace.tenants) > 1:
        name = "ExampleConnector" if isinstance(connector, ExampleConnectorConfig) else "LMCacheConnectorV1"
        found.append(f"{name} hashes tokens without cache_salt: tenants find each other's KV.")
    return found
