"""Data of millions of rows: memory and time of a file that stays on disk, beside one that is read at once.

python -m benchmarks.large_data [--rows 2000000]

Each way runs in a separate process, and draws 20,000 tasks of a shuffled epoch. Reading at once is done for a tenth of
the rows, and is printed for that many.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from agentrl.rollout import TaskStream, load_tasks
from agentrl.rollout.tasks import TaskFile
from agentrl.types import Task

DRAWN = 20_000


def rows(count: int) -> Iterator[dict[str, object]]:
    for i in range(count):
        prompt = [{"role": "user", "content": f"Question {i}: " + "what is known about it? " * 6}]
        yield {"prompt": prompt, "label": str(i), "metadata": {"source": "made", "number": i}}


def write_jsonl(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows(count))


def write_parquet(path: Path, count: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    writer, batch = None, []
    for number, row in enumerate(rows(count), 1):
        batch.append(row)
        if len(batch) == 50_000 or number == count:
            table = pa.Table.from_pylist(batch)
            writer = writer or parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
            batch = []
    if writer is not None:
        writer.close()


def megabytes() -> float:
    """The memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def measure(open_tasks: Callable[[Path], Sequence[Task]], path: Path) -> None:
    before, began = megabytes(), time.monotonic()
    stream = TaskStream(open_tasks(path), 0)
    opened = time.monotonic()
    stream.take(DRAWN)
    drawn = time.monotonic()
    state = len(json.dumps(stream.state_dict()))
    print(
        f"  {opened - began:7.1f} s to open   {1e6 * (drawn - opened) / DRAWN:7.0f} us a draw   "
        f"{megabytes() - before:7.0f} MB more   {state:>9,} bytes in a checkpoint",
        flush=True,
    )


def on_disk(path: Path) -> Sequence[Task]:
    return TaskFile(path, split="train")


def at_once(path: Path) -> Sequence[Task]:
    return load_tasks(path, split="train")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    count = parser.parse_args().rows
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        large, small, table = Path(folder, "large.jsonl"), Path(folder, "small.jsonl"), Path(folder, "large.parquet")
        write_jsonl(large, count)
        write_jsonl(small, count // 10)
        write_parquet(table, count)
        for what, way, path, number in (
            ("at once", at_once, small, count // 10),
            ("on disk", on_disk, large, count),
            ("Parquet, unpacked to disk", on_disk, table, count),
        ):
            print(f"{what}: {number:,} rows, {path.stat().st_size / 1e6:,.0f} MB", flush=True)
            process = context.Process(target=measure, args=(way, path))
            process.start()
            process.join()


if __name__ == "__main__":
    main()
