"""The command line: one file per verb."""

from evenly.cli.app import main

__all__ = ["main"]
