"""Puts this folder on the import path, so that tests can share `simic_builders`; one thread, as everywhere."""

import torch

torch.set_num_threads(1)
