"""Small programs that go wrong when one rule is missing, and their twins.

A scenario is a function of `FourStreams` that says whether everything was ordered that must be.  It has to be True as
it stands.  Its twin runs the same program while the driver drops one of the waits that the core queues (it says success
and queues nothing), each in turn: every wait has to be noticed, or it was not needed.
"""
from __future__ import annotations

from collections.abc import Callable

import pytest
from four_streams import FourStreams

from xlogmem import DeviceMemoryResource
from xlogmem.sim import Simulator

__all__ = ["Scenario", "Scenarios"]

Scenario = Callable[[FourStreams], bool]


class Scenarios:
    """The scenarios of a module, by name; `resource` makes what their runtimes stand on."""

    def __init__(self, resource: Callable[[], DeviceMemoryResource | None] = lambda: None) -> None:
        self.resource = resource
        self.named: dict[str, tuple[Scenario, dict[str, str], int]] = {}

    def __call__(self, *, spare: int = 0, **options: str) -> Callable[[Scenario], Scenario]:
        """Register a scenario.  `spare` waits protect something that the scenario does not check."""
        def register(function: Scenario) -> Scenario:
            self.named[function.__name__] = function, options, spare
            return function
        return register

    def under_each_policy(self) -> list[tuple[str, str]]:
        return [(name, policy) for name, (_, options, _) in self.named.items()
                for policy in ("lazy", "precise", "adaptive") if options.get("policy", policy) == policy]

    def tests(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """``test_scenario, test_twin = scenario.tests()``, behind the last scenario of a module."""
        @pytest.mark.parametrize(("name", "policy"), self.under_each_policy())
        def test_scenario(driver: Simulator, name: str, policy: str) -> None:
            assert self.play(driver, name, policy)[0]

        @pytest.mark.parametrize("name", self.named)
        def test_twin(driver: Simulator, name: str) -> None:
            self.twin_is_noticed(driver, name)

        return test_scenario, test_twin

    def play(self, driver: Simulator, name: str, policy: str | None = None, drop: int = 0) -> tuple[bool, int]:
        """Run a scenario, with its drop-th wait left out; whether all was ordered, and how many waits there were."""
        function, options, _ = self.named[name]
        driver.reset("eager")
        x = FourStreams(driver, resource=self.resource(), **({"policy": policy} if policy else {}) | options)
        if drop:
            driver.drop("cuStreamWaitEvent", drop)
        try:
            verdict = function(x)
        except AssertionError as error:
            if not drop:
                raise
            assert "race" in str(error)
            verdict = False
        waits = x.waits()
        verdict = verdict and not driver.races()
        driver.clear_races()
        x.close()
        if drop:
            driver.reset("eager")                       # the frees of the teardown raced, as they must
        return verdict, waits

    def twin_is_noticed(self, driver: Simulator, name: str) -> None:
        _, waits = self.play(driver, name)
        unnoticed = [drop for drop in range(1, waits + 1) if self.play(driver, name, drop=drop)[0]]
        assert waits > 0
        assert len(unnoticed) <= self.named[name][2], f"of {waits} waits these can be left out: {unnoticed}"
