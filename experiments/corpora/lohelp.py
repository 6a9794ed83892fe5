"""LibreOffice's built-in help: packages libreoffice-help-en-us and libreoffice-help-de.

Licence of the text: MPL-2.0 (The Document Foundation and contributors).
A document is one help page, named by its path (text/swriter/guide/tables.html). Paragraphs
carry the same id in both languages, so pairing needs no guessing. Pages include each other's
paragraphs: the same sentence may stand in many documents.
"""

from collections.abc import Iterator
from html.parser import HTMLParser

from experiments.corpora.packages import Packages
from experiments.corpora.pairs import Pair, align, one_line

SOURCE = "lohelp"
_FOLDER = "usr/share/libreoffice/help/"
_TEXT_TAGS = {"p", "h1", "h2", "h3", "h4", "h5", "h6", "li", "td", "th"}


class _Paragraphs(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.found: dict[str, str] = {}
        self._inside = False  # past the page's menus
        self._tag = self._id = None
        self._text: list[str] = []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        name = attributes.get("id") or ""
        if name == "DisplayArea":
            self._inside = True
        elif name == "SearchFrame":
            self._inside = False
        elif tag == "br":
            self._text.append(" ")
        is_code = "code" in (attributes.get("class") or "")
        if self._inside and tag in _TEXT_TAGS and name and not is_code:
            self._tag, self._id, self._text = tag, name, []

    def handle_endtag(self, tag):
        if tag == self._tag:
            text = one_line("".join(self._text))
            if text:
                self.found.setdefault(self._id, text)
            self._tag = None

    def handle_data(self, data):
        if self._tag:
            self._text.append(data)


def paragraphs(html: str) -> dict[str, str]:
    """A page's paragraphs by id, without menus, code samples and empty ones."""
    parser = _Paragraphs()
    parser.feed(html)
    return parser.found


def page_pairs(english_html: str, german_html: str, document: str) -> Iterator[Pair]:
    german = paragraphs(german_html)
    for name, text in paragraphs(english_html).items():
        if name in german:
            for pair in align(text, german[name]):
                yield Pair(*pair, SOURCE, document)


def pairs(packages: Packages) -> Iterator[Pair]:
    english = dict(_pages(packages, "libreoffice-help-en-us", "en-US/"))
    for document, page in _pages(packages, "libreoffice-help-de", "de/"):
        if document in english:
            yield from page_pairs(english[document], page, document)


def _pages(packages: Packages, package: str, language: str) -> Iterator[tuple[str, str]]:
    prefix = _FOLDER + language
    for path, content in packages.files(package, prefix + "text/"):
        if path.endswith(".html"):
            yield path.removeprefix(prefix), content.decode("utf-8")
