"""Episodes as JSON for the web page: columns of values and runs of tokens, never an object for each token."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest

from agentrl._util.texts import texts_in
from agentrl.types import JSON
from agentrl.view.images import labelled
from agentrl.view.model import EpisodeRecord, TokenRun, TokenSequence
from agentrl.view.reasons import NOT_SAMPLED, REASONS
from agentrl.view.texts import TokenTexts, numbered

_TURN = 4_000
"""The most characters of a turn when episodes are shown side by side."""
_FOUND = 1_000
"""The most places of a searched text that are returned."""


def episode_payload(episode: EpisodeRecord, texts: TokenTexts | None) -> dict[str, JSON]:
    """All data on an episode. Arrays are little-endian and encoded in base64."""
    used = {reason for sequence in episode.sequences for reason in sequence.masked}
    return {
        "format": episode.format,
        "outline": episode.outline.to_json(),
        "decoded": texts is not None,
        "sequences": [_sequence(sequence, texts) for sequence in episode.sequences],
        "texts": [[text.author, text.text, text.turn, text.trained] for text in episode.texts],
        "turns": [asdict(turn) for turn in episode.turns],
        "unread": _unread(episode),
        "facts": {name: value for name, value in episode.facts.items() if name in _SHOWN and value},
        "session": _session(episode.session),
        "reasons": {reason: list(REASONS[reason]) for reason in used if reason in REASONS},
        "not_sampled": NOT_SAMPLED,
        "problems": [
            asdict(p)
            for p in episode.problems
            + [p for sequence_of_problem in episode.sequences for p in sequence_of_problem.problems]
        ],
    }


_SHOWN = ("task", "info", "failure", "label", "reward", "status", "agent", "notes", "errors")


def _unread(episode: EpisodeRecord) -> list[str]:
    """The last messages, which no turn of the model has read."""
    first = len(episode.messages) - (episode.facts.get("unread") or 0)
    return [f"{m.get('role')}: {''.join(texts_in(m.get('content')))}" for m in episode.messages[first:]]


def _sequence(sequence: TokenSequence, texts: TokenTexts | None) -> dict[str, JSON]:
    ids = sequence.ids.tolist()
    pieces = labelled(texts.pieces(ids) if texts is not None else numbered(ids), sequence.images)
    words: dict[str, int] = {}
    index = array("I", (words.setdefault(piece, len(words)) for piece in pieces))
    return {
        "name": sequence.name,
        "length": len(ids),
        "prompt_length": sequence.prompt_length,
        "ids": _packed(sequence.ids),
        "words": list(words),
        "index": _packed(index),
        "runs": [[r.start, r.stop, r.author, r.turn, r.trained, r.reason, r.version] for r in sequence.runs],
        "engine": _packed(sequence.engine),
        "trainer": _packed(sequence.trainer),
        "advantages": _packed(sequence.advantages),
        "gap": sequence.gap(),
        "images": [[image.start, image.stop, image.image.digest, image.label] for image in sequence.images],
    }


def _packed(column: array[int] | array[float] | None) -> str | None:
    return None if column is None else base64.b64encode(column.tobytes()).decode("ascii")


def _session(session: Mapping[str, JSON] | None) -> JSON:
    """An agent's session, without the bodies of the requests."""
    if session is None:
        return None
    refused = [line for line in session.get("requests", ()) if line.get("event") == "refused"]
    return {"nodes": session.get("nodes", []), "audits": session.get("audits", []), "refused": refused}


def group_payload(episodes: Sequence[tuple[int, EpisodeRecord]], texts: TokenTexts | None) -> dict[str, JSON]:
    """The turns of several episodes side by side, and the first turn at which the episodes differ."""
    columns = [_turns(episode, texts) for _, episode in episodes]
    replies = [[turn["said"] for turn in column] for column in columns]
    parted = next((i for i, turns in enumerate(zip_longest(*replies)) if len(set(turns)) > 1), None)
    return {
        "parted": parted if len(episodes) > 1 else None,
        "members": [
            {"number": number, "outline": episode.outline.to_json(), "turns": column}
            for (number, episode), column in zip(episodes, columns, strict=True)
        ],
    }


