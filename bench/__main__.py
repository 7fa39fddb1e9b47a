"""`python -m bench NAME [--json] [--save] [--quick]`: run one benchmark and print what it measured.

`python -m bench plot` draws the newest results instead.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from bench import audit, consume, fleet, gateway, harness, mirror, operations, plot, produce, scale, spark, start, wire

BENCHES: dict[str, tuple[Callable[[harness.Effort], dict[str, Any]], Callable[[dict[str, Any]], str]]] = {
    "audit": (audit.run, audit.table),
    "consume": (consume.run, consume.table),
    "fleet": (fleet.run, fleet.table),
    "gateway": (gateway.run, gateway.table),
    "mirror": (mirror.run, mirror.table),
    "operations": (operations.run, operations.table),
    "produce": (produce.run, produce.table),
    "scale": (scale.run, scale.table),
    "spark": (spark.run, spark.table),
    "start": (start.run, start.table),
    "wire": (wire.run, wire.table),
}


def main(arguments: list[str] | None = None) -> int:
    """Run a benchmark; the result goes to standard output, progress to standard error."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=sorted([*BENCHES, "plot"]), help="which benchmark to run, or plot")
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON instead of a table")
    parser.add_argument("--save", action="store_true", help="also write bench/results/DATE-NAME.json")
    parser.add_argument("--quick", action="store_true", help="little data and few repeats: shows that it runs, no more")
    options = parser.parse_args(arguments)
    if options.name == "plot":
        for path in plot.write():
            print(path.relative_to(harness.ROOT))
        return 0
    run, table = BENCHES[options.name]
    result = run(harness.QUICK if options.quick else harness.FULL)
    print(json.dumps(result, indent=2) if options.json else table(result))
    if options.save:
        print(f"saved as {harness.save(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
