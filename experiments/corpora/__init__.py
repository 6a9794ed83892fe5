"""English-German training text from Debian packages, split by document.

`python -m experiments.corpora.build --output_dir=FOLDER` downloads the packages on a Debian
machine and writes FOLDER/train.tsv, FOLDER/heldout.tsv and a short card with the counts. The
text keeps the licence of the package it came from, so what is built is not part of this
repository; each extractor's docstring names the licence.

  lohelp.py     LibreOffice's help pages, paired by paragraph id
  ddtp.py       Debian's package descriptions, paired by checksum
  manpages.py   manual pages, paired by their roff structure (roff.py reads roff)
  pairs.py      what a pair is, which pairs are kept, pairing of sentences
  heldout.py    which documents are held out, and how training is kept clean of them
  packages.py   apt-get downloads that can be resumed
  files.py      text that may be packed, lists of JSON objects, lines written whole
  program.py    how a program of these fails: one line that says what to do

English alone, each a program of its own:

  english.py       passages, texts to restore, summaries, dialogue (passages.py, restore.py)
  descriptions.py  package descriptions to summarise, that a model was not trained on
  news.py          Spec-Bench's articles
"""
