from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/slime_on_one_device"


@pytest.fixture(scope="session")
def example():
    """The example's folder on the path, as it is for its run.py."""
    if find_spec("megatron") is None or find_spec("megatron.core") is None:
        pytest.skip("megatron-core is not installed: pip install megatron-core==0.16.1")
    sys.path.insert(0, str(EXAMPLE))
    yield EXAMPLE
    sys.path.remove(str(EXAMPLE))
