"""``python -m hwreplay``."""

from hwreplay.cli import main

main()
