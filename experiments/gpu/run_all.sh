#!/usr/bin/env bash
# Everything that hwreplay measures on one GPU, in less than 10 minutes:
#   probe, one replay per backend with every byte verified, a link profile fitted from the probe, predicted against
#   measured. Results go to $OUT (default: runs/gpu), at most eight files of which one holds all others.
#
#   experiments/gpu/run_all.sh            on a machine with a GPU; no network, no pip
#   experiments/gpu/run_all.sh --dry-run  says what it would do and checks what can be checked without a GPU
#   experiments/gpu/run_all.sh --backend host   the same steps without a GPU
#
# Python 3.11 or newer with: torch (2.5 or newer; triton comes with it), numpy, matplotlib, jinja2, typer, rich, pyyaml.
# Packages that a GPU image may lack, as wheels in the folder $WHEELS (default: .whl in the repository):
#   pydantic, pydantic-core, annotated-types, typing-inspection, typing-extensions
#   python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 -d .whl NAME ...
# They are unpacked, not installed. The NVIDIA driver must be of CUDA 12.8 or newer for cuMemcpyBatchAsync.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1
# Virtual machines that get their memory as they use it show less at first.
export HWREPLAY_HOST_MEMORY="${HWREPLAY_HOST_MEMORY:-64GiB}"
exec "${PYTHON:-python3}" experiments/gpu/drive.py --out "${OUT:-runs/gpu}" --wheels "${WHEELS:-.whl}" "$@"
