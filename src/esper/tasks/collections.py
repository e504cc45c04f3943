"""Collections of tasks: what controllers are trained on, chosen on, and what is used for nothing but reports.

They differ in noise, samples, permutations of positions, families of hosts, widths and numbers of slots. Hosts of other
sizes keep the optimiser that was tuned on their task's own host.
"""

from collections.abc import Iterable

from esper.leyline import unknown_name

TRAINING_TASKS = (
    # Convolutions over ordered positions.
    "mnist1d",
    "mnist1d:num_samples=1250",
    "mnist1d:corr_noise_scale=0.5",
    "mnist1d:max_translation=8",
    "mnist1d:num_samples=2500,shear_scale=1.5",
    "mnist1d@channels=3-6",
    "mnist1d@channels=10-20-40",
    "mnist1d:num_samples=625,seed=20",
    "mnist1d:seed=21@channels=5-10",
    "mnist1d:corr_noise_scale=0.1,seed=22",
    "mnist1d:max_translation=30,seed=23@channels=8-16-24",
    "mnist1d:iid_noise_scale=0.3,seed=24",
    "mnist1d:num_samples=4000,seed=30@channels=4-8-12-16-20",
    "mnist1d@batches=50",
    "mnist1d:corr_noise_scale=0.4,seed=40@channels=8-16-32",
    "mnist1d:max_translation=12,seed=41@channels=16-32",
    "mnist1d:num_samples=1500@channels=4-8-16",
    "mnist1d:num_samples=3500,corr_noise_scale=0.6,seed=43@channels=10-20",
    "mnist1d:shear_scale=1.2,seed=44@channels=3-6-12-24",
    "mnist1d:num_samples=900,seed=45@channels=8-16-32",
    "mnist1d:max_translation=40,seed=46@channels=6-6-6-6",
    "mnist1d:corr_noise_scale=0.15,seed=47@channels=3-5-8",
    "mnist1d:num_samples=2000,max_translation=24,seed=48@channels=5-10-20-40",
    "mnist1d:corr_noise_scale=0.35,shear_scale=0.3,seed=49@channels=12-12-12",
    "mnist1d:seed=51@channels=4-6-8-10-12",
    # Convolutions over permuted positions.
    "mnist1d-shuffled",
    "mnist1d:shuffle_seq=true,seed=7",
    "mnist1d:num_samples=1250,shuffle_seq=true,seed=8",
    "mnist1d-shuffled@channels=8-16",
    "mnist1d-shuffled@channels=4-8-12-16",
    "mnist1d:shuffle_seq=true,seed=25@channels=10-20-40",
    "mnist1d:num_samples=2500,shuffle_seq=true,seed=26@channels=5-10",
    "mnist1d:max_translation=16,shuffle_seq=true,seed=27",
    "mnist1d:shuffle_seq=true,seed=33@batches=100,channels=8-16",
    "mnist1d:shuffle_seq=true,seed=52@channels=4-8-16",
    "mnist1d:max_translation=20,shuffle_seq=true,seed=53@channels=16-32",
    "mnist1d:num_samples=1500,shuffle_seq=true,seed=54@channels=8-16-32",
    "mnist1d:corr_noise_scale=0.15,shuffle_seq=true,seed=55@channels=3-6-12-24",
    "mnist1d:num_samples=3500,shuffle_seq=true,seed=56@channels=12-12-12",
    "mnist1d:num_samples=2000,max_translation=8,shuffle_seq=true,seed=57@channels=6-6-6-6",
    # Networks of features.
    "mnist1d-mlp",
    "mnist1d-shuffled-mlp",
    "mnist1d-mlp:num_samples=1250@widths=24-24",
    "mnist1d-mlp:max_translation=8",
    "mnist1d-mlp:corr_noise_scale=0.5,seed=7@widths=12-12-12-12",
    "mnist1d-mlp:seed=28@widths=8-8-8-8",
    "mnist1d-mlp:num_samples=2500,shuffle_seq=true,seed=29@widths=16-16",
    "mnist1d-mlp:num_samples=625,seed=31",
    "mnist1d-mlp:shuffle_seq=true,seed=32@batches=100",
    "mnist1d-mlp:corr_noise_scale=0.35,seed=58@widths=12-12-12",
    "mnist1d-mlp:max_translation=16,seed=59@widths=24-24-24",
    "mnist1d-mlp:shuffle_seq=true,seed=60@widths=32-16",
    "mnist1d-mlp:num_samples=1500,seed=61@widths=8-8",
    "mnist1d-mlp:max_translation=12,corr_noise_scale=0.4,seed=62@widths=16-16-16-16",
    "mnist1d-mlp:num_samples=3000,max_translation=24,shuffle_seq=true,seed=63@widths=14-14-14-14-14",
    # Digits.
    "digits",
    "digits@widths=8-8",
    "digits@widths=6-6-6-6",
    "digits@widths=10-10-10",
    "digits@widths=5-5",
    # Series of the UCR archive.
    "ucr:ItalyPowerDemand",
    "ucr:JapaneseVowels_eq",
)
VALIDATION_TASKS = (
    "mnist1d:corr_noise_scale=0.3,seed=101@channels=6-10-14",
    "mnist1d:num_samples=1600,seed=102",
    "mnist1d:max_translation=25,seed=103@channels=9-15",
    "mnist1d:shuffle_seq=true,seed=104",
    "mnist1d:num_samples=2700,shuffle_seq=true,seed=105@channels=5-9-13-17",
    "mnist1d:shear_scale=0.9,seed=106@channels=4-7-10",
    "mnist1d-mlp:seed=107@widths=22-22-22",
    "mnist1d-mlp:shuffle_seq=true,seed=108@widths=15-15",
    "mnist1d-mlp:num_samples=2000,max_translation=15,seed=109@widths=9-9-9-9",
    "mnist1d:max_translation=18,shuffle_seq=true,seed=110@channels=7-11-15",
    "digits@widths=9-9",
    "mnist1d:num_samples=3200,corr_noise_scale=0.45,seed=111@channels=8-12-16-20",
    "mnist1d:corr_noise_scale=0.2,shuffle_seq=true,seed=112@channels=10-20",
    "mnist1d-mlp:corr_noise_scale=0.2,seed=113@widths=12-12-12-12",
    "mnist1d:num_samples=1100,seed=114@channels=12-24",
    "mnist1d:max_translation=32,iid_noise_scale=0.15,seed=115@channels=4-8-12-16",
)
"""On these, ways of training are chosen: what a controller comes to that was trained on none of them."""
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
    "mnist1d:corr_noise_scale=0.2,seed=70@channels=4-8-12",
    "mnist1d:max_translation=36,seed=71@channels=6-12",
    "mnist1d:num_samples=1000,seed=72@channels=7-14-21",
    "mnist1d:num_samples=2200,shear_scale=1.0,seed=73@channels=5-5-5-5",
    "mnist1d:seed=74@batches=60,channels=9-18-27",
    "mnist1d:max_translation=14,shuffle_seq=true,seed=75@channels=12-24",
    "mnist1d:num_samples=2200,shuffle_seq=true,seed=76@channels=6-9-12",
    "mnist1d:corr_noise_scale=0.3,shuffle_seq=true,seed=77@channels=4-4-8-8",
    "mnist1d-mlp:num_samples=2200,seed=78@widths=18-18",
    "mnist1d-mlp:max_translation=20,seed=79@widths=14-14-14",
    "mnist1d-mlp:corr_noise_scale=0.3,shuffle_seq=true,seed=80@widths=20-12-8",
    "digits@widths=7-7",
    "ucr:OSULeaf",
    "ucr:Covid3Month_disc",
    "fashion-mnist",
)
_COLLECTIONS = {"training": TRAINING_TASKS, "validation": VALIDATION_TASKS, "held-out": HELD_OUT_TASKS}


def tasks_of(collection: str) -> tuple[str, ...]:
    """The names of the tasks in a collection."""
    if collection not in _COLLECTIONS:
        raise unknown_name("collection of tasks", collection, _COLLECTIONS)
    return _COLLECTIONS[collection]


def expand_collections(names: Iterable[str]) -> list[str]:
    """`names` with the tasks of a collection in place of its name, each once."""
    return list(dict.fromkeys(task for name in names for task in _COLLECTIONS.get(name, (name,))))
