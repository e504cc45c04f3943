"""What the masks of actions are derived from."""

from esper.kasmina.legality import OP_TARGETS
from esper.leyline import TRANSITIONS, Mover, Op


def test_every_op_is_backed_by_a_transition_that_an_action_makes() -> None:
    targets_of_actions = {new for (_, new), mover in TRANSITIONS.items() if Mover.ACTION in mover}
    assert set(OP_TARGETS.values()) == targets_of_actions
    assert set(OP_TARGETS) == set(Op) - {Op.WAIT}
    assert Op.WAIT.value == 0
