"""An audit finds each planted loss, and calls nothing lost that was not."""

from __future__ import annotations

import copy
import json

import pytest
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.view.audit import audit
from agentrl.view.readers import read_record
from tests.view.conftest import DATA, made, stripped


def audited(*records, decode=None):
    return audit("x", [(f"#{i}", read_record(record, "x")) for i, record in enumerate(records)], decode)


def kinds(report, level="error"):
    return [finding.check for finding in report.findings if finding.level == level]


def masked_in_part(record):
    record["loss_mask"][1] = 0
    return [record]


def sampled_called_observed(record):
    record["spans"][0]["kind"] = "observation"
    record["loss_mask"][:3], record["log_probs"][:3] = [0] * 3, [0.0] * 3
    return [record]


def observation_trained(record):
    record["loss_mask"][3] = 1
    return [record]


def mask_gone(record):
    return [record | {"loss_mask": []}]


def log_probs_gone(record):
    return [record | {"log_probs": []}]


def first_segment_gone(record):
    data = stripped().to_json()
    return [{**data, "earlier": []}] if _renumber(data) else []


def _renumber(data):
    for span in data["spans"]:
        span["turn"] = 1
    return True


@pytest.mark.parametrize(
    ("plant", "kind", "tokens"),
    [
        (masked_in_part, "masked without a reason", 1),
        (sampled_called_observed, "sampled, in no sequence", 3),
        (observation_trained, "trained, but not sampled", 1),
        (mask_gone, "broken", 8),
        (log_probs_gone, "broken", 8),
        (first_segment_gone, "sampled, in no sequence", 3),
    ],
)
def test_losses_in_own_records(record, plant, kind, tokens):
    report = audited(*plant(record))
    assert kinds(report) == [kind]
    assert report.findings[0].details == {"count": 1, "tokens": tokens}


def test_losses_in_slimes_dumps(samples):
    contradicted = copy.deepcopy(samples[0])
    contradicted["loss_mask"][0] = 0
    assert kinds(audited(contradicted)) == ["masked without a reason"]
    short = copy.deepcopy(samples[3])
    short["loss_mask"] = short["loss_mask"][:-1]
    assert kinds(audited(short)) == ["broken"]
    one = copy.deepcopy(samples[0])
    one["rollout_id"] = 9
    one["metadata"]["agentrl"] |= {"segment": 1, "segments": 2}
    assert kinds(audited(one)) == ["sample missing"]
    twice = [copy.deepcopy(samples[0]) for _ in range(2)]
    for sample in twice:
        sample["rollout_id"] = 9
    assert kinds(audited(*twice)) == ["trained twice"]


def siblings(samples, tokens):
    """Two samples of one rollout: the second holds the first one's history in its prompt."""
    one, other = copy.deepcopy(samples[3]), copy.deepcopy(samples[3])
    one.update(rollout_id=4, loss_mask=[1] * one["response_length"])
    other.update(
        rollout_id=4,
        tokens=[*tokens, 300],
        response_length=1,
        loss_mask=[1],
        rollout_log_probs=[-0.5],
        prompt=one["prompt"] + one["response"],
        response="!",
    )
    return one, other


def test_encoded_again_in_slimes_dumps(samples):
    tokens = samples[3]["tokens"]
    assert kinds(audited(*siblings(samples, tokens))) == [], "the same tokens"
    report = audited(*siblings(samples, [*tokens[:4], 999, *tokens[5:]]))
    assert kinds(report) == ["encoded again"]
    assert (report.split, report.conversations) == (1, 1)


