"""``python -m faults``: a seeded campaign of faults at named steps, see `faults.plans`."""

from __future__ import annotations

import argparse
import shlex
import sys

from faults import campaign, plans, runs
from faults.operators.table import TABLE


def main(arguments: list[str]) -> int:
    """Run a campaign; 0 where all runs survived."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    campaign.add_arguments(parser, 140)
    parser.add_argument("--fault", action="append", default=[], help="a row of the table; may come again")
    parser.add_argument("--backends", nargs="+", default=plans.BACKENDS, help="what the state is kept in")
    parser.add_argument("--operators", nargs="+", default=[], choices=TABLE, help="only these, in turns")
    chosen = parser.parse_args(arguments)
    known = [entry.name for entry in plans.catalogue()]
    if unknown := sorted(set(chosen.fault).difference(known)):
        parser.error(f"there is no fault {unknown[0]!r}; there are {', '.join(known)}")
    again_with = [f"--fault {shlex.quote(name)}" for name in chosen.fault]
    if tuple(chosen.backends) != plans.BACKENDS:
        again_with.append(f"--backends {' '.join(chosen.backends)}")

    if chosen.operators:
        again_with.append(f"--operators {' '.join(chosen.operators)}")

    def again(plan: plans.Plan) -> str:
        command = f"make faults SEED={chosen.seed} ONLY={plan.number}"
        return f'{command} ARGS="{" ".join(again_with)}"' if again_with else command

    numbers = chosen.only or range(chosen.runs)
    planned = [
        plans.plan_of(chosen.seed, number, chosen.fault, chosen.backends, chosen.operators)
        for number in numbers
    ]
    return campaign.conduct(chosen, planned, runs.execute, known, again, lambda plan: plan.operators)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
