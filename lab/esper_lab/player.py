"""An agent that plays a toy world, to learn from it or to be judged by it."""

import torch
from torch import Tensor

from esper.simic.agent import Hidden, PolicyStep, PPOAgent
from esper.simic.control.action_masks import Masks, move_masks, to_device
from esper_lab.worlds import ToyStep, ToyWorld


class Player:
    """Plays on from where it stands. What the agent acts on next is in `obs`, `masks` and `hidden`, on its device."""

    obs: Tensor
    masks: Masks
    hidden: Hidden

    def __init__(self, agent: PPOAgent, world: ToyWorld) -> None:
        self._agent, self._world = agent, world
        self._see(*world.reset(), agent.initial_hidden(world.num_envs))

    def _see(self, obs: Tensor, masks: Masks, hidden: Hidden) -> None:
        device = self._agent.device
        self._raw_obs, self.masks, self.hidden = to_device(obs, device), move_masks(masks, device), hidden
        self.obs = self._agent.policy.normalized(self._raw_obs)

    def _step(self, *, deterministic: bool = False) -> tuple[PolicyStep, ToyStep]:
        decision = self._agent.act(self.obs, self.masks, self.hidden, deterministic=deterministic)
        return decision, self._world.step(decision.actions.cpu())

    def _go_on(self, decision: PolicyStep, step: ToyStep) -> None:
        """Episodes that ended begin anew, with an LSTM state of zeros."""
        self._see(step.obs, step.masks, reset_hidden(decision.hidden, to_device(step.ended, self._agent.device)))

    def fill_buffer(self) -> None:
        """Store one round in the agent's buffer."""
        agent = self._agent
        for number in range(agent.max_steps):
            decision, step = self._step()
            bootstrap = None
            if number == agent.max_steps - 1 or step.truncated.any():
                final = agent.policy.normalized(to_device(step.final_obs, agent.device))
                bootstrap = agent.policy.value(final, decision.hidden)
            agent.buffer.add_step(
                self.obs,
                self.masks,
                self.hidden,
                decision,
                step.rewards,
                step.ended,
                step.truncated & ~step.terminated,
                bootstrap_values=bootstrap,
                raw_obs=self._raw_obs,
            )
            self._go_on(decision, step)

    @torch.inference_mode()
    def returns(self, episodes: int) -> Tensor:
        """Undiscounted returns `[episodes]` of the deterministic policy; every environment plays as many episodes."""
        running = torch.zeros(self._world.num_envs)
        quota = torch.full((self._world.num_envs,), -(-episodes // self._world.num_envs))
        returns: list[float] = []
        while quota.any():
            decision, step = self._step(deterministic=True)
            running += step.rewards
            counted = step.ended & (quota > 0)
            returns += running[counted].tolist()
            quota -= counted.long()
            running[step.ended] = 0.0
            self._go_on(decision, step)
        return torch.tensor(returns[:episodes])


def reset_hidden(hidden: Hidden, done: Tensor) -> Hidden:
    """`hidden` with zeros for the environments whose episode ended, by either flag: `done [N]`."""
    ended = done.view(1, -1, 1)
    return hidden[0].masked_fill(ended, 0.0), hidden[1].masked_fill(ended, 0.0)
