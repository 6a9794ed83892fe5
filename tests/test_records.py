"""Records: one object a line, of one configuration a folder."""

import json

import pytest

from experiments import records


def test_what_is_appended_is_read_back_and_nan_is_null(tmp_path):
    records.append(str(tmp_path), {"a": 1, "b": [1.5, float("nan")], "c": {"d": float("inf")}})
    records.append(str(tmp_path), {"a": 2})
    assert records.read(str(tmp_path)) == [{"a": 1, "b": [1.5, None], "c": {"d": None}}, {"a": 2}]
    for line in (tmp_path / "records.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_a_folder_without_records_has_none(tmp_path):
    assert records.read(str(tmp_path)) == []


def test_a_folder_is_claimed_by_one_configuration(tmp_path):
    folder = str(tmp_path)
    records.claim(folder, gamma=3, temperatures=(0.0, 1.0))
    records.claim(folder, gamma=3, temperatures=(0.0, 1.0))
    with pytest.raises(ValueError, match=r"another configuration \(gamma 3 there, 5 here\)"):
        records.claim(folder, gamma=5, temperatures=(0.0, 1.0))


def test_a_new_setting_that_is_off_leaves_older_folders_open(tmp_path):
    folder = str(tmp_path)
    records.claim(folder, gamma=3)
    records.claim(folder, gamma=3, top_k=None)
    with pytest.raises(ValueError, match="top_k None there, 5 here"):
        records.claim(folder, gamma=3, top_k=5)


def test_the_environment_names_versions_and_device(tmp_path):
    records.write_environment(str(tmp_path))
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["packages"]["jax"] and environment["device"]


def test_records_of_several_hosts_merge_without_loss_or_double_lines(tmp_path):
    folders = [str(tmp_path / name) for name in "abc"]
    for number, folder in enumerate(folders):
        (tmp_path / "abc"[number]).mkdir()
        records.claim(folder, gamma=3)
        records.append(folder, {"point": 0})
        records.append(folder, {"point": number, "values": [1.5, float("nan")]})
    first, *others = folders
    assert records.merge(first, others) == 2
    points = [row["point"] for row in records.read(first)]
    assert points == [0, 0, 1, 2]
    assert records.merge(first, others) == 0
    records.claim(str(tmp_path), gamma=5)
    with pytest.raises(ValueError, match="another configuration"):
        records.merge(first, [str(tmp_path)])
    assert len(records.read(first)) == 4
