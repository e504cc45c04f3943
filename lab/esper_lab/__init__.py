"""The laboratory: what the documentation's numbers are measured with, and toy worlds that the learner is tested on."""
