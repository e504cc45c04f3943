"""What a run needs before it begins: a machine that can run its hosts, and an agent that fits them."""

from typing import Any

import torch

from esper.leyline import InputError, SlotConfig
from esper.simic.control import observation_width
from esper.simic.training.config import TrainingConfig
from esper.tolaria import Population, find_task
from esper.tolaria.compute import find_device


def require_ready(config: TrainingConfig) -> int:
    """Refuse a config that cannot be run here, before anything is written; returns the number of slots of its hosts.

    One host of every task, those of the curriculum too, is made as the run would make it: that needs its data, its
    devices, and an executor that can run it.
    """
    find_device(config.device)
    slots: dict[str, int] = {}
    with torch.random.fork_rng(devices=[]):
        for phase in range(len(config.curriculum) + 1):
            of_phase = config.in_phase(phase)
            settings, executor = of_phase.episode_settings(), of_phase.executor
            for task in set(of_phase.tasks) - set(slots):
                slots[task] = Population(find_task(task), 1, settings, executor=executor).table.shape[1]
    if len(set(slots.values())) > 1:
        counts = ", ".join(f"{task} {count}" for task, count in sorted(slots.items()))
        raise InputError(f"tasks must have hosts with the same number of slots; these have: {counts}")
    return slots[config.tasks[0]]


def agent_options(config: TrainingConfig, num_slots: int) -> dict[str, Any]:
    """The arguments of `PPOAgent` for a run with this config, on hosts with this many slots."""
    length = max(config.episode_length or find_task(task).episode_length for task in config.tasks)
    num_envs = config.envs * len(config.tasks)
    return {
        "state_dim": observation_width(num_slots),
        "slot_config": SlotConfig.of_size(num_slots),
        "num_envs": num_envs,
        "max_steps": length,
        "total_steps_for_decay": max(1, int(config.entropy_decay * config.rounds * num_envs * length)),
        **config.to_ppo_kwargs(),
    }
