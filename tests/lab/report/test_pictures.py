"""The pictures of a page, each with words."""

from tests.lab.report.outline import Outline


def test_every_picture_has_words(written):
    outline = Outline(written.read_text(encoding="utf-8"))
    pictures = outline.pictures
    # accuracy, forgetting; a matrix for sgd, ewc and drcl; drift of drcl; movement; two of cost
    assert len(pictures) == 9
    ids = {attributes.get("id") for _, attributes in outline.tags}
    for attributes in pictures:
        assert attributes["role"] == "img"
        assert set(attributes["aria-labelledby"].split()) <= ids
