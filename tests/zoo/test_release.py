"""Several commands that write records into one zoo: none loses what another has written."""

import shutil
import threading
from dataclasses import replace

import pytest
from helpers.cases import each
from helpers.zoo import NAME

from hypvision.checkpoints.download import file_sha256
from hypvision.checkpoints.index import read_index
from hypvision.io.errors import HypvisionError
from hypvision.zoo import release
from hypvision.zoo.cards import readme
from hypvision.zoo.release import index_of, put_record


def like(record, name, path):
    """A record of the same weights under another name and path."""
    return replace(record, name=name, file=replace(record.file, path=path))


def test_records_that_are_written_at_once_all_stay(zoo, micro, monkeypatch):
    known = read_index(zoo).get(NAME)
    together = threading.Barrier(6)
    written = []

    def rendered(index):
        written.append(len(index))
        return readme(index)

    def put(number):
        name = f"hcformer_nano.t{number}"
        together.wait()
        put_record(zoo, like(known, name, f"weights/{number}.safetensors"), micro[1], None)

    monkeypatch.setattr(release, "readme", rendered)
    threads = [threading.Thread(target=put, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    index = read_index(zoo)
    assert written == list(range(2, 8))
    assert set(index.records) == {NAME, *(f"hcformer_nano.t{number}" for number in range(6))}
    assert all(file_sha256(zoo / record.file.path) == record.file.sha256 for record in index)
    assert (zoo / "README.md").read_text() == readme(index)


@each("shared", [False, True])
def test_an_old_file_goes_only_if_no_record_names_it(zoo, micro, shared):
    known = read_index(zoo).get(NAME)
    if shared:
        shutil.copyfile(micro[1], zoo / known.file.path)
        put_record(zoo, like(known, "hcformer_nano.other", known.file.path), micro[1], None)
    put_record(zoo, like(known, NAME, f"weights/new{shared}.safetensors"), micro[1], known)
    assert (zoo / known.file.path).exists() == shared
    put_record(zoo, known, micro[1], read_index(zoo).get(NAME))


@each("seen", ["the one before", "none"])
def test_a_record_that_another_command_has_changed_stays(zoo, micro, seen):
    known = read_index(zoo).get(NAME)
    changed = replace(known, description=f"Changed meanwhile ({seen}).")
    put_record(zoo, changed, micro[1], known)
    before = {path: path.stat().st_mtime_ns for path in zoo.rglob("*") if path.is_file()}
    mine = like(known, NAME, "weights/mine.safetensors")
    with pytest.raises(HypvisionError, match=f"has changed '{NAME}' in .* repeat the command"):
        put_record(zoo, mine, micro[1], known if seen != "none" else None)
    assert read_index(zoo).get(NAME) == changed
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not (zoo / "weights/mine.safetensors").exists()
    put_record(zoo, known, micro[1], changed)


def test_a_readme_of_another_folder_is_no_table_of_a_zoo(tmp_path, record, micro):
    (tmp_path / "README.md").write_text("Mine.")
    packaged = like(record, record.name, "weights/a.safetensors")
    with pytest.raises(HypvisionError, match="is no zoo .* its README.md would be replaced"):
        put_record(tmp_path, packaged, micro[1], None)
    assert (tmp_path / "README.md").read_text() == "Mine."
    assert len(index_of(tmp_path / "new")) == 0
