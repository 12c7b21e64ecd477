"""Puts the builder of synthetic runs, which two folders of tests share, on the import path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "results"))
