"""The study of texts: what it splits, what it tries, what its table says, and a run of every form on tiny settings."""

import csv

import pytest
import torch
from benchmarks.studies import texts

TINY = texts.Size(16, layers=1, length=32, batch=4, first=4, steps=12, kept=8, judged=8, bytes=20_000)


@pytest.fixture
def data():
    rng = torch.Generator().manual_seed(0)
    draw = {"train": 30, "valid": 8, "test": 8}
    return {t: {part: torch.randint(256, (n, 32), generator=rng) for part, n in draw.items()} for t in texts.TEXTS}


def test_files_are_split_and_not_pieces_of_them(monkeypatch):
    """Every byte of a file has the file's number, so that the parts show which files they have."""
    monkeypatch.setattr(texts, "files", lambda text: [(f"file {k}", bytes([k]) * 640) for k in range(40)])
    parts = texts.sequences("python", TINY._replace(judged=1000))
    numbers = {part: set(pieces.flatten().tolist()) for part, pieces in parts.items()}
    assert set.union(*numbers.values()) == set(range(40))
    assert sum(map(len, numbers.values())) == 40
    assert all(numbers.values())
    again = texts.sequences("python", TINY._replace(judged=1000))
    assert all((parts[part] == again[part]).all() for part in parts)


def test_a_file_that_is_there_twice_counts_once(monkeypatch):
    monkeypatch.setattr(texts, "files", lambda text: [(f"file {k}", bytes([k % 20]) * 640) for k in range(40)])
    parts = texts.sequences("python", TINY._replace(judged=1000))
    assert sum(len(pieces) for pieces in parts.values()) == 20 * 640 // 32


def test_sequences_come_again_only_when_all_have_come():
    pieces = torch.arange(10)[:, None]
    found = texts.drawn(pieces, 25, 3).flatten().tolist()
    assert [len(set(part)) for part in (found[:10], found[10:20], found[20:])] == [10, 10, 5]


@pytest.mark.parametrize(
    ("tried", "told"),
    [
        ({}, 0.1),
        ({"0.1": 2.0}, 1.0),
        ({"0.1": 2.0, "1": 1.9}, 10.0),
        ({"0.1": 1.9, "1": 2.0}, 0.01),
        ({"0.1": 1.9, "1": 2.0, "0.01": 1.0}, None),
    ],
)
def test_trials_go_on_from_the_better_end(tried, told):
    form = texts.Form("", "strength", 0.1, 10.0)
    assert texts.next_value(tried, form, 3) == (None if told is None else pytest.approx(told))


def test_a_form_without_a_knob_runs_once():
    assert texts.next_value({}, texts.Form(""), 3) == 0.0
    assert texts.next_value({"": 2.0}, texts.Form(""), 3) is None


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(texts.FIELDS)
        table.writerows(rows)


def test_the_table_counts_forgetting_from_when_a_text_was_learned(tmp_path):
    """Python rose by 1.0 and English by 0.5 with AdamW; the value that validation chose has a third of that."""
    write(
        tmp_path / "runs.csv",
        [
            ("start", "", 0, "python", "test", 1.0, 3.0, 3.0),
            ("adamw", "", 0, "english", "test", 1.5, 1.5, 3.0),
            ("adamw", "", 0, "c", "test", 2.0, 2.0, 1.0),
            ("adamw", "", 0, "c", "valid", 2.0, 2.0, 1.0),
            ("l2", "0.1", 0, "english", "test", 1.1, 1.7, 3.0),
            ("l2", "0.1", 0, "c", "valid", 1.3, 1.9, 1.0),
            ("l2", "0.1", 0, "c", "test", 1.3, 1.9, 1.1),
            ("l2", "1", 0, "c", "valid", 1.2, 1.8, 1.9),  # the mean over the texts is worse
            ("l2", "1", 0, "c", "test", 1.0, 1.0, 1.0),
        ],
    )
    *_, adamw, l2 = (line.strip("| ").split(" | ") for line in texts.markdown(tmp_path / "runs.csv").splitlines())
    assert adamw[-6:] == ["2.00", "1.00", "1.67", "0.75", "100", "+0.0"]
    assert l2[1:] == ["strength 0.1, of 2", "1", "1.10", "1.70", "1.30", "1.90", "1.10", "1.43", "0.25", "33", "+10.0"]


def test_the_presets_own_strength_has_a_row_whatever_the_trials_chose(tmp_path):
    write(
        tmp_path / "runs.csv",
        [
            ("directions", value, 0, "c", part, *losses)
            for value, losses in (("0.003", (2.0, 2.0, 1.0)), ("0.03", (1.0, 1.0, 2.0)))
            for part in texts.PARTS
        ],
    )
    *_, tuned, preset = (line.split(" | ") for line in texts.markdown(tmp_path / "runs.csv").splitlines())
    assert (tuned[1], tuned[5:8]) == ("strength 0.03, of 2", ["1.00", "1.00", "2.00"])
    assert (preset[1], preset[5:8]) == ("", ["2.00", "2.00", "1.00"])


def test_every_form_runs_and_a_second_call_has_nothing_to_do(tmp_path, data, monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    path = tmp_path / "runs.csv"
    texts.study(texts.FORMS, [0], 2, data, TINY, path, tmp_path)
    kept = texts.rows(path)
    for form, about in texts.FORMS.items():
        if form == "preset":  # is the first trial of directions
            continue
        mine = [row for row in kept if row["form"] == form and row["after"] == "c"]
        assert [row["part"] for row in mine] == list(texts.PARTS) * (2 if about.knob else 1), form
    monkeypatch.setattr(texts, "run", None)
    texts.study(texts.FORMS, [0], 2, data, TINY, path, tmp_path)


def test_another_seed_has_the_tuned_strength_and_the_presets_own():
    kept = [
        {
            "form": "directions",
            "value": value,
            "seed": "0",
            "after": "c",
            "part": "valid",
            **dict.fromkeys(texts.TEXTS, x),
        }
        for value, x in (("0.003", 2.0), ("0.03", 1.0))
    ]
    assert texts.planned(kept, "preset", 0, 2) is None
    assert texts.planned(kept, "directions", 1, 2) == 0.03
    assert texts.planned(kept, "preset", 1, 2) == 0.003
    kept.append({"form": "directions", "value": "0.003", "seed": "1", "after": "c", "part": "test"})
    assert texts.planned(kept, "directions", 1, 2) == 0.03
    assert texts.planned(kept, "preset", 1, 2) is None


def test_every_form_starts_from_the_same_model(tmp_path, data):
    pytest.importorskip("transformers")
    one, two = (texts.start(data, 0, TINY, tmp_path).state_dict() for _ in range(2))
    assert all(torch.equal(t, two[name]) for name, t in one.items())


@pytest.mark.parametrize("weighted", [False, True])
def test_the_pull_of_the_rivals_is_the_one_they_publish(weighted):
    """strength / 2 * sum of F (w - a)^2, here with F written down and w - a = 0.5 everywhere."""
    layer = torch.nn.Linear(2, 1)
    pull = texts.Pull(layer, 3.0, weighted)
    pull.anchor = {name: p.detach() - 0.5 for name, p in layer.named_parameters()}
    if weighted:
        pull.fisher = {"weight": torch.tensor([[2.0, 4.0]]), "bias": torch.tensor([6.0])}
    assert float(pull().detach()) == pytest.approx(3 / 2 * 0.25 * (12 if weighted else 3))
