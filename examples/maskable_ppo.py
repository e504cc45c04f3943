"""Another library's learner grows networks: sb3-contrib's MaskablePPO on `esper/Growth-v0`, unchanged.

Needs the extra `peers`. Flat actions, because the masks of four separate heads could not say that one choice depends on
another; they would let the learner choose what is not legal, and the host would wait instead.
"""

import argparse

import gymnasium
import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3.common.monitor import Monitor

import esper

EPISODES_PER_ROUND = 8


def grow(model: MaskablePPO, env: Monitor, seed: int) -> float:
    """The objective of one episode of the deterministic policy."""
    observation, info = env.reset(seed=seed)
    ended = False
    while not ended:
        action, _ = model.predict(observation, action_masks=info["action_mask"], deterministic=True)
        observation, _, terminated, truncated, info = env.step(action)
        ended = terminated or truncated
    return float(info["objective"])


def main() -> None:
    """Train for `--steps` host epochs, then grow a few networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="digits", help="see `esper tasks`")
    parser.add_argument("--steps", type=int, default=2000, help="host epochs to train for; 2000 take two minutes")
    parser.add_argument("--episode-length", type=int, default=12, help="host epochs in an episode")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    env = Monitor(
        gymnasium.make("esper/Growth-v0", task=given.task, episode_length=given.episode_length, flat_actions=True)
    )
    model = MaskablePPO(
        "MlpPolicy",
        env,
        n_steps=EPISODES_PER_ROUND * given.episode_length,
        batch_size=EPISODES_PER_ROUND * given.episode_length // 2,
        gamma=1.0,
        seed=given.seed,
        device="cpu",
    )
    model.learn(given.steps)
    seeds = range(10_000, 10_005)
    rewards = env.get_episode_rewards()
    print(f"esper {esper.__version__}, {given.task}: {len(rewards)} episodes of training")
    print(f"reward of the first and last 50 episodes: {np.mean(rewards[:50]):.3f}, {np.mean(rewards[-50:]):.3f}")
    print(f"objective of {len(seeds)} new episodes: {np.mean([grow(model, env, seed) for seed in seeds]):.3f}")


if __name__ == "__main__":
    main()
