"""What is kept of output: the first half, the last half, a mark."""

import tracemalloc

import pytest

from agentrl_sandbox.output import HeadTailBuffer


def kept(limit, *pieces):
    made = HeadTailBuffer(limit)
    for piece in pieces:
        made.add(piece)
    return made


@pytest.mark.parametrize("pieces", [[b"0123456789"], [b"01234", b"56789"], [bytes([n]) for n in b"0123456789"]])
@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (10, "0123456789"),
        (9, "01234\n[... 1 bytes left out ...]\n6789"),
        (3, "01\n[... 7 bytes left out ...]\n9"),
        (1, "0\n[... 9 bytes left out ...]\n"),
        (0, ""),
        (-1, ""),
    ],
)
def test_it_does_not_matter_how_the_output_came(limit, text, pieces):
    made = kept(limit, *pieces)
    assert made.truncated == (limit < 10)
    assert (made.text(), made.truncated) == (text, limit < 10)
    assert made.text() == text


def test_nothing_is_left_out_of_nothing():
    assert (kept(0).text(), kept(0).truncated, kept(4).text()) == ("", False, "")


@pytest.mark.parametrize("character", ["é", "€", "😀"])
def test_a_character_is_not_cut_in_two(character):
    data = (character * 20).encode()
    for limit in range(8, 25):
        head, mark, tail = kept(limit, data).text().split("\n")
        assert set(head + tail) == {character}
        assert len((head + tail).encode()) + int(mark.split()[1]) == len(data)


def test_bytes_that_are_not_utf8_are_shown():
    assert kept(10, b"a\xff\xfeb").text() == "a\ufffd\ufffdb"
    assert kept(4, b"\xff" * 10).text().count("\ufffd") == 4


def test_memory_is_bounded():
    piece = b"x" * (64 << 10)
    tracemalloc.start()
    try:
        made = HeadTailBuffer(100_000)
        for _ in range(2000):
            made.add(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert made.text() == "x" * 50_000 + f"\n[... {2000 * (64 << 10) - 100_000:,} bytes left out ...]\n" + "x" * 50_000
