"""Names on the Hugging Face Hub: the real client downloads from a Hub on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="models need the extra `train`")

from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars  # noqa: E402

from agentrl._util.signals import Terminated, run  # noqa: E402
from agentrl.cli import app  # noqa: E402
from agentrl.errors import ConfigError  # noqa: E402
from agentrl.models import folder_of, load_model, load_tokenizer, tiny_model, tiny_tokenizer  # noqa: E402
from tests.doubles.hub import COMMIT, FakeHub, listen_at, nobody_listens  # noqa: E402

NAME = "some-org/Model-0.6B"


@pytest.fixture(scope="session")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as the Hub has one: its weights in several files."""
    folder = tmp_path_factory.mktemp("sharded")
    tiny_model().save_pretrained(folder, max_shard_size="900KB")
    tiny_tokenizer().save_pretrained(folder)
    assert len(list(folder.glob("*.safetensors"))) == 3
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a current folder with nothing in it."""
    here, cache = tmp_path / "here", tmp_path / "cache"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    return cache


@pytest.fixture
def hub(cache: Path, sharded: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub().serve() as hub:
        listen_at(hub.url, monkeypatch)
        hub.add(
            NAME,
            sharded,
            **{"pytorch_model.bin": b"x", "model-Q4.gguf": b"x", "original__consolidated.00.pth": b"x"},
            **{"onnx__model.onnx": b"x", "onnx__tokenizer.json": b"x", "README.md": b"x"},
        )
        yield hub


def refused(model: str, *, weights: bool = True) -> str:
    with pytest.raises(ConfigError) as caught:
        folder_of(model, weights=weights)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_name_is_downloaded_once(hub: FakeHub, sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_tokenizer(NAME).encode("Tonga") == tiny_tokenizer().encode("Tonga")
    small = sorted(path.name for path in sharded.iterdir() if path.suffix != ".safetensors")
    assert sorted(hub.fetched) == small, "the tokenizer needs no weights"
    assert hub.fetched[-1] == "tokenizer.json", "it shows that the others are there"
    hub.asked.clear()
    assert torch.equal(load_model(NAME).model.norm.weight, tiny_model().model.norm.weight)
    assert hub.fetched == sorted(path.name for path in sharded.glob("*.safetensors")), "nothing twice"
    hub.asked.clear()
    nobody_listens(monkeypatch)
    assert load_tokenizer(NAME)
    assert load_model(NAME).model.norm.weight.shape == (128,)
    assert folder_of(NAME, weights=True) == folder_of(NAME, weights=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load_model(NAME)
    assert not hub.asked


@pytest.mark.parametrize("revision", ["v1", COMMIT])
def test_a_name_with_a_revision(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, revision: str) -> None:
    folder = folder_of(f"{NAME}@{revision}", weights=False)
    assert folder.name == COMMIT
    nobody_listens(monkeypatch)
    assert folder_of(f"{NAME}@{revision}", weights=False) == folder
    assert "is not (completely) in the cache" in refused(NAME)


@pytest.mark.parametrize("path", ["/abs/x", "../x", "~/x", "made/frist", "a/b/c", "made/a b", "a/"])
def test_a_path_never_reaches_the_hub(hub: FakeHub, path: str) -> None:
    Path("made").mkdir()
    assert f"unknown model {path!r}; use tiny" in refused(path)
    assert not hub.asked


@pytest.mark.parametrize("path", ["./runs/x", "runs/frist", "runs/a b", "run/x", "runs/x/best"])
def test_a_run_that_is_not_there_is_no_name_on_the_hub(hub: FakeHub, path: str) -> None:
    folder = path.removesuffix("/best")
    assert refused(path).endswith(
        f"there is no folder {path}; name a run's folder, or make one: agentrl train --out {folder}"
    )
    assert not hub.asked


def test_a_slip_in_the_name_of_our_own_model(hub: FakeHub) -> None:
    assert "unknown model 'tny'; did you mean tiny?" in refused("tny")


def test_a_folder_wins(hub: FakeHub) -> None:
    Path(NAME).mkdir(parents=True)
    assert folder_of(NAME, weights=True) == Path(NAME)
    assert not hub.asked
    assert folder_of(f"{NAME}@main", weights=False).name == COMMIT, "a revision is on the Hub only"


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ({f"api/{NAME}": (401, "RepoNotFound")}, "no folder some-org/Model-0.6B is here, and .* set HF_TOKEN if"),
        ({f"api/{NAME}": (404, "RepoNotFound")}, "has no model of this name that you may read"),
        ({NAME: (401, "GatedRepo")}, "is gated: accept its terms at .*/some-org/Model-0.6B, and set HF_TOKEN"),
        ({NAME: (403, "GatedRepo")}, "is gated: accept its terms"),
        ({NAME: (403, "")}, "answers 403; set HF_TOKEN to a token that may read it"),
        ({f"api/{NAME}": (403, "")}, "answers 403; set HF_TOKEN to a token that may read it"),
        ({f"api/{NAME}": (503, "")}, "answers 503; run the command again later"),
    ],
)
def test_what_the_hub_refuses_is_one_line(hub: FakeHub, refusal: dict[str, tuple[int, str]], said: str) -> None:
    hub.refused.update(refusal)
    with pytest.raises(ConfigError, match=said) as caught:
        folder_of(NAME, weights=True)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_one_line(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "has no revision 'v9'" in refused(f"{NAME}@v9")
    hub.files["some-org/gguf"] = {"model-Q4.gguf": b"x", "README.md": b"x"}
    assert "holds no model that transformers reads" in refused("some-org/gguf")
    hub.files["some-org/no-weights"] = {"config.json": b"{}"}
    assert "holds no weights that transformers reads" in refused("some-org/no-weights")
    nobody_listens(monkeypatch)
    assert "cannot be downloaded from http://127.0.0.1:9: ConnectError" in refused(NAME)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set: unset it" in refused(NAME)


def test_a_part_in_the_cache_is_not_taken_for_the_whole(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    last = sorted(file for file in hub.files[NAME] if file.endswith(".safetensors"))[-1]
    folder = folder_of(NAME, weights=True)
    (folder / last).unlink()
    hub.asked.clear()
    assert folder_of(NAME, weights=True) == folder
    assert (folder / last).is_file()
    (folder / last).unlink()
    nobody_listens(monkeypatch)
    assert "is not (completely) in the cache" in refused(NAME)
    assert folder_of(NAME, weights=False) == folder


@pytest.mark.thorough
def test_a_cut_download_goes_on_where_it_stopped(hub: FakeHub) -> None:
    shard = next(file for file in hub.files[NAME] if file.endswith(".safetensors"))
    shown: list[bool] = []
    hub.cut[shard] = lambda: shown.append(not are_progress_bars_disabled())
    with disable_progress_bars():  # as a trainer does
        folder = folder_of(NAME, weights=True)
        assert are_progress_bars_disabled(), "as before"
    assert shown == [True], "a long download shows how far it is"
    assert hub.fetched.count(shard) == 2, "the second time from the middle"
    assert (folder / shard).read_bytes() == hub.files[NAME][shard]


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_ends_a_download_at_once(
    hub: FakeHub, cache: Path, number: signal.Signals, raised: type[BaseException]
) -> None:
    """Within an event loop, too, where a signal would only cancel the task after the download."""
    first, second, _ = sorted(file for file in hub.files[NAME] if file.endswith(".safetensors"))
    ended = threading.Event()

    def interrupt() -> None:
        os.kill(os.getpid(), number)
        ended.wait(30)

    async def main() -> None:
        await asyncio.sleep(0)
        folder_of(NAME, weights=True)

    hub.cut[second] = interrupt
    with pytest.raises(raised):
        run(main())
    ended.set()
    assert not list(cache.rglob("*.incomplete"))
    hub.asked.clear()
    assert load_model(NAME)
    assert first not in hub.fetched, "what was finished is kept"
    assert second in hub.fetched


def test_a_full_disk_names_the_cache(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    with pytest.raises(OSError, match=r"No space left on device \(HF_HOME names another disk\)") as caught:
        folder_of(NAME, weights=True)
    assert (caught.value.errno, caught.value.filename) == (28, str(cache))


def test_a_command_that_needs_no_weights_downloads_none(hub: FakeHub) -> None:
    result = CliRunner().invoke(app, ["check", "template", NAME])
    assert result.output.startswith("checked template: exact"), result.output
    assert hub.fetched
    assert not any(file.endswith(".safetensors") for file in hub.fetched)
    result = CliRunner().invoke(app, ["check", "template", "some-org/other"])
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert result.output.startswith("error: no folder some-org/other is here, and http://127.0.0.1:")


@pytest.mark.thorough
def test_the_environment_says_where_the_hub_is(hub: FakeHub, cache: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_CACHE": str(cache)}
    code = f"from agentrl.models import folder_of; print(folder_of('{NAME}', weights=True))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == str(folder_of(NAME, weights=True)), done.stderr
