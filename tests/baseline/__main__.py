"""Compare with the frozen figures, or freeze them."""

import argparse
import json
import sys

import numpy as np
import torch

from tests.baseline.figures import HERE, compute, losses

FROZEN = HERE / "figures.json"


def main() -> int:
    """Print what got worse, and the mean change by placer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="freeze the figures of this version")
    parser.add_argument("--tasks", default="", help="only tasks with this in their names, and no training")
    options = parser.parse_args()
    torch.set_num_threads(1)
    now = compute(options.tasks)
    if options.write:
        FROZEN.write_text(json.dumps(now, indent=1) + "\n")
        return 0
    frozen = json.loads(FROZEN.read_text())
    worse = list(losses(frozen, now))
    changes: dict[str, list[float]] = {}
    for name, cost in now["costs"].items():
        changes.setdefault(name.split(" ", 3)[3], []).append(cost / frozen["costs"][name] - 1)
    for placer, values in sorted(changes.items()):
        print(f"{placer:28} {len(values):3} tasks, mean {np.mean(values):+.3%}, worst {max(values):+.3%}")
    print("\n".join(worse) or f"baseline: nothing got worse ({len(now['costs'])} costs)")
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())
