"""``python -m hybridcomm.programs`` is ``python -m hybridcomm program``."""

from __future__ import annotations

import argparse

from .command import add_arguments, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="hybridcomm program")
    add_arguments(parser)
    raise SystemExit(run(parser.parse_args()))
