"""Names and classes: one registry for what comes with kvsim and what users bring."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from kvsim.checked import components, kinds
from kvsim.config import RouterConfig, RunConfig, load_config
from kvsim.config.tiers import Tiers
from kvsim.errors import UserError
from kvsim.registry import CONNECTORS, POLICIES, ROUTERS, STEP_TIMES, TIERS, Registry
from kvsim.releases import RELEASES

POLICY = """
from kvsim.checked import Component
from kvsim.offload.policies.lru import LruPolicy

class Mine(LruPolicy):
    def __init__(self, capacity, slots, alpha=1):
        super().__init__(capacity, slots)
        self.alpha = alpha

class NoPolicy:
    pass

class Tier:
    class Config(Component):
        size: int
    epoch = lookup = on_schedule_end = on_request_finished = submit = poll = is_idle = None
"""
CONNECTOR = """
from kvsim.checked import Component
from kvsim.connectors.base import KVConnector
from kvsim.units import Rate

class Half(KVConnector):
    def get_num_new_matched_tokens(self, request, num_local_tokens):
        return 0, False

class Whole(Half):
    class Config(Component):
        bandwidth: Rate
    def __init__(self, site, config):
        self.config = config
    def make_worker(self): ...
    def update_state_after_alloc(self, request, table, num_external_tokens): ...
    def build_connector_meta(self, output): ...
    def request_finished(self, request, table): ...
    def update_connector_output(self, output): ...
