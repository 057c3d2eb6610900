"""Samples with a question."""

from __future__ import annotations

PARAMS = {"temperature": 1.0, "max_new_tokens": 400, "stop": None, "stop_token_ids": None, "skip_special_tokens": False}


def question(Sample, country="France", label="Paris", **fields):
    return Sample(prompt=f"the capital of {country}?", label=label, **fields)
