"""Device names as NVML, GPU feature discovery, Slurm and people write them.

    NVIDIA A100-SXM4-40GB    Tesla V100-SXM2-32GB    NVIDIA H100 80GB HBM3    h100
    NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED    a100_3g.20gb    NVIDIA TITAN X (Pascal)

Every name has a family, known to this package or not: inventory must file any GPU under something.
Whether MIG can split it is another question, and `find_board` answers that one.
"""

import re
from dataclasses import dataclass
from typing import Final

from apportion.errors import InvalidInputError
from apportion.geometry.profile_names import ProfileName, parse_profile

_LONGEST: Final = 128
_SHARED: Final = re.compile(r"[-_ ]shared$", re.IGNORECASE)
_MIG: Final = re.compile(
    r"(?P<product>.+?)[-_ ](?:mig[-_ ])?(?P<profile>(?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb\S*)",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"[^\s_/,-]+")
_MEMORY: Final = re.compile(r"[0-9]{1,4}G(?:i?B)?", re.IGNORECASE)
_FORM: Final = re.compile(r"SXM[0-9]?|PCI-?E|NVL|OAM|FHHL|DGXS", re.IGNORECASE)
_HBM: Final = re.compile(r"HBM[0-9]?[A-Z]?", re.IGNORECASE)
_DATA_CENTRE: Final = re.compile(r"[A-Z]{1,2}[0-9]{1,3}[A-Z]?|PG[0-9]{3}", re.IGNORECASE)
_MAKERS: Final = frozenset({"nvidia", "tesla", "geforce", "hgx", "dgx"})
_EDITIONS: Final = frozenset(
    {"blackwell", "server", "workstation", "max", "q", "edition", "generation", "igpu"}
)
_SPELLING: Final = {"titan": "TITAN", "rtx": "RTX", "gtx": "GTX", "pro": "PRO", "ada": "Ada"}

# NVML names these boards by the memory of the CPU beside the GPU: 480 GB of it, 96 GB on the GPU.
_HOST_MEMORY: Final = {"GH200": frozenset({"120gb", "240gb", "480gb"})}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceName:
    """A device name in its parts.

    ``product`` is the whole name as it came, without a MIG profile or `SHARED` behind it.
    ``family`` is what pools and meters key on: `H100`, `V100`, `RTX PRO 6000`. ``form`` (`SXM4`,
    `PCIe`, `NVL`) and ``memory_gb`` (of the GPU, as labelled) are None where the name does not say.
    ``words`` are the other words of the product in lower case, for comparing.
    """

    product: str
    family: str
    form: str | None
    memory_gb: int | None
    mig: ProfileName | None
    shared: bool
    words: tuple[str, ...]


def parse_device_name(text: str, *, field: str = "gpu_model") -> DeviceName:
    """Read a device name; InvalidInputError for an empty, over-long or unprintable one."""
    product = text.strip()
    if not product or len(product) > _LONGEST or not product.isprintable():
        raise InvalidInputError(
            "not a device name",
            field=field,
            given=text[:_LONGEST],
            allowed=f"1 to {_LONGEST} printable characters, such as NVIDIA H100 80GB HBM3",
        )
    unshared = _SHARED.sub("", product)
    shared, product = unshared != product, unshared
    mig = None
    if match := _MIG.fullmatch(product):
        product, mig = match["product"], parse_profile(match["profile"], field=field)
    words: list[str] = _WORD.findall(product)
    family = _family(words) or product
    memory = _memory_word(words, family)
    return DeviceName(
        product=product,
        family=family,
        form=next((_form(word) for word in words if _FORM.fullmatch(word)), None),
        memory_gb=int(memory.upper().partition("G")[0]) if memory else None,
        mig=mig,
        shared=shared,
        words=tuple(word.lower() for word in words if word is not memory),
    )


def _form(word: str) -> str:
    return "PCIe" if word.lower().startswith("pci") else word.upper()


def _memory_word(words: list[str], family: str) -> str | None:
    host = _HOST_MEMORY.get(family, frozenset())
    return next((w for w in words if _MEMORY.fullmatch(w) and w.lower() not in host), None)


def _family(words: list[str]) -> str:
    """Return the data-centre model that the name starts with, else all that is left of the name.

    A name of unknown kind keeps its words: `TITAN X (Pascal)` and `TITAN X` are different cards.
    """
    named = [word for word in words if word.lower() not in _MAKERS]
    if named and _DATA_CENTRE.fullmatch(named[0]):
        return named[0].upper()
    kept = [
        _spelled(word)
        for word in named
        if word.lower() not in _EDITIONS
        and not _MEMORY.fullmatch(word)
        and not _FORM.fullmatch(word)
        and not _HBM.fullmatch(word)
    ]
    return " ".join(kept)


def _spelled(word: str) -> str:
    """Give a word that Slurm or a person wrote in lower case the spelling that NVML uses."""
    if not word.islower():
        return word
    if word in _SPELLING:
        return _SPELLING[word]
    return word.upper() if any(c.isdigit() for c in word) else word.title()
