"""The directory of a zip file is believed only where its last record agrees."""

import zipfile

import pytest

from drcl.lab.data.formats.zips import members


def archive(path, names, comment=b""):
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, name)
        file.comment = comment
    return path


@pytest.mark.parametrize("names", [[], ["a"], [f"f{k}" for k in range(300)]], ids=len)
@pytest.mark.parametrize("comment", [b"", b"x" * 60_000])
def test_whole_archives(tmp_path, names, comment):
    path = archive(tmp_path / "a.zip", names, comment)
    with zipfile.ZipFile(path) as file:
        assert [m.filename for m in members(file, path)] == names


def test_an_entry_that_damage_hid_in_a_comment(tmp_path):
    """The length of the first entry's comment, made as long as the second entry: zipfile sees one file and no error."""
    path = archive(tmp_path / "a.zip", ["first", "second"])
    content = bytearray(path.read_bytes())
    first = content.index(b"PK\x01\x02")
    second = content.index(b"PK\x01\x02", first + 4)
    end = content.index(b"PK\x05\x06")
    content[first + 32 : first + 34] = (end - second).to_bytes(2, "little")
    path.write_bytes(content)
    with zipfile.ZipFile(path) as file:
        assert [m.filename for m in file.infolist()] == ["first"]
        with pytest.raises(zipfile.BadZipFile, match="as many entries as it announces"):
            members(file, path)
