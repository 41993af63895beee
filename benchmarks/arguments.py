"""Parses options that several harnesses have."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """Parses the value of an option that must be 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value
