"""``python -m xlogmem_selftest.check``: see the package."""
from __future__ import annotations

import time

import click

from xlogmem_selftest.check.programs import Program, play
from xlogmem_selftest.shrinking import shrink, signature


@click.command()
@click.option("--programs", default=1000, show_default=True, type=click.IntRange(min=1), help="Run this many programs.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the first program.")
@click.option("--replay", metavar="SEED[:STEPS]", help="Run one program, or what is left of it, and print its calls.")
@click.option("--shown", default=3, show_default=True, help="Shrink and print this many programs that go wrong.")
def main(programs: int, seed: int, replay: str | None, shown: int) -> None:
    """Compare the certain findings of `xlogmem check` with those of an oracle, in random programs on the simulated
    driver.  The exit code is 1 if a finding is missed or false."""
    if replay:
        explain(Program.parse(replay))
        return
    began, calls, expected, missed, false = time.perf_counter(), 0, 0, 0, 0
    for number in range(seed, seed + programs):
        program = Program.parse(str(number))
        world, wrong = play(program)
        calls += world.calls
        expected += len(world.oracle.expected)
        missed += sum(line.startswith("missed") for line in wrong)
        false += sum(line.startswith("false") for line in wrong)
        if wrong and shown:
            shown -= 1
            explain(shrink(program, signature(wrong[0]), lambda shorter: play(shorter)[1]))
    click.echo(f"{calls:,} calls, {expected:,} pairs that nothing orders, {time.perf_counter() - began:.1f} seconds")
    click.echo(f"{programs:,} programs: {missed:,} missed, {false:,} false")
    if missed or false:
        raise SystemExit(1)


def explain(program: Program) -> None:
    world, wrong = play(program)
    click.echo("\n".join([f"program {program}", *world.script, *wrong]))


if __name__ == "__main__":
    main()
