"""Takes out of a vLLM wheel what the recorder needs: its Python files and what pip wrote about it.

Usage: python unpack.py WHEEL FOLDER
"""

from __future__ import annotations

import sys
import zipfile


def main() -> None:
    """Unpack; the compiled parts, most of the wheel, stay inside."""
    wheel, folder = sys.argv[1:]
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py") or ".dist-info/" in name]
        archive.extractall(folder, names)


if __name__ == "__main__":
    main()
