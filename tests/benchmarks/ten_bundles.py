"""Memory and CPU time of a whole `kvsim run` on ten times the kv-cache-tester bundle: 600 sessions, 73,920 requests.

    python tests/benchmarks/ten_bundles.py [--copies 10] [--keep FOLDER]

It takes minutes. Exit code 1 if the run needed 1 GiB or more.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent.parent
LIMIT_MIB = 1024

CONFIG = """\
name: ten-bundles
trace: {{path: {traces}, session_interval: 60s, max_think_time: 60s}}
model: llama-3.1-70b
hardware: {{gpu: h100-sxm, tensor_parallel_size: 4}}
engine: {{max_model_len: 1048576, kind: fast}}
connector: {{kind: offloading, cpu_bytes_to_use: 512GB}}
"""


def main() -> int:
    """Run it in a process of its own and say what that cost."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--copies", type=int, default=10, help="how often the bundle is read, as other sessions")
    options.add_argument("--keep", type=Path, help="run folder to keep")
    chosen = options.parse_args()
    bundle = Path(os.environ.get("KVSIM_SHARED", REPO.parent / "shared")) / "traces" / "kv-cache-tester"
    if not bundle.is_dir():
        print(f"third-party data absent: {bundle} (set KVSIM_SHARED to its parent folder)")  # noqa: T201
        return 0
    with tempfile.TemporaryDirectory() as folder:
        traces = Path(folder) / "traces"
        traces.mkdir()
        for copy in range(chosen.copies):
            for path in bundle.glob("*.json.gz"):
                (traces / f"{copy:02}_{path.name}").symlink_to(path)
        config = Path(folder) / "run.yaml"
        config.write_text(CONFIG.format(traces=traces))
        target = chosen.keep or Path(folder) / "run"
        command = [sys.executable, "-m", "kvsim", "run", str(config), "-o", str(target)]
        subprocess.run(command, check=True)  # noqa: S603
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    mib = used.ru_maxrss / 1024  # Linux counts in KiB
    print(f"user CPU {used.ru_utime:.1f} s, memory {mib:.0f} MiB of {LIMIT_MIB} MiB")  # noqa: T201
    return mib >= LIMIT_MIB


if __name__ == "__main__":
    sys.exit(main())
