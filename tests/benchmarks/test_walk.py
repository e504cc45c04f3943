"""The walk through a round and an update finds the files that a reader has to know."""

from benchmarks.walk import PACKAGE, walk_round, walk_update


def test_a_round_leads_from_the_command_to_the_checkpoint_and_an_update_through_the_learner() -> None:
    whole, learning = walk_round()
    alone = walk_update()
    assert {"cli/train.py", "simic/training/trainer.py", "tolaria/population.py", "nissa/hub.py"} < set(whole)
    assert "simic/agent/checkpoint.py" in whole
    assert "simic/agent/ppo.py" in alone
    assert not any(file.startswith("cli/") for file in learning)
    assert set(alone) < set(learning) < set(whole)
    assert all((PACKAGE / file).is_file() for file in whole)
