import math
import subprocess
import sys

import pytest

from agentrl.errors import CanaryError
from agentrl.monitor.numerics import Numerics, NumericsConfig, NumericsWatch, compare


def test_compares_token_by_token():
    found = compare([-1.0, -2.0, -0.5], [-1.0, -1.5, -0.75])

    assert (found.tokens, found.total, found.max) == (3, 0.75, 0.5)
    assert found.mean == 0.25


@pytest.mark.parametrize(("ratio", "clipped"), [(0.81, 0), (0.79, 1), (1.27, 0), (1.29, 1), (1.0, 0)])
def test_counts_what_the_clipping_would_take_for_a_change_of_policy(ratio, clipped):
    """The trainer's probability over the engine's."""
    assert compare([-1.0], [-1.0 + math.log(ratio)]).clipped == clipped
    assert compare([-1.0], [-1.0 + math.log(ratio)], clip_low=0.5, clip_high=0.5).clipped == 0


def test_masked_tokens_are_left_out():
    found = compare([-1.0, 0.0, -2.0], [-1.5, -9.0, -2.0], [1, 0, 1])

    assert (found.tokens, found.max, found.clipped_share) == (2, 0.5, 0.5)


def test_parts_add_up():
    whole = compare([-1.0, -2.0, -0.5], [-1.0, -1.5, -0.75])

    assert compare([-1.0], [-1.0]) + compare([-2.0, -0.5], [-1.5, -0.75]) == whole
    assert Numerics() + whole == whole
    assert (Numerics().mean, Numerics().clipped_share) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_log_prob_that_is_not_finite_is_as_far_off_as_can_be(bad):
    found = compare([bad, -1.0], [-1.0, -1.0])

    assert (found.max, found.mean, found.clipped) == (math.inf, math.inf, 1)


@pytest.mark.parametrize(("trainer", "mask"), [([-1.0], None), ([-1.0, -1.0], [1])])
def test_unequal_lengths_are_a_mistake(trainer, mask):
    with pytest.raises(ValueError, match=r"shorter|longer"):
        compare([-1.0, -1.0], trainer, mask)


def test_warns_once_and_stops():
    watch = NumericsWatch(NumericsConfig(warn=0.1, stop=0.5))

    assert watch.watch("step 1", 0.1, 9.0) == [], "one token may be far off"
    [warning] = watch.watch("step 2", 0.2, 0.9)
    assert "step 2: trainer and engine differ by 0.2 on average" in warning
    assert "(at most by 0.9)" in warning
    assert watch.watch("step 3", 0.3, 0.9) == []
    assert watch.watch("step 4", 0.5, 0.9) == []
    with pytest.raises(CanaryError, match=r"step 5: .* differ by 0\.51 .* \(numerics\.stop is 0\.5\)"):
        watch.watch("step 5", 0.51, 0.9)


@pytest.mark.parametrize("mean", [math.nan, math.inf])
def test_what_is_no_number_stops(mean):
    with pytest.raises(CanaryError):
        NumericsWatch(NumericsConfig()).watch("step 1", mean, mean)


def test_needs_no_torch():
    program = "import sys, agentrl.monitor.numerics; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
