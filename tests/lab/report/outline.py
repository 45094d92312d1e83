"""A page as its readers' programs see it."""

import re
from html.parser import HTMLParser


class Outline(HTMLParser):
    """Tags, their attributes and the visible words of a page; complains about unbalanced tags."""

    void = frozenset({"meta", "br", "img", "path", "use", "link", "hr", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open, f"</{tag}> closes nothing"
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.words.append(data)

    @property
    def pictures(self) -> list[dict[str, str | None]]:
        """The attributes of each figure; the markers beside names are not among them."""
        return [attributes for tag, attributes in self.tags if tag == "svg" and attributes.get("class") != "chip"]

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))
