"""What a config's eviction policy and admission mean: whether the release can have them, and what to know of them."""

from __future__ import annotations

from kvsim.config import Connector, OffloadingConnectorConfig
from kvsim.config.policies import options_of_policy
from kvsim.errors import UserError
from kvsim.registry import is_class_path
from kvsim.releases import Release

# Policies that know what no server knows.
_ORDER = "the order of all requests, as at the trace's recorded pace: in a closed loop a heuristic, not a bound"
FORESIGHT = {
    "opt": _ORDER,
    "opt_bypass": _ORDER,
    "session_oracle": "when each stream's next turn comes: an upper bound of hints from clients",
}


def check_policy(connector: Connector, release: Release, version: str) -> None:
    """Our own policies hear of each use once per request, as they do from release 0.33.0 on.

    Raises:
        UserError: the release tells policies something else, or an option is wrong.
    """
    if not isinstance(connector, OffloadingConnectorConfig):
        return
    name = connector.eviction_policy
    if connector.admission.kind != "always" and not release.tells_uses_per_request:
        raise UserError(
            f"connector.admission: {connector.admission.kind}: expected always with engine.vllm_version {version}"
            " (store_threshold is its own)"
        )
    if is_class_path(name):
        return
    if name not in release.policies and not release.tells_uses_per_request:
        names = " or ".join(release.policies)
        raise UserError(
            f"connector.eviction_policy: {name}: expected {names} with engine.vllm_version {version}, where each lookup"
            " of a waiting request is a use"
        )
    options_of_policy(name, connector.eviction_policy_options)


def policy_notes(connector: Connector) -> list[str]:
    """A line about what the policy knows that no server does."""
    if not isinstance(connector, OffloadingConnectorConfig) or connector.eviction_policy not in FORESIGHT:
        return []
    return [f"eviction policy {connector.eviction_policy} knows {FORESIGHT[connector.eviction_policy]}"]
