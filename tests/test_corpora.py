"""The corpora builder on tiny samples: no network, no packages, no jax."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.corpora import build, ddtp, heldout, lohelp, manpages, roff
from experiments.corpora.pairs import Pair, align, is_acceptable, sentences, words

ROOT = Path(__file__).resolve().parent.parent

HELP_PAGE = """<p id="menu1">Module list of the page</p><div id="DisplayArea">
<h1 id="hd_id1">{title}</h1>
<p id="par_id2" class="paragraph">{text}</p>
<p id="par_id3" class="bascode">Print "code"</p>
<p id="par_id{last}">Last one</p></div><div id="SearchFrame"></div><p id="par_id9">Footer</p>"""

MAN_PAGE = r""".\" a comment
.TH LS 1 "2022" "GNU coreutils"
.de URL
\fI\\$2\fP
..
.SH {name}
ls \- {purpose}
.SH OPTIONS
.TP
\fB\-a\fR, \fB\-\-all\fR
{all_files}
.nf
ls \-a | wc
.fi
.PP
{see}
.BR dircolors (1)
"""

DESCRIPTIONS = """Package: {package}
Description-md5: {checksum}
Description-{language}: {synopsis}
 {text}
 .
 {list_head}
  * {first}
  * {second}
    {second_rest}

