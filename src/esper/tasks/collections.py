"""Collections of tasks: what controllers are trained on, and what is used for nothing but reports.

They differ in noise, samples, permutations of positions, families of hosts, widths and numbers of slots. Hosts of other
sizes keep the optimiser that was tuned on their task's own host.
"""

from esper.leyline import unknown_name

TRAINING_TASKS = (
    "mnist1d",
    "mnist1d-shuffled",
    "mnist1d:num_samples=1250",
    "mnist1d:corr_noise_scale=0.5",
    "mnist1d:max_translation=8",
    "mnist1d:num_samples=2500,shear_scale=1.5",
    "mnist1d:shuffle_seq=true,seed=7",
    "mnist1d:num_samples=1250,shuffle_seq=true,seed=8",
    "mnist1d@channels=3-6",
    "mnist1d-shuffled@channels=8-16",
    "mnist1d@channels=10-20-40",
    "mnist1d-shuffled@channels=4-8-12-16",
    "mnist1d-mlp",
    "mnist1d-shuffled-mlp",
    "mnist1d-mlp:num_samples=1250@widths=24-24",
    "mnist1d-mlp:max_translation=8",
    "mnist1d-mlp:corr_noise_scale=0.5,seed=7@widths=12-12-12-12",
    "digits",
    "digits@widths=8-8",
    "ucr:ItalyPowerDemand",
    "ucr:JapaneseVowels_eq",
)
HELD_OUT_TASKS = (
    "mnist1d:corr_noise_scale=0.35,seed=3",
    "mnist1d:num_samples=1800,seed=4",
    "mnist1d:max_translation=20,seed=5",
    "mnist1d:num_samples=3000,shuffle_seq=true,seed=11",
    "mnist1d:seed=12@channels=6-12-18",
    "mnist1d:shuffle_seq=true,seed=13@channels=5-10-15-20",
    "mnist1d-mlp:seed=5@widths=20-20",
    "mnist1d-mlp:shuffle_seq=true,seed=9@widths=10-10-10-10",
    "digits@widths=12-12-12-12",
    "ucr:OSULeaf",
    "ucr:Covid3Month_disc",
    "fashion-mnist",
)
_COLLECTIONS = {"training": TRAINING_TASKS, "held-out": HELD_OUT_TASKS}


def tasks_of(collection: str) -> tuple[str, ...]:
    """The names of the tasks in a collection."""
    if collection not in _COLLECTIONS:
        raise unknown_name("collection of tasks", collection, _COLLECTIONS)
    return _COLLECTIONS[collection]
