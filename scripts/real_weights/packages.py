"""Packages of registries as data files: fetched by name, version and sha256, unpacked member by member, not installed.

A download that is there with the right digest is used again, so a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal


@dataclass(frozen=True)
class Package:
    """One file of a registry, its size and the licence that it states."""

    name: str
    version: str
    sha256: str
    megabytes: int
    licence: str
    registry: Literal["pypi", "source", "npm", "debian"] = "pypi"


class Refused(Exception):
    """A package that is not what it was, or holds what it must not."""


def fetch(package: Package, downloads: Path) -> Path:
    """The package's file, downloaded unless it is there already, with the right digest either way."""
    downloads.mkdir(parents=True, exist_ok=True)
    found = there(package, downloads)
    if found is not None:
        return found
    with tempfile.TemporaryDirectory(dir=downloads) as fresh:
        _download(package, Path(fresh))
        for file in Path(fresh).iterdir():
            if _digest(file) == package.sha256:
                return file.rename(downloads / file.name)
    raise Refused(f"{package.name} {package.version}: what was downloaded does not have sha256 {package.sha256}")


def there(package: Package, downloads: Path) -> Path | None:
    """The file of a package that was downloaded before."""
    stem = package.name.lstrip("@").replace("/", "-").partition("-")[0].partition("_")[0]
    for file in downloads.glob(f"{stem}*"):
        if file.is_file() and _digest(file) == package.sha256:
            return file
    return None


def _download(package: Package, folder: Path) -> None:
    command = _command(package, folder)
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Refused(f"{package.name}: {command[0]} is not on this machine") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERR" in line or line.startswith("E:")]
        raise Refused(f"{package.name}: {(lines or ['the download failed'])[0]}")


def _command(package: Package, folder: Path) -> list[str]:
    if package.registry == "debian":
        return ["apt-get", "download", f"{package.name}={package.version}"]
    if package.registry == "npm":
        return ["npm", "pack", "--silent", "--ignore-scripts", f"{package.name}@{package.version}"]
    form = "--no-binary" if package.registry == "source" else "--only-binary"
    wanted = folder / "wanted.txt"  # pip checks the digest before it looks at anything
    wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", form, ":all:"]
    return [*command, "--require-hashes", "-r", str(wanted), "-d", str(folder)]


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- unpacking --------------------------------------------------------------------------------------------------------


def unzip(archive: Path | io.BytesIO, target: Path, *, under: str = "", endings: tuple[str, ...] = ("",)) -> None:
    """Write the members below `under` whose names end so into `target`; refuse any that would land elsewhere."""
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            if member.is_dir() or not member.filename.startswith(under) or not member.filename.endswith(endings):
                continue
            file = inside(target, member.filename.removeprefix(under))
            with opened.open(member) as source, file.open("wb") as stream:
                shutil.copyfileobj(source, stream)


def inside(target: Path, name: str) -> Path:
    """The path of a member in `target`, its folder made; a name that leads out of it is refused."""
    relative = PurePosixPath(name.replace("\\", "/"))
    if relative.is_absolute() or ".." in relative.parts or ":" in name:
        raise Refused(f"a member of the archive leads out of its folder: {name!r}")
    file = target.joinpath(*relative.parts)
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def member(archive: Path, name: str) -> bytes:
    """One member of a zip or tar archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            return opened.read(name)
    with tarfile.open(archive) as packed:
        found = packed.extractfile(name)
        if found is None:
            raise Refused(f"{archive.name} holds no file {name}")
        return found.read()


def members(archive: Path, under: str) -> dict[str, bytes]:
    """All files of a tar archive below a folder, by their names in it."""
    with tarfile.open(archive) as packed:
        found = {one.name.removeprefix(under): packed.extractfile(one) for one in packed if one.name.startswith(under)}
        return {name: stream.read() for name, stream in found.items() if stream is not None}