def _turns(episode: EpisodeRecord, texts: TokenTexts | None) -> list[dict[str, JSON]]:
    """The model's text of each turn, and the observation after the turn."""
    entries: dict[int, dict[str, JSON]] = {}
    for author, turn, text, reason in _pieces(episode, texts):
        if turn < 0:
            continue
        entry = entries.setdefault(turn, {"said": "", "read": "", "reason": None})
        part = "said" if author == "model" else "read" if author in ("env", "unknown") else None
        if part is not None and len(entry[part]) < _TURN:
            entry[part] += text[: _TURN - len(entry[part])]
        entry["reason"] = entry["reason"] or reason
    return [entries[turn] for turn in sorted(entries)]


def _pieces(episode: EpisodeRecord, texts: TokenTexts | None) -> Iterator[tuple[str, int, str, str | None]]:
    for text in episode.texts if not episode.sequences else ():
        yield text.author, text.turn, text.text, None
    for sequence in episode.sequences:
        for run in sequence.runs:
            if run.author in ("model", "env", "unknown"):
                ids = sequence.ids[run.start : run.stop].tolist()
                yield run.author, run.turn, texts.decode(ids) if texts else "".join(numbered(ids)), run.reason


def worst_tokens(
    episodes: Sequence[tuple[int, EpisodeRecord]], texts: TokenTexts | None, count: int = 50
) -> list[dict[str, JSON]]:
    """The `count` tokens at which the log-probs of engine and trainer differ most."""
    tokens = [
        (abs(engine - trainer), number, index, token, engine, trainer, run)
        for number, episode in episodes
        for index, sequence in enumerate(episode.sequences)
        if sequence.engine is not None and sequence.trainer is not None
        for run in sequence.runs
        if run.author == "model"
        for token in range(run.start, run.stop)
        if (engine := sequence.engine[token]) == engine and (trainer := sequence.trainer[token]) == trainer
    ]
    tokens.sort(key=lambda row: -row[0])
    by_number = dict(episodes)
    return [
        {
            "episode": number,
            "sequence": index,
            "token": token,
            "gap": gap,
            "engine": engine,
            "trainer": trainer,
            "turn": run.turn,
            "trained": run.trained,
            "reason": run.reason,
            **_around(by_number[number].sequences[index], token, run, texts),
        }
        for gap, number, index, token, engine, trainer, run in tokens[:count]
    ]


def _around(sequence: TokenSequence, token: int, run: TokenRun, texts: TokenTexts | None) -> dict[str, JSON]:
    start, stop = max(run.start, token - 8), min(run.stop, token + 9)
    ids = sequence.ids[start:stop].tolist()
    pieces = texts.pieces(ids) if texts is not None else numbered(ids)
    index = token - start
    return {
        "before": "".join(pieces[:index]),
        "text": pieces[index],
        "after": "".join(pieces[index + 1 :]),
        "id": sequence.ids[token],
    }


def find_text(episode: EpisodeRecord, texts: TokenTexts | None, sought: str) -> list[list[int]]:
    """The places of a text: index of the sequence, first token, and the token after the last. Case is ignored."""
    places, sought = list[list[int]](), sought.casefold()
    for number, sequence in enumerate(episode.sequences if sought else ()):
        ids = sequence.ids.tolist()
        pieces = texts.pieces(ids) if texts is not None else numbered(ids)
        starts, offset = list[int](), 0
        for piece in pieces:
            starts.append(offset)
            offset += len(piece.casefold())
        text, place = "".join(pieces).casefold(), 0
        token = 0
        while (place := text.find(sought, place)) >= 0 and len(places) < _FOUND:
            while token + 1 < len(starts) and starts[token + 1] <= place:
                token += 1
            stop = token + 1
            while stop < len(starts) and starts[stop] < place + len(sought):
                stop += 1
            places.append([number, token, stop])
            place += len(sought)
    return places