"""


def english_man_page():
    return MAN_PAGE.format(
        name="NAME",
        purpose="list directory contents",
        all_files="do not ignore entries that\nstart with a dot",
        see="The colours are described in",
    )


def german_man_page(extra=""):
    page = MAN_PAGE.format(
        name="BEZEICHNUNG",
        purpose="Verzeichnisinhalte auflisten",
        all_files="Einträge nicht ignorieren,\ndie mit einem Punkt beginnen",
        see="Die Farben beschreibt",
    )
    return page + extra + ".SH ÜBERSETZUNG\nDie Übersetzung stammt von vielen.\n"


def texts(pairs):
    return [pair[:2] for pair in pairs]


def make_pairs(source, count, tail):
    return [
        Pair(
            f"{tail} alpha{letter} beta{letter} gamma{letter}",
            f"{tail}lich eins{letter} zwei{letter} drei{letter}",
            source,
            f"page-{letter}",
        )
        for letter in (chr(ord("a") + n // 26) + chr(ord("a") + n % 26) for n in range(count))
    ]


# Pairs


def test_words_ignore_case_punctuation_and_digits():
    assert words("Press Ctrl+7, (now)!") == words("press ctrl+1 now")


def test_short_long_untranslated_and_ill_matched_pairs_are_not_acceptable():
    assert is_acceptable("Opens the file dialog.", "Öffnet den Dateidialog.")
    assert not is_acceptable("Two words", "Zwei Wörter")
    assert not is_acceptable("word " * 121, "Wort " * 121)
    assert not is_acceptable("The same old text", "The same old Text")
    assert not is_acceptable("Opens the file dialog.", "Öffnet den Dateidialog. " * 6)
    assert not is_acceptable("+ - * /", "eins zwei drei")


def test_a_full_stop_after_an_abbreviation_ends_no_sentence():
    assert len(sentences("See e.g. Paris. Then go on.")) == 2
    assert len(sentences("Siehe z.B. Paris. Dann weiter.")) == 2


def test_paragraphs_with_as_many_sentences_are_paired_by_sentence():
    assert list(align("Go on. Stop\there.", "Weiter. Hier halten.")) == [
        ("Go on.", "Weiter."),
        ("Stop here.", "Hier halten."),
    ]
    assert list(align("Go on. Stop.", "Weiter, dann halt.")) == [
        ("Go on. Stop.", "Weiter, dann halt.")
    ]


# Extractors


def test_help_paragraphs_are_paired_by_id_without_menus_code_and_footer():
    english = HELP_PAGE.format(title="Tables &amp; cells", text="Opens <b>the</b>\n table.", last=4)
    german = HELP_PAGE.format(title="Tabellen", text="Öffnet die<br>Tabelle.", last=5)
    pairs = list(lohelp.page_pairs(english, german, "text/a.html"))
    assert texts(pairs) == [
        ("Tables & cells", "Tabellen"),
        ("Opens the table.", "Öffnet die Tabelle."),
    ]
    assert pairs[0][2:] == ("lohelp", "text/a.html")


def test_roff_markup_becomes_plain_text():
    assert roff.plain(r"\fB\-\-all\fR\&: \(lqx\(rq \e\~y \[u00E4]\s-2\u[1]\d\s+2") == (
        "--all: “x” \\ y ä"
    )
    kinds = [block.kind for block in roff.blocks(english_man_page())]
    assert kinds == ["heading", "text", "heading", "tag", "text", "code", "text"]
    assert roff.blocks(".Dd June 1\n.Sh NAME\ntext\n") == []


def test_man_pages_of_the_same_structure_are_paired_without_code():
    pairs = list(manpages.page_pairs(english_man_page(), german_man_page(), "ls.1"))
    assert (
        "do not ignore entries that start with a dot",
        "Einträge nicht ignorieren, die mit einem Punkt beginnen",
    ) in texts(pairs)
    assert ("ls - list directory contents", "ls - Verzeichnisinhalte auflisten") in texts(pairs)
    assert not any("wc" in pair.english or "Übersetzung" in pair.german for pair in pairs)
    assert {pair[2:] for pair in pairs} == {("manpages", "ls.1")}


def test_a_man_page_section_with_a_paragraph_more_is_left_out():
    german = german_man_page(".PP\nEin Absatz mehr.\n")
    pairs = texts(manpages.page_pairs(english_man_page(), german, "ls.1"))
    assert ("ls - list directory contents", "ls - Verzeichnisinhalte auflisten") in pairs
    assert not any("ignore" in english for english, _ in pairs)


def description(language, **changes):
    fields = {
        "package": "worms",
        "checksum": "1f",
        "language": language,
        "synopsis": "game of worms" if language == "en" else "Spiel mit Würmern",
        "text": "It is fun." if language == "en" else "Es macht Spaß.",
        "list_head": "It has:" if language == "en" else "Es hat:",
        "first": "many colours" if language == "en" else "viele Farben",
        "second": "and lots" if language == "en" else "und jede Menge",
        "second_rest": "of levels" if language == "en" else "Ebenen",
    }
    return next(ddtp.descriptions(DESCRIPTIONS.format(**fields | changes).splitlines(True)))


def test_package_descriptions_are_paired_by_paragraph_and_list_item():
    package, checksum, english = description("en")
    assert (package, checksum) == ("worms", "1f")
    pairs = list(ddtp.description_pairs(english, description("de")[2], package))
    assert texts(pairs) == [
        ("game of worms", "Spiel mit Würmern"),
        ("It is fun.", "Es macht Spaß."),
        ("It has:", "Es hat:"),
        ("* many colours", "* viele Farben"),
        ("* and lots of levels", "* und jede Menge Ebenen"),
    ]
    assert pairs[0][2:] == ("ddtp", "worms")


def test_of_descriptions_laid_out_differently_only_the_synopsis_is_paired():
    german = description("de", text="Es macht\n .\n Spaß.")[2]
    assert texts(ddtp.description_pairs(description("en")[2], german, "worms")) == [
        ("game of worms", "Spiel mit Würmern")
    ]


# Holding out


def test_the_same_documents_are_held_out_in_every_build():
    pairs = make_pairs("lohelp", 200, "The")
    first, second = heldout.split(pairs, 20), heldout.split(pairs[::-1], 20)
    assert first == second
    assert 20 <= len({pair.document for pair in first.heldout}) <= 60
    assert len(first.train) + len(first.heldout) == 200


@pytest.mark.parametrize("side", ["english", "german"])
def test_pairs_of_a_held_out_document_never_reach_training(side):
    pairs = make_pairs("lohelp", 200, "The")
    held = [p for p in pairs if heldout.is_held_out(p.source, p.document, 20)]
    kept = next(p for p in pairs if p not in held)
    # The held-out texts, in other case and with another translation, stand in a training document.
    fresh = {"english": "Quite another English text", "german": "Ein ganz anderer deutscher Text"}
    copies = [kept._replace(**fresh | {side: getattr(p, side).upper() + "!"}) for p in held]
    result = heldout.split(pairs + copies, 20)
    assert not set(copies) & set(result.train)
    assert not {p.document for p in held} & {p.document for p in result.train}
    assert result.heldout == [], "they occur on a training document as well"


def test_a_sentence_within_a_held_out_paragraph_never_reaches_training():
    pairs = make_pairs("lohelp", 200, "The")
    held = next(p for p in pairs if heldout.is_held_out(p.source, p.document, 20))
    kept = next(p for p in pairs if not heldout.is_held_out(p.source, p.document, 20))
    paragraph = held._replace(english=f"Some start. {kept.english} Some end.")
    result = heldout.split([*pairs, paragraph], 20)
    assert kept not in result.train
    assert paragraph in result.heldout


def test_a_near_twin_of_a_training_text_is_not_held_out():
    pairs = make_pairs("lohelp", 200, "The")
    held = next(p for p in pairs if heldout.is_held_out(p.source, p.document, 20))
    kept = next(p for p in pairs if not heldout.is_held_out(p.source, p.document, 20))
    long = "one two three four five six seven eight nine ten eleven twelve"
    german = "Ein Satz, der sonst nirgends steht, lang genug für seinen englischen Zwilling"
    twin = held._replace(english=f"{long} thirteen", german=german)
    other = kept._replace(english=f"{long} fourteen", german="Noch etwas anderes, " + long[::-1])
    result = heldout.split([*pairs, twin, other], 20)
    assert other in result.train
    assert twin not in result.heldout


def test_excluded_texts_never_reach_training():
    pairs = make_pairs("lohelp", 200, "The")
    kept = [p for p in pairs if not heldout.is_held_out(p.source, p.document, 20)]
    whole, part = kept[0].german.upper(), " ".join(kept[1].english.split()[1:])
    result = heldout.split(pairs, 20, [whole, part, "The", ""])
    assert set(kept) - set(result.train) == {kept[0], kept[1]}


def test_documents_take_turns():
    pairs = [Pair(f"{n}", "", "lohelp", document) for n, document in enumerate("aaab")]
    assert [pair.english for pair in heldout.in_turn(pairs, 3)] == ["0", "3", "1"]
    assert len(heldout.in_turn(pairs, 9)) == 4


def test_what_is_shown_is_libreoffice_help_of_medium_length_only():
    pairs = [
        pair._replace(english=f"{'word ' * n} {pair.english}")
        for source in ("lohelp", "ddtp")
        for n, pair in enumerate(make_pairs(source, 80, "The"))
    ]
    shown = build.pairs_to_show(pairs)
    assert {pair.source for pair in shown} == {"lohelp"}
    assert {len(pair.english.split()) for pair in shown} == set(range(15, 61))
    assert {pair.source for pair in build.pairs_to_score(pairs)} == {"lohelp", "ddtp"}


# The command


def test_the_card_counts_pairs_and_documents_of_each_source():
    result = heldout.split(make_pairs("lohelp", 200, "The"), 20)
    card = build.card(result, build.Counter(lohelp=200), 20)
    held = len(result.heldout)
    assert f"| lohelp | 200 | {200 - held} | {held} | {held} |" in card


def run_builder(*arguments, **environment):
    command = [sys.executable, "-m", "experiments.corpora.build", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def assert_one_line_and_no_traceback(result, remedy):
    assert result.returncode not in (0, None)
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert remedy in result.stderr


def test_without_apt_get_the_builder_says_so_in_one_line(tmp_path):
    result = run_builder(f"--output_dir={tmp_path / 'out'}", PATH=str(tmp_path))
    assert_one_line_and_no_traceback(result, "on a Debian machine")


def test_an_output_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    result = run_builder(f"--output_dir={tmp_path / 'file' / 'out'}", PATH=str(tmp_path))
    assert_one_line_and_no_traceback(result, "--output_dir")


def test_an_unreadable_exclude_file_is_one_line(tmp_path):
    output = f"--output_dir={tmp_path / 'out'}"
    result = run_builder(output, "--exclude", tmp_path / "a", tmp_path / "b", PATH=str(tmp_path))
    assert_one_line_and_no_traceback(result, "--exclude")