"""
BASE = """
trace: {path: trace.jsonl}
model: llama-3.1-8b
connector:
"""


def complaint(folder: Path, connector: str, *overrides: str) -> str:
    """What the user hears about a connector section, beside modules named policies, connectors and broken."""
    (folder / "own_policies.py").write_text(POLICY)
    (folder / "own_connectors.py").write_text(CONNECTOR)
    (folder / "broken.py").write_text("x = 1\n1 / 0\n")
    (folder / "misspelt.py").write_text("import nosuchmodule\n")
    (folder / "no_python.py").write_text("x = 1\ndef f(:\n")
    (folder / "run.yaml").write_text(BASE + connector)
    with pytest.raises(UserError) as caught:
        load_config(folder / "run.yaml", overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text.removeprefix(f"{folder}/")


def test_a_name_is_given_once() -> None:
    """Two classes cannot have one name."""
    registry = Registry("thing", "kvsim.errors:UserError")
    registry.register("one", "kvsim.errors:UserError", "the first")
    with pytest.raises(ValueError, match="thing 'one' is registered already, as kvsim"):
        registry.register("one", "kvsim.errors:ConfigError", "the second")


def test_the_registry_names_what_configs_and_releases_know() -> None:
    """Every registered connector and step-time model is a kind of a config; every release has policies of its own."""

    def built_in(section: str) -> set[str]:
        classes = components(RunConfig.model_fields[section].annotation)
        return {kind for found in classes for kind in kinds(found)}

    assert set(CONNECTORS.names()) == built_in("connector") - {"none"}
    assert set(STEP_TIMES.names()) == built_in("step_time")
    assert TIERS.names() == [kind for found in components(Tiers) for kind in kinds(found)]
    assert ROUTERS.names() == [kind for found in components(RouterConfig) for kind in kinds(found)]
    assert all(set(release.policies) == {"lru", "arc"} <= set(POLICIES.names()) for release in RELEASES.values())


def test_registered_classes_can_be_imported() -> None:
    """Every path in the registry leads to a class, and the newest release uses the same policies."""
    newest = RELEASES["0.33.0"]
    assert {name: POLICIES.find(name) for name in POLICIES.names()}.items() >= newest.policies.items()
    assert CONNECTORS.find("offloading") is newest.offloading_connector
    assert CONNECTORS.find("simple_cpu") is newest.simple_cpu_connector
    assert [STEP_TIMES.find(name).__name__ for name in STEP_TIMES.names()] == ["Roofline", "FixedStep"]


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    """The registry alone imports no connector and no step-time model."""
    code = "import sys, kvsim.registry; print([m for m in sys.modules if m.startswith(('kvsim.conn', 'kvsim.step'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)  # noqa: S603 - our own interpreter
    assert done.stdout == "[]\n"


def test_an_unknown_name_is_told_with_the_closest() -> None:
    """The registry names what there is."""
    with pytest.raises(
        UserError, match=r"unknown policy 'lur', expected one of lru, arc, .* or module:Class, did you mean lru"
    ):
        POLICIES.find("lur")


WRONG = {
    "kind: nowhere:Mine": ["5: connector.kind: module nowhere not found, looked in sys.path, {folder}"],
    "kind: own_connectors:Whol": [
        "5: connector.kind: module own_connectors has no class Whol, did you mean Whole?",
    ],
    "kind: own_policies:Mine": [
        "5: connector.kind: own_policies:Mine is not a connector: expected a subclass of kvsim.connectors.base.KVCon",
    ],
    "kind: own_connectors:Half": [
        "5: connector.kind: own_connectors:Half lacks build_connector_meta, request_finished, update_connector_output,",
        "expected what kvsim.connectors.base.KVConnector asks for",
    ],
    "kind: broken:Mine": ["5: connector.kind: module broken cannot be imported: broken.py:2: ZeroDivisionError"],
    "kind: misspelt:Mine": [
        "5: connector.kind: module misspelt cannot be imported: misspelt.py:1: ModuleNotFoundError: No module named",
    ],
    "kind: no_python:Mine": ["5: connector.kind: module no_python cannot be imported: no_python.py:2: SyntaxError"],
    "kind: 'own connectors:Whole'": ["5: connector.kind: 'own connectors:Whole': expected module_path:Class"],
    "kind: own_connectors:Whole": ["connector.options.bandwidth is missing"],
    "kind: own_connectors:Whole\n  options:\n    bandwith: 1GB/s": [
        "7: unknown key connector.options.bandwith, did you mean bandwidth? (in connector.options)",
    ],
    "kind: own_connectors:Whole\n  options:\n    bandwidth: 10": ["7: connector.options.bandwidth: expected a rate"],
    "kind: offloading\n  cpu_bytes_to_use: 1GiB\n  tiers:\n  - kind: own_policies:Tier\n    options: {siz: 3}": [
        "9: unknown key connector.tiers.0.options.siz, did you mean size? (in connector.tiers.0.options)",
    ],
    "kind: own_connectors:Whole\n  option: {}": ["6: unknown key connector.option, did you mean options?"],
    "kind: offloading\n  cpu_bytes_to_use: 1GiB\n  eviction_policy: own_policies:NoPolicy": [
        "7: connector.eviction_policy: own_policies:NoPolicy is not a policy",
    ],
    "kind: offloading\n  cpu_bytes_to_use: 1GiB\n  eviction_policy: own_policies:Mine\n"
    "  eviction_policy_options: {beta: 2}": [
        "8: connector.eviction_policy_options: Mine(capacity, slots, **options): got an unexpected keyword argument",
        "'beta'; expected options: alpha",
    ],
    "kind: offloading\n  cpu_bytes_to_use: 1GiB\n  tiers: [{kind: own_policies:NoPolicy}]": [
        "7: connector.tiers.0.kind: own_policies:NoPolicy lacks epoch, lookup, on_schedule_end,",
    ],
    "kind: none\nstep_time: {kind: own_policies:Mine}": ["6: step_time.kind: own_policies:Mine lacks step_ns"],
}


@pytest.mark.parametrize("connector", WRONG)
def test_a_class_that_will_not_do_is_one_line(tmp_path: Path, connector: str) -> None:
    """The message names file, line, key and class, and what was expected."""
    text = complaint(tmp_path, f"  {connector}\n")
    assert text.startswith("run.yaml:")
    for part in WRONG[connector]:
        assert part.replace("{folder}", str(tmp_path)) in text


def test_an_override_is_named_as_the_place(tmp_path: Path) -> None:
    """A path given with --set is blamed on it."""
    text = complaint(tmp_path, "  kind: none\n", "connector.kind=nowhere:Mine")
    assert text.startswith("--set connector.kind=nowhere:Mine: connector.kind: module nowhere not found")


def test_the_resolved_config_finds_its_modules_again(tmp_path: Path) -> None:
    """`python_path` holds the folder of the file, as an absolute path."""
    (tmp_path / "own_policies.py").write_text(POLICY)
    (tmp_path / "run.yaml").write_text(
        BASE + "  {kind: offloading, cpu_bytes_to_use: 1GiB, eviction_policy: 'own_policies:Mine'}\n"
    )
    assert load_config(tmp_path / "run.yaml").python_path == (str(tmp_path),)


def test_the_same_module_name_in_two_folders(tmp_path: Path) -> None:
    """Each config gets the module that lies beside it, in one process."""
    found = []
    for name, default in (("a", 1), ("b", 2)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "twins.py").write_text(f"class Twin:\n    step_ns = lambda *_: {default}\n    which = '{name}'\n")
        found.append(STEP_TIMES.find("twins:Twin", [str(folder)]))
    assert [vars(twin)["which"] for twin in found] == ["a", "b"]


def test_kind_literals_are_text() -> None:
    """A kind never holds a colon, which is what tells a class path from a name."""
    names = [*CONNECTORS.names(), *POLICIES.names(), *STEP_TIMES.names()]
    assert not [name for name in names if ":" in name]
    assert get_args(RunConfig.model_fields["connector"].annotation)
