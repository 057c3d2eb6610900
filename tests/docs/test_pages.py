"""Pages that list what the code has: nothing is left out, and nothing is made up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from agentrl.train.config import TrainConfig
from agentrl.trajectory.spans import MaskReason
from agentrl.view.reasons import REASONS

DOCS = Path(__file__).parents[2] / "docs"
MASKED = (DOCS / "masked.md").read_text(encoding="utf-8")


def test_each_reason_to_mask_has_a_heading() -> None:
    assert re.findall(r"^### (.*)$", MASKED, re.MULTILINE) == [*get_args(MaskReason), *_of_others()]


def test_the_viewer_explains_each_reason() -> None:
    assert set(get_args(MaskReason)) <= REASONS.keys()


@pytest.mark.parametrize("reason", ["malformed", "overlong", "dropped", "side", "replaced", "off_policy"])
def test_the_page_names_the_option_that_decides(reason: str) -> None:
    """One of those that the viewer names: a flag, a key or a class."""
    section = MASKED.partition(f"### {reason}\n")[2].partition("\n##")[0]
    options = re.findall(r"--[\w-]+|mask_\w+|BadCallPolicy|SessionOptions|refill", REASONS[reason].option)
    assert options
    assert all(option in section for option in options)


def _of_others() -> list[str]:
    return [reason for reason in REASONS if reason not in get_args(MaskReason)]


def test_the_defaults_are_those_of_the_code() -> None:
    page = (DOCS / "hyperparameters.md").read_text(encoding="utf-8")
    table = page.partition("<!-- defaults -->")[2].partition("<!-- end of defaults -->")[0]
    shown = {key: yaml.safe_load(value) for key, value in re.findall(r"^\| `(\w+)` \| `(.*?)` \|", table, re.MULTILINE)}
    assert len(shown) > 10
    assert shown == {key: TrainConfig.model_fields[key].default for key in shown}
