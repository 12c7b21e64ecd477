"""Record the KV events of the real vLLM on scenarios; see the README beside `scenarios`.

    PYTHONHASHSEED=0 PYTHON_WITH_TORCH record.py VLLM_SOURCE_DIR OUT_DIR SCENARIO.json ...

Writes OUT_DIR/NAME.jsonl.gz: a line per batch, with the step in ``ts`` and contents by name instead of by hash.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path

LIVE = Path(__file__).resolve().parents[3] / "kvsim" / "conform" / "live"
sys.path.insert(0, str(LIVE))

import record  # noqa: E402 - needs the path

record.ENVIRONMENT["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "0"  # whole hashes, which have names


def main() -> None:
    """Record each scenario."""
    source, out, *scenarios = sys.argv[1:]
    reason = record.prepare(source)
    if reason is not None:
        sys.exit(reason)
    import engine
    from copies import CLOCK
    from vllm.config import KVEventsConfig

    plain = engine.vllm_config

    def with_events(*arguments):
        config = plain(*arguments)
        config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        return config

    engine.vllm_config = with_events
    for path in map(Path, scenarios):
        batches = []
        with tempfile.TemporaryDirectory() as files:
            play = record.Play(json.loads(path.read_text()), files)
            scheduler = play._engine.scheduler
            names = play._names

            def name(content: object, names: dict[bytes, str] = names) -> object:
                return names[bytes(content)[:16]] if isinstance(content, bytes) else content

            def publish(batch, batches: list = batches, name=name) -> None:
                events = []
                for event in batch.events:
                    found = {"type": type(event).__name__} | {
                        key: getattr(event, key) for key in event.__struct_fields__
                    }
                    found["block_hashes"] = [name(content) for content in found["block_hashes"]]
                    if found.get("parent_block_hash") is not None:
                        found["parent_block_hash"] = name(found["parent_block_hash"])
                    if "token_ids" in found:
                        found["token_ids"] = len(found["token_ids"])  # how many; a trace has no tokens
                    events.append({key: value for key, value in found.items() if value is not None})
                batches.append({"ts": CLOCK.step, "events": events})

            scheduler.kv_event_publisher.publish = publish
            play.run()
        with gzip.GzipFile(Path(out) / f"{path.stem}.jsonl.gz", "wb", mtime=0) as file:
            for batch in batches:
                file.write(json.dumps(batch, separators=(",", ":"), default=str).encode() + b"\n")
        print(path.stem, len(batches), "batches", sum(len(b["events"]) for b in batches), "events")


main()
