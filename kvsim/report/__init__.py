"""Runs made readable: terminal tables, plots and self-contained HTML pages, from run folders alone."""
