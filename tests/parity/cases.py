"""What is compared: the trainer's options, as its configuration spells them."""

from __future__ import annotations

from typing import Any

_GSPO = {"algorithm": "gspo", "clip_low": 0.05, "clip_high": 0.06}

CASES: dict[str, dict[str, Any]] = {
    "GRPO, mean over tokens": {},
    "GRPO, mean over samples": {"reduction": "sample"},
    "no clip-higher": {"clip_high": 0.2},
    "dual clip": {"dual_clip": 1.3},
    "Dr.GRPO": {"algorithm": "dr_grpo"},
    "GSPO": _GSPO,
    "GSPO, mean over tokens, dual clip": {**_GSPO, "reduction": "token", "dual_clip": 1.05},
    "TIS": {"tis_clip": 1.02},
    "TIS, GSPO, mean over samples": {**_GSPO, "tis_clip": 1.02},
    "KL k1": {"kl_coef": 0.1, "kl_type": "k1"},
    "KL k2, mean over samples": {"kl_coef": 0.1, "kl_type": "k2", "reduction": "sample"},
    "KL k3": {"kl_coef": 0.1},
    "KL low_var_kl, TIS, dual clip": {"kl_coef": 0.1, "kl_type": "low_var_kl", "tis_clip": 1.02, "dual_clip": 1.3},
}
