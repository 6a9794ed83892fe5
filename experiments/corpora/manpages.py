"""Manual pages: packages manpages-de and manpages-de-dev with the English pages they translate.

Licence of the text: mixed, that of each translated program; mostly GPL-2+ and GPL-3+, for the
Linux man-pages project's pages also its own free licences.
A document is one manual page (`ls.1`). The German pages were generated from the English ones,
paragraph for paragraph, so sections of the same structure are paired block by block.
"""

import gzip
from collections.abc import Iterator

from experiments.corpora import roff
from experiments.corpora.packages import Packages
from experiments.corpora.pairs import Pair, align

SOURCE = "manpages"
_GERMAN = ("manpages-de", "manpages-de-dev")
_TRANSLATORS_NOTE = roff.Block(roff.HEADING, "ÜBERSETZUNG")  # closes every German page
# The packages whose pages manpages-de translates; those that give few pairs left out.
ENGLISH = """
bsdextrautils bsdutils bzip2 coreutils cpio cron diffutils dosfstools fdisk findutils
gettext grep groff-base grub-common gzip init-system-helpers kbd less libsane-common make
manpages manpages-dev mount mtools mutt nano nfs-common nfs-kernel-server recutils
sane-utils sysstat systemd systemd-boot systemd-container systemd-coredump systemd-homed
systemd-journal-remote systemd-resolved tar texinfo thinkfan udev util-linux
util-linux-extra vorbis-tools wodim
"""


def sections(blocks: list[roff.Block]) -> list[list[roff.Block]]:
    found: list[list[roff.Block]] = [[]]
    for block in blocks:
        if block.kind == roff.HEADING:
            found.append([])
        found[-1].append(block)
    return found


def page_pairs(english_page: str, german_page: str, document: str) -> Iterator[Pair]:
    """Pairs of the sections whose blocks are of the same kinds in the same order."""
    english, german = (sections(roff.blocks(page)) for page in (english_page, german_page))
    if german[-1][:1] == [_TRANSLATORS_NOTE]:
        german.pop()
    if len(english) != len(german):
        return
    for english_blocks, german_blocks in zip(english, german, strict=True):
        if [block.kind for block in english_blocks] == [block.kind for block in german_blocks]:
            for ours, theirs in zip(english_blocks, german_blocks, strict=True):
                if ours.kind != roff.CODE:
                    for pair in align(ours.text, theirs.text):
                        yield Pair(*pair, SOURCE, document)


def pairs(packages: Packages) -> Iterator[Pair]:
    packages.update()
    german = {}
    for package in _GERMAN:
        german.update(_pages(packages, package, "usr/share/man/de/man"))
    for package in ENGLISH.split():
        for document, page in _pages(packages, package, "usr/share/man/man"):
            # Each once: a page that moved between packages may be in two of them.
            translation = german.pop(document, None)
            if translation:
                yield from page_pairs(page, translation, document)


def _pages(packages: Packages, package: str, prefix: str) -> Iterator[tuple[str, str]]:
    for path, content in packages.files(package, prefix):
        if path.endswith(".gz"):
            name = path.rsplit("/", 1)[1].removesuffix(".gz")
            yield name, gzip.decompress(content).decode("utf-8", errors="replace")
