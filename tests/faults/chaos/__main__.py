"""``python -m faults.chaos``: a seeded campaign of kills, stops and second drivers in real time."""

from __future__ import annotations

import argparse
import sys

from faults import campaign
from faults.chaos import plans, run
from faults.plans import Plan


def main(arguments: list[str]) -> int:
    """Run a campaign; 0 where all runs survived."""
    parser = argparse.ArgumentParser(prog="python -m faults.chaos", description=__doc__)
    campaign.add_arguments(parser, 100)
    chosen = parser.parse_args(arguments)

    def again(plan: Plan) -> str:
        return f"make chaos SEED={chosen.seed} ONLY={plan.number}"

    planned = [plans.plan_of(chosen.seed, number) for number in chosen.only or range(chosen.runs)]
    return campaign.conduct(chosen, planned, run.execute, plans.NAMES, again, plans.traits)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
