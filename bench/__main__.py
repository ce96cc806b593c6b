"""`python -m bench NAME [--quick] [--json]`."""

import argparse
import sys

from bench import engine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks that check their own answers.")
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="NAME")
    one = benchmarks.add_parser("engine", help="read-modify-write of keyed state against other stores")
    one.add_argument("--quick", action="store_true", help="1M keys only, fewer batches: a few minutes")
    one.add_argument("--json", action="store_true", help="one JSON object per line; ratio > 1 means ours is better")
    one.add_argument("--case", default="", help="only cases whose name contains this text, for example 'int64'")
    options = parser.parse_args()
    return engine.run(quick=options.quick, as_json=options.json, only=options.case)


if __name__ == "__main__":
    sys.exit(main())
