"""Reads the text of a manual page (roff with the `man` macros) as a list of blocks.

Only what pairing needs: where paragraphs begin and end, which of them are headings, tags of a
list or code, and their text without markup. Pages in the other macro set (mdoc) give no blocks.
"""

import re
from typing import NamedTuple

HEADING, TAG, TEXT, CODE = "heading", "tag", "text", "code"

_CODE_START = {"nf", "EX", "TS", "SY", "PS", "Vb"}
_CODE_END = {"fi", "EE", "TE", "YS", "PE", "Ve"}
_BREAK = {"PP", "P", "LP", "HP", "sp", "br", "RS", "RE", "Sp", "bp", "ti", "UN"}
_SPACED_FONT = {"B", "I", "SM", "SB", "R", "CW", "BB", "OP"}
_JOINED_FONT = {"BR", "RB", "IR", "RI", "BI", "IB"}
_SYMBOLS = {
    "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "aq": "'", "dq": '"', "em": "—", "en": "–",
    "hy": "-", "bu": "•", "co": "©", "rs": "\\", "ti": "~", "ha": "^", "ga": "`", "Bq": "„",
    "Fo": "«", "Fc": "»", "->": "→", "<-": "←", ">=": "≥", "<=": "≤", "mu": "×", "tm": "™",
    "at": "@", "sh": "#", "Do": "$", "lB": "[", "rB": "]", "lC": "{", "rC": "}", "la": "⟨",
    "ra": "⟩", "12": "½", "de": "°", "mi": "−", "pl": "+", "ss": "ß", ":a": "ä", ":o": "ö",
    ":u": "ü", ":A": "Ä", ":O": "Ö", ":U": "Ü", "Aq": "'", "tq": '"',
}  # fmt: skip
_SYMBOL = re.compile(r"\\\*?(?:\((..)|\[([^\]]*)\])|\\\*(.)")
_NO_TEXT = re.compile(
    r"\\[fFm](?:\(..|\[[^\]]*\]|.)|\\s[+-]?(?:\d|\[[^\]]*\])|\\[hvwl]'[^']*'|\\[&/,|^:%c)]"
    r"|\\u\[\d+\]\\d"  # a raised number that refers to a list of links
)
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|((?:\\.|\S)+)')


class Block(NamedTuple):
    kind: str
    text: str


def plain(text: str) -> str:
    """The text as a reader sees it: no fonts, symbols by name resolved."""
    text = re.sub(r'\\["#].*', "", text)
    text = _NO_TEXT.sub("", text)
    text = _SYMBOL.sub(lambda match: _symbol(match[1] or match[2] or ""), text)
    text = re.sub(r"\\[ ~0]", " ", text).replace("\\e", "\\\\")
    return re.sub(r"\\(.)", r"\1", text)


def _symbol(name: str) -> str:
    code = re.fullmatch(r"u([0-9A-F]{4,6})|char(\d+)", name)
    if code:
        return chr(int(code[1], 16) if code[1] else int(code[2]))
    return _SYMBOLS.get(name, "")


class _Reader:
    def __init__(self):
        self.blocks: list[Block] = []
        self._kind = TEXT
        self._parts: list[str] = []
        self._skip_until = None  # a regular expression: the line that ends what is skipped

    def end_block(self, next_kind: str = TEXT) -> None:
        text = " ".join(" ".join(self._parts).split())
        if text:
            self.blocks.append(Block(self._kind, text))
        self._kind, self._parts = next_kind, []

    def add(self, text: str) -> None:
        self._parts.append(text)
        if self._kind in (TAG, HEADING) and text.strip():
            self.end_block()

    def line(self, line: str) -> None:
        if self._skip_until:
            if re.match(self._skip_until, line):
                self._skip_until = None
            return
        request = re.match(r"[.']\s*([A-Za-z]+|\\\"|\\}|$)\s*(.*)", line)
        if not request:
            if line[:1] in ("", " ") and self._kind == TEXT:
                self.end_block()  # roff breaks the line before a blank or indented one
            self.add(plain(line))
            return
        self.request(request[1], request[2])

    def request(self, name: str, rest: str) -> None:
        arguments = [plain(a.replace('""', '"') or b) for a, b in _ARGUMENT.findall(rest)]
        if name in _CODE_START:
            self.end_block()
            self.blocks.append(Block(CODE, ""))
            self._skip_until = r"[.']\s*(?:" + "|".join(_CODE_END) + r")\b"
        elif name in ("de", "de1", "am", "ig"):
            self._skip_until = r"\.\s*\."
        elif name in ("if", "ie", "el"):
            if "\\{" in rest and "\\}" not in rest:
                self._skip_until = r".*\\}"
        elif name in ("SH", "SS"):
            self.end_block(HEADING)
            if arguments:
                self.add(" ".join(arguments))
        elif name in ("TP", "TQ"):
            self.end_block(TAG)
        elif name == "IP":
            self.end_block(TAG if arguments[:1] and arguments[0].strip() else TEXT)
            if self._kind == TAG:
                self.add(arguments[0])
        elif name in _BREAK:
            self.end_block()
        elif name in _SPACED_FONT and arguments:
            self.add(" ".join(arguments))
        elif name in _JOINED_FONT and arguments:
            self.add("".join(arguments))
        elif name in ("UE", "ME") and arguments and self._parts:
            self._parts[-1] += arguments[0]


def blocks(page: str) -> list[Block]:
    page = page.replace("\\\n", "")
    if re.search(r"^\.Dd\b", page, re.MULTILINE):
        return []
    reader = _Reader()
    for line in page.splitlines():
        reader.line(line)
    reader.end_block()
    return reader.blocks
