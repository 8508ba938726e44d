"""Dynamic sampling (DAPO, Yu et al. 2025, § 3.2): groups that teach nothing are replaced by others."""

from __future__ import annotations

from collections.abc import Callable

from configs.schema import Config
from learner.algorithm.rewards import has_signal
from protocol.trajectory import Group


def take_groups(config: Config, take: Callable[[int], list[Group]]) -> tuple[list[Group], list[Group]]:
    """(groups to train on, groups taken in vain) of one step; of the latter none without dynamic sampling.

    take(n) waits for n finished groups. Each of ``dynamic_sampling.rounds`` asks for as many
    as had equal rewards. All of them together stay within the (η + 1) · ``learner.groups``
    that the staleness gate lets be under way: nothing beyond would ever come. Where not one
    group has a signal the step gets the first batch, and makes no optimizer step.
    """
    wanted = config.learner.groups
    rounds = config.algorithm.dynamic_sampling.rounds
    if not rounds:
        return take(wanted), []
    kept: list[Group] = []
    vain: list[Group] = []
    for _ in range(1 + rounds):
        missing = wanted - len(kept)
        if not missing or len(kept) + len(vain) + missing > (config.staleness + 1) * wanted:
            break
        for group in take(missing):
            (kept if has_signal(group, config.algorithm) else vain).append(group)
    return (kept, vain) if kept else (vain[:wanted], vain[wanted:])
