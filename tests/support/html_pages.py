"""The text of what is shown in a notebook or written as a page, and a check of its tags."""

from html.parser import HTMLParser

__all__ = ["read"]


class Page(HTMLParser):
    """Reads a page: its text, its tags, and whether each tag is closed where it should be."""

    def __init__(self, text):
        super().__init__()
        self.text, self.tags, self._open = [], [], []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._open.append(tag)
        assert not [name for name, _ in attributes if name.startswith("on")], "no scripts"

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.text.append(data)


def read(shown):
    """The text of an object's page, or of a page; it asks for nothing from elsewhere."""
    page = Page(shown._repr_html_() if hasattr(shown, "_repr_html_") else shown)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    return " ".join(" ".join(page.text).split())
