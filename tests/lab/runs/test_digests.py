"""Digests of a run's files: whatever is changed, cut or gone is named."""

from __future__ import annotations

import hashlib
import json

import pytest

from drcl.lab.runs import digests


@pytest.fixture
def sealed(tmp_path):
    seal = digests.Seal(tmp_path)
    seal.write("a.csv", b"task,0\n0,0.5\n")
    seal.write("b.bin", bytes(range(200)))
    seal.close(b'{"finished": true}')
    return tmp_path


def test_the_digests_are_sha256_of_each_file(sealed):
    said = json.loads((sealed / "digests.json").read_text())["files"]
    names = ["a.csv", "b.bin", "result.json"]
    assert said == {name: hashlib.sha256((sealed / name).read_bytes()).hexdigest() for name in names}
    assert digests.check(sealed) == []


def test_every_flipped_bit_of_every_file_is_noticed(sealed):
    for path in sorted(sealed.iterdir()):
        good = path.read_bytes()
        for bit in range(0, 8 * len(good), 5):
            bad = bytearray(good)
            bad[bit // 8] ^= 1 << bit % 8
            path.write_bytes(bad)
            (sentence,) = digests.check(sealed)
            assert sentence.startswith(f"{path.name} is damaged")
        path.write_bytes(good)
    assert digests.check(sealed) == []


@pytest.mark.parametrize("name", ["a.csv", "b.bin"])
def test_a_file_that_is_gone_cut_or_replaced_is_named(sealed, name):
    path = sealed / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert digests.check(sealed) == [f"{name} is damaged (its content does not match its digest)"]
    path.unlink()
    assert digests.check(sealed) == [f"{name} is missing"]
    path.mkdir()
    assert digests.check(sealed) == [f"{name} is not a file"]


def test_without_its_result_a_run_was_killed_and_is_not_damaged(sealed):
    (sealed / "result.json").unlink()
    assert digests.check(sealed) == []


def test_without_digests_nothing_is_said(tmp_path):
    (tmp_path / "a.csv").write_text("x")
    assert not digests.stored(tmp_path)
    assert digests.check(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "[" * 100_000,
        '{"format": "drcl.digests/1"}',
        '{"format": "drcl.digests/1", "files": []}',
        '{"format": "drcl.digests/1", "files": {"../x": "0"}}',
        '{"format": "drcl.digests/9", "files": {}}',
        "\0",
    ],
    ids=range(9),
)
def test_a_file_of_digests_that_says_something_else_is_damaged(sealed, text):
    (sealed / "digests.json").write_text(text)
    (sentence,) = digests.check(sealed)
    assert sentence.startswith("digests.json is damaged")


def test_a_file_is_added_without_a_moment_of_doubt(sealed, monkeypatch):
    digests.add(sealed, "notes.txt", b"one")
    assert digests.check(sealed) == []
    assert digests.read(sealed)["notes.txt"] == hashlib.sha256(b"one").hexdigest()
    original, seen = digests.replace_whole, []

    def watched(path, data):
        original(path, data)
        seen.append(path.name)
        assert digests.check(sealed) == []  # a kill right here leaves a whole run

    monkeypatch.setattr(digests, "replace_whole", watched)
    digests.add(sealed, "notes.txt", b"two")
    assert seen == ["digests.json", "notes.txt", "digests.json"]
    assert (sealed / "notes.txt").read_bytes() == b"two"
    (sealed / "notes.txt").write_bytes(b"three")
    assert len(digests.check(sealed)) == 1


def test_a_file_beside_a_run_without_digests_is_just_written(tmp_path):
    digests.add(tmp_path, "error.txt", b"why")
    assert [path.name for path in tmp_path.iterdir()] == ["error.txt"]


def test_the_first_bytes_of_a_file_have_their_digest(tmp_path):
    data = bytes(range(256)) * 9000  # more than one piece
    (tmp_path / "f").write_bytes(data)
    for length in (0, 1, 256, 1 << 20, (1 << 20) + 1, len(data)):
        assert digests.of_file(tmp_path / "f", length) == hashlib.sha256(data[:length]).hexdigest()
    assert digests.of_file(tmp_path / "f") == digests.of_bytes(data)
