"""TinyStories: short stories in the words of small children, from text files that people put into the data folder.

The host and its optimiser are plausible, not tuned. Results should name the files that were used.
"""

import hashlib
from pathlib import Path

import numpy as np

from esper.tasks.byte_pairs import check_merges, encode, learn_merges
from esper.tasks.files import UNREADABLE, Arrays, absent_data, cached_arrays, damaged, data_folder, open_content
from esper.tasks.registry import OptimizerSettings, task
from esper.tasks.samples import Splits, hold_out_end, to_sequences

_FOLDER = "tinystories"
_END_LINE = "<|endoftext|>"
_KEYS = ("train", "test", "merges")
_VOCABULARY = 512
_CONTEXT = 64
_LEAST_TOKENS = {"train": 10 * (_CONTEXT + 1), "test": _CONTEXT + 1}
_VAL_MOST, _VAL_SHARE, _TEST_MOST = 256, 0.1, 1024
_TRAIN_BYTES, _TEST_BYTES = 8_000_000, 1_000_000
"""No more than this is read of each file: the full set is 2 GB, and an episode sees little of it."""
_LEARN_CHARACTERS = 1_000_000
"""How much of the training text the tokeniser is made from."""
_OFFICIAL = "TinyStoriesV2-GPT4-{part}.txt"


def _files(part: str) -> list[Path]:
    """The files with `part` in their names, plain or gzipped; a plain one stands for its gzipped copy."""
    folder = data_folder() / _FOLDER
    found = {path.name.removesuffix(".gz"): path for path in sorted(folder.glob(f"*{part}*.txt.gz"))}
    found.update({path.name: path for path in sorted(folder.glob(f"*{part}*.txt"))})
    return [found[name] for name in sorted(found) if found[name].is_file()]


def _state() -> str:
    here = all(_files(part) for part in ("train", "valid"))
    return "here" if here else f"missing: put text files into {_FOLDER}/"


@task(
    "tinystories",
    "TinyStories: which token comes next in a short story",
    host="transformer",
    classes=_VOCABULARY,
    optimizer=OptimizerSettings("adamw", lr=3e-3, schedule="cosine"),
    host_settings={"vocabulary": _VOCABULARY, "context": _CONTEXT, "width": 64, "layers": 2, "heads": 4},
    batch_size=16,
    quality="loss",
    data=_state,
    needs_files=True,
)
def load_tinystories() -> Splits:
    """Sequences of 64 tokens; the end of the training text is for validation, the validation files are the test split.

    Tokeniser and tokens are kept in the data folder until a file changes.
    """
    train, test = _files("train"), _files("valid")
    if not train or not test:
        names = " and ".join(_OFFICIAL.format(part=part) for part in ("train", "valid"))
        place = f"put {names}, or other *train*.txt and *valid*.txt files, plain or .gz, into {data_folder() / _FOLDER}"
        raise absent_data("tinystories", f"it cannot be downloaded here; {place}")
    stamps = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in (*train, *test)]
    digest = hashlib.sha256("\n".join([*stamps, str(_VOCABULARY)]).encode()).hexdigest()[:16]
    arrays = cached_arrays(f"{_FOLDER}-{digest}", _KEYS, lambda: _tokenise(train, test), _check)
    sequences = to_sequences(arrays["train"], _CONTEXT)
    kept, val = hold_out_end(sequences, min(_VAL_MOST, int(_VAL_SHARE * len(sequences))))
    return Splits(kept, val, to_sequences(arrays["test"], _CONTEXT, _TEST_MOST))


def _tokenise(train: list[Path], test: list[Path]) -> Arrays:
    """Learn a tokeniser from the training text alone, and encode both parts with it."""
    stories = [story for path in train for story in read_stories(path, _TRAIN_BYTES)]
    merges = learn_merges("\n".join(stories)[:_LEARN_CHARACTERS], _VOCABULARY)
    unseen = [story for path in test for story in read_stories(path, _TEST_BYTES)]
    made: Arrays = {"merges": np.array(merges, np.uint16).reshape(-1, 2)}
    for name, part, paths in (("train", stories, train), ("test", unseen, test)):
        made[name] = np.array(encode(part, merges), np.uint16)
        if len(made[name]) <= _LEAST_TOKENS[name]:
            raise damaged(paths[0], f"{len(made[name])} tokens are too few for sequences of {_CONTEXT}")
    return made


def _check(arrays: Arrays) -> None:
    """Refuse kept arrays that `_tokenise` cannot have made."""
    for name, least in _LEAST_TOKENS.items():
        tokens = arrays[name]
        if tokens.dtype != np.uint16 or tokens.ndim != 1 or len(tokens) <= least or tokens.max() >= _VOCABULARY:
            raise ValueError(f"{name} is {tokens.dtype}{tokens.shape}, or holds tokens beyond {_VOCABULARY}")
    check_merges(arrays["merges"], _VOCABULARY)


def read_stories(path: Path, most_bytes: int) -> list[str]:
    """The stories in a file: what stands between end-of-text lines or, where there are none, between blank lines."""
    try:
        with open_content(path) as file:
            raw = file.read(most_bytes + 1)
        if len(raw) > most_bytes:
            raw = raw[: raw.rfind(b"\n", 0, most_bytes) + 1]
        text = raw.decode()
    except (*UNREADABLE, UnicodeDecodeError) as error:
        raise damaged(path, str(error)) from None
    lines = [line.strip() for line in text.splitlines()]
    mark = _END_LINE if _END_LINE in lines else ""
    stories: list[list[str]] = [[]]
    for line in lines:
        if line == mark:
            stories.append([])
        elif line:
            stories[-1].append(line)
    return ["\n".join(story) for story in stories if story]
