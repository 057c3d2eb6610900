"""Summaries under the real frameworks: the segments of an episode are samples of one rollout."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from tests.episode import compacting
from tests.episode.compacting import TASK, TWELVE, Walker, oracle

KEYS = {"env": f"{Path(compacting.__file__)}:Numbered", "limits": TWELVE}
HOOK = {"custom_reward_post_process_path": "agentrl.slime.post_process_rewards"}
ROWS = [{"prompt": TASK.prompt, "label": "0", "metadata": {}} for _ in range(4)]


@pytest.mark.path("fan-out")
def test_sixty_turns_become_samples_of_one_rollout(host, start, renderer):
    """Tokens, masks, log-probs and rewards after the host's conversion equal those of an oracle, which reads the
    engine's log alone."""
    host.need(host.has("rollout_id"), "rollout_id, so no fan-out")
    engine = Walker(renderer, context_length=4096)
    run = start(ROWS, engine=engine, agentrl=KEYS, rollout_max_response_len=4000, **HOOK)
    samples, data, ranks = run.train()

    expected = [row for log in engine.by_session.values() for row in oracle(log)]
    assert len(engine.by_session) == 8
    assert len(samples) == len(expected) > 8 * 4
    assert len(set(data["rollout_ids"])) == 8
    prompts = [tokens[:-length] for tokens, length in zip(data["tokens"], data["response_lengths"], strict=True)]
    got = zip(prompts, data["tokens"], data["loss_masks"], data["rollout_log_probs"], strict=True)
    wanted_rows = [(row.prompt, row.ids, row.mask, row.log_probs) for row in expected]
    assert sorted(tuple(map(tuple, row)) for row in got) == sorted(tuple(map(tuple, row)) for row in wanted_rows)
    assert sum(map(sum, data["loss_masks"])) == sum(len(sampled) for _, sampled, _ in engine.log)
    by_rollout = {rid: [i for i, r in enumerate(data["rollout_ids"]) if r == rid] for rid in data["rollout_ids"]}
    for siblings in by_rollout.values():
        assert {data["rollout_mask_sums"][i] for i in siblings} == {sum(sum(data["loss_masks"][i]) for i in siblings)}
        assert len({data["rewards"][i] for i in siblings}) == 1, "one advantage"
        assert len({data["raw_reward"][i] for i in siblings}) == 1
    for group in {sample.group_index for sample in samples}:
        rewards = [data["rewards"][i[0]] for i in by_rollout.values() if samples[i[0]].group_index == group]
        assert len(rewards) == 2
        assert sum(rewards) == pytest.approx(0.0, abs=1e-6), "each episode counts once in the baseline of its prompt"
        assert max(rewards) > 0.7
    assert sum(len(rank["tokens"]) for rank in ranks) == len(samples)
    for siblings in by_rollout.values():
        assert [samples[i].metadata["agentrl"]["segments"] for i in siblings] == [len(siblings)] * len(siblings)
    assert len(run.evaluate()["rewards"]) == 8, "evaluation counts each episode once"


@pytest.mark.path("fan-out: refused where the host cannot take it")
def test_summaries_are_refused_at_the_first_call(host, start, renderer):
    run = start(ROWS, engine=Walker(renderer), agentrl=KEYS, partial_rollout=True, **HOOK)
    with pytest.raises(ConfigError, match=r"limits.compact_at gives several samples of one episode: .*partial-rollout"):
        run.train()