def test_losses_in_traces(traces):
    whole, again = traces
    assert kinds(audited(again)) == ["encoded again"]
    reply = next(node for node in whole["traces"][0]["nodes"] if node.get("sampled"))
    saved = copy.deepcopy(reply)
    reply["mask"][-1], reply["logprobs"] = False, reply["logprobs"][:-1]
    assert kinds(audited(whole)) == ["masked without a reason"]
    reply.update(saved, token_ids=[], mask=[], is_content=[], logprobs=[])
    assert kinds(audited(whole)) == ["reply without tokens"]
    reply.update(saved)
    tool = next(node for node in whole["traces"][0]["nodes"] if node["message"]["role"] == "tool")
    tool["mask"] = [True] * len(tool["mask"])
    assert "trained, but not sampled" in kinds(audited(whole))


def test_encoded_again_in_atif():
    data = json.loads((DATA / "harbor_encoded_again.json").read_text())
    report = audited(data)
    assert kinds(report) == [], "without a tokenizer it may be a rewritten history"
    assert "several samples" in kinds(report, "unchecked")
    text = {110: "x", 111: "y", 101: "xy"}
    assert kinds(audited(data, decode=lambda ids: "".join(text.get(i, f"<{i}>") for i in ids))) == ["encoded again"]
    other = audited(data, decode=lambda ids: "".join(f"<{i}>" for i in ids))
    assert (kinds(other), kinds(other, "note")) == ([], ["rewritten"])


def test_nothing_is_called_lost_that_is_not(samples, traces):
    """Masks with reasons, stripped thoughts, removed samples and abandoned branches are in order."""
    masked = made()
    masked.mask("overlong")
    in_part = made()
    in_part.mask_where([1, 0, 1, *[0] * 3, 1, 1], "off_policy")
    report = audited(made().to_json(), masked.to_json(), in_part.to_json(), stripped().to_json())
    assert (kinds(report), kinds(report, "unchecked")) == ([], [])
    assert report.masked == {"overlong": 5, "off_policy": 1}
    assert kinds(audited(*samples)) == []
    assert kinds(audited(traces[0])) == []


async def test_an_agents_session_is_in_order():
    """Branches, dropped replies and side conversations have reasons."""
    from tests.view.sessions import session_trajectory

    data = json.loads(json.dumps((await session_trajectory()).to_json()))
    report = audited(data)
    assert (kinds(report), kinds(report, "unchecked")) == ([], [])
    assert report.sampled == report.trained + sum(report.masked.values())
    assert report.masked


def test_what_is_not_told_is_never_fine():
    text = audited({"messages": [{"role": "assistant", "content": "b"}]})
    assert (kinds(text, "unchecked"), kinds(text)) == (["no tokens"], [])
    atif = audited(json.loads((DATA / "harbor.json").read_text()))
    assert (kinds(atif, "unchecked"), atif.untold) == (["training not told"], 5)


@pytest.mark.parametrize(
    ("file", "code", "said"),
    [
        ("verifiers.jsonl", 1, "1 error, 0 warnings"),
        ("slime_5.pt", 0, "not checked: masked, reason not told"),
        ("harbor.json", 0, "not checked: training not told"),
    ],
)
def test_the_command(file, code, said):
    result = CliRunner().invoke(app, ["check", str(DATA / file)])
    assert (result.exit_code, said in result.stdout) == (code, True), result.output


def test_the_command_on_good_records(write):
    file = write(made().to_json())
    assert CliRunner().invoke(app, ["check", "--strict", str(file)]).exit_code == 0
    found = json.loads(CliRunner().invoke(app, ["check", "--json", str(file)]).stdout)
    (account,) = found["figures"]["files"]
    assert (account["sampled"], account["trained"], found["findings"]) == (5, 5, [])
    missing = CliRunner().invoke(app, ["check", "nowhere.jsonl"])
    assert missing.exit_code == 2


def test_the_json_has_each_finding_once(record, tmp_path):
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in mask_gone(record)))
    printed = json.loads(CliRunner().invoke(app, ["check", "--json", str(file)]).stdout)
    assert [finding["check"] for finding in printed["findings"]] == ["broken"]
    (figures,) = printed["figures"]["files"]
    assert "findings" not in figures
