"""Debian packages and package lists, downloaded into one folder without touching the system.

What is there already is not downloaded again, and apt-get itself goes on with a file of which
it had a part, so an interrupted build is simply started again.
"""

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from experiments.corpora.program import CorpusError


def require_debian() -> None:
    missing = [tool for tool in ("apt-get", "dpkg-deb") if not shutil.which(tool)]
    if missing:
        raise CorpusError(
            f"no {' and no '.join(missing)} here: the corpora come from Debian packages; build"
            " them on a Debian machine or in a Debian container and copy the output folder"
        )


class Packages:
    def __init__(self, folder: Path):
        self._folder = folder
        self._lists = folder / "lists"
        for part in ("lists/partial", "cache/archives/partial", "partial"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def update(self) -> None:
        """Fetches the package lists and both languages' descriptions, once per folder."""
        finished = self._folder / "updated"
        if finished.exists():
            return
        result = self._apt_get("update", "-q")
        if result.returncode or not self.descriptions("en") or not self.descriptions("de"):
            raise CorpusError(
                "apt-get could not fetch the package lists and translated descriptions"
                f" ({_last_line(result)}); check the network and the machine's package sources,"
                " then run again"
            )
        finished.touch()

    def descriptions(self, language: str) -> list[Path]:
        return sorted(self._lists.glob(f"*_i18n_Translation-{language}"))

    def files(self, package: str, prefix: str) -> Iterator[tuple[str, bytes]]:
        """(path, content) of the package's plain files whose path starts with prefix."""
        command = ["dpkg-deb", "--fsys-tarfile", self._fetch(package)]
        content = subprocess.run(command, capture_output=True, check=False)
        if content.returncode:
            raise CorpusError(
                f"the downloaded package {package} is damaged; delete {command[-1]} and run again"
            )
        with tarfile.open(fileobj=io.BytesIO(content.stdout)) as archive:
            for member in archive:
                path = member.name.removeprefix("./")
                if member.isfile() and path.startswith(prefix):
                    yield path, archive.extractfile(member).read()

    def _fetch(self, package: str) -> Path:
        name = f"{package}_*.deb"
        done = next(self._folder.glob(name), None)
        if done:
            return done
        # Downloaded aside and moved when whole, so that half a package is never taken for one.
        result = self._apt_get("download", "-q", package, cwd=self._folder / "partial")
        if result.returncode:
            raise CorpusError(
                f"apt-get could not download {package} ({_last_line(result)}); check the network"
                " and run again, which goes on where this stopped"
            )
        parts = (self._folder / "partial").glob(name)
        part = max(parts, key=lambda path: path.stat().st_mtime)  # others: of older versions
        return part.rename(self._folder / part.name)

    def _apt_get(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
        # Its own lists and cache: no root needed, and the machine's own lists stay as they are.
        settings = {
            "Dir::State::Lists": self._lists.resolve(),
            "Dir::Cache": (self._folder / "cache").resolve(),
            "Acquire::Languages": "en,de",
            "Acquire::GzipIndexes": "false",
            "APT::Sandbox::User": "root",
        }
        options = [part for item in settings.items() for part in ("-o", "{}={}".format(*item))]
        return subprocess.run(
            ["apt-get", *arguments, *options], cwd=cwd, capture_output=True, text=True, check=False
        )


def _last_line(result: subprocess.CompletedProcess) -> str:
    lines = (result.stderr or result.stdout).strip().splitlines()
    return lines[-1].strip() if lines else f"exit status {result.returncode}"
