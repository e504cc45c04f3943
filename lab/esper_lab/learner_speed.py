"""How long one update and one action step take, beside sb3-contrib's RecurrentPPO on the same shapes.

Times are CPU-seconds of this process with one thread. Repeats of the two are interleaved, so that a busy machine slows
both, and medians are reported.
"""

import importlib.util
import statistics
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

from esper.leyline import SlotConfig
from esper.simic.agent import FactoredRecurrentActorCritic, PPOAgent
from esper.simic.config import LearnerConfig
from esper.simic.control import esper_action_spec
from esper_lab.player import Player
from esper_lab.timing import cpu_seconds, interleaved_medians
from esper_lab.trials import TOY_LEARNER
from esper_lab.worlds import GymWorld

ENVS, STEPS, OBS_DIM = 8, 150, 128
EPOCHS, MINIBATCHES = 4, 4
HEAD_DIM = 64
"""Width of the layers behind the LSTM, as in RecurrentPPO's policy."""
ACT_STEPS = 50
SPEC = esper_action_spec(SlotConfig.default())


class NoiseEnv(gymnasium.Env[Any, Any]):
    """Random observations and rewards in episodes of `STEPS`: only shapes matter for timing."""

    def __init__(self) -> None:
        sizes = [head.size for head in SPEC.heads]
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS_DIM,), np.float32)
        self.action_space = gymnasium.spaces.MultiDiscrete(sizes)
        self._age = 0

    def _obs(self) -> Any:
        return self.np_random.standard_normal(OBS_DIM, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first of `STEPS` observations."""
        super().reset(seed=seed, options=options)
        self._age = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Noise, whatever `action` is."""
        del action
        self._age += 1
        return self._obs(), float(self.np_random.standard_normal()), self._age == STEPS, False, {}


def bench_ppo_update(lstm_sizes: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """Times as plain data.

    `ppo_update.ours_s` and `ppo_update.sb3_s` map LSTM size to CPU-seconds of one update, `ppo_update.speedup` to
    their ratio, `act_step_ms` to CPU-milliseconds of one decision for all environments. RecurrentPPO comes as it is,
    with an LSTM each for actor and critic, and (`shared_lstm`) with one for both, as ours. Without sb3-contrib its
    entries are None and `ppo_update.note` says how to get it. `ppo_update.lstm_s` is the part of an update that no
    learner around `nn.LSTM` can save: its calls and their gradients, with nothing before, between or after them.
    """
    torch.set_num_threads(1)
    ours: dict[str, float] = {}
    theirs: dict[str, float] = {}
    shared: dict[str, float] = {}
    lstm: dict[str, float] = {}
    act: dict[str, float] = {}
    peer_missing = _peer_missing()
    for size in lstm_sizes:
        contenders = {"ours": _our_update(size), "lstm": _lstm_calls(size)}
        if peer_missing is None:
            contenders["sb3"] = _sb3_update(size, {})
            contenders["sb3 shared"] = _sb3_update(size, {"shared_lstm": True, "enable_critic_lstm": False})
        medians = interleaved_medians(contenders, repeats)
        ours[str(size)], lstm[str(size)] = medians["ours"], medians["lstm"]
        if peer_missing is None:
            theirs[str(size)], shared[str(size)] = medians["sb3"], medians["sb3 shared"]
        act[str(size)] = 1000.0 * _act_step_seconds(size)
    return {
        "setting": {
            "envs": ENVS,
            "steps": STEPS,
            "obs_dim": OBS_DIM,
            "epochs": EPOCHS,
            "minibatches": MINIBATCHES,
            "repeats": repeats,
            "threads": 1,
            "unit": "CPU-seconds",
        },
        "ppo_update": {
            "ours_s": ours,
            "lstm_s": lstm,
            "sb3_s": theirs or None,
            "sb3_shared_lstm_s": shared or None,
            "speedup": {size: theirs[size] / ours[size] for size in theirs} or None,
            "speedup_shared_lstm": {size: shared[size] / ours[size] for size in shared} or None,
            "note": peer_missing,
        },
        "act_step_ms": act,
    }


def _peer_missing() -> str | None:
    if importlib.util.find_spec("sb3_contrib") is None:
        return "sb3-contrib is not installed, so there is nothing to compare with: pip install 'esper[peers]'"
    return None


def _agent(lstm_size: int) -> PPOAgent:
    learner = TOY_LEARNER | {"epochs": EPOCHS, "num_minibatches": MINIBATCHES, "target_kl": None}
    return PPOAgent(
        LearnerConfig(**learner),
        state_dim=OBS_DIM,
        network=FactoredRecurrentActorCritic(SPEC, OBS_DIM, lstm_hidden_dim=lstm_size, head_dim=HEAD_DIM),
        num_envs=ENVS,
        max_steps=STEPS,
    )


def _player(agent: PPOAgent) -> Player:
    return Player(agent, GymWorld(NoiseEnv, ENVS, lambda obs: obs, 0, SPEC))


def _our_update(lstm_size: int) -> Callable[[], float]:
    agent = _agent(lstm_size)
    player = _player(agent)

    def run() -> float:
        player.fill_buffer()
        return cpu_seconds(agent.update)

    return run


def _lstm_calls(lstm_size: int) -> Callable[[], float]:
    lstm = torch.nn.LSTM(OBS_DIM, lstm_size, batch_first=True)
    batch = torch.randn(ENVS // MINIBATCHES, STEPS, OBS_DIM, requires_grad=True)

    def calls() -> None:
        for _ in range(EPOCHS * MINIBATCHES):
            output, _ = lstm(batch)
            torch.autograd.grad(output, [batch, *lstm.parameters()], torch.ones_like(output))

    return lambda: cpu_seconds(calls)


def _sb3_update(lstm_size: int, policy_options: dict[str, Any]) -> Callable[[], float]:
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    envs = DummyVecEnv([NoiseEnv] * ENVS)
    model = RecurrentPPO(
        "MlpLstmPolicy",
        envs,
        n_steps=STEPS,
        batch_size=ENVS * STEPS // MINIBATCHES,
        n_epochs=EPOCHS,
        policy_kwargs={"lstm_hidden_size": lstm_size, **policy_options},
        device="cpu",
    )
    _, callback = model._setup_learn(ENVS * STEPS)

    def run() -> float:
        model.collect_rollouts(envs, callback, model.rollout_buffer, n_rollout_steps=STEPS)
        return cpu_seconds(model.train)

    return run


def _act_step_seconds(lstm_size: int) -> float:
    agent = _agent(lstm_size)
    player = _player(agent)

    def run() -> None:
        for _ in range(ACT_STEPS):
            agent.act(player.obs, player.masks, player.hidden)

    run()
    return statistics.median(cpu_seconds(run) for _ in range(5)) / ACT_STEPS
