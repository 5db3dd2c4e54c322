"""The norms of a network, by what they do: y = g·x̂ + b, with x̂ the input over its length, its own mean removed or not.

Gain and bias are read by probing, not from parameters, whose names and conventions differ (Gemma stores g − 1): with an
input x of zero mean and root mean square 1, b = (y(x) + y(−x))/2 and g = (y(x) − y(−x))/(2x). A constant input
distinguishes a LayerNorm, which gives b, from an RMSNorm, which gives g + b.

With r = ‖b‖/‖g‖ the norm alone implies a mean cosine: if x̂ has mean 0 over the tokens and the same variance in all
dimensions, then E[y·y'] = ‖b‖² for different tokens, E‖y‖² = ‖g‖² + ‖b‖², and so cos̄ ≈ r²/(1 + r²), exactly so where
all ‖y‖ are equal. What is measured above it does not come from the bias.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anisoscope.capture.sites import Site, find_sites
from anisoscope.errors import ModelError

Kind = Literal["LayerNorm", "RMSNorm"]
_LARGE = 1e3  # probes of this size make the ε of a norm invisible


@dataclass(frozen=True)
class Norm:
    """One norm. `closes` is the site whose vectors it makes (a final norm, or a post-norm block), if it makes any.

    `before` is then the site of the vectors that it reads.
    """

    site: str
    path: str
    kind: Kind
    gain: Tensor  # (d,)
    bias: Tensor  # (d,)
    has_bias: bool = True
    closes: str | None = None
    before: str | None = None
    layer: int | None = None

    @property
    def ratio(self) -> float:
        """‖b‖/‖g‖."""
        return (self.bias.norm() / self.gain.norm()).item()

    @property
    def implied_cosine(self) -> float:
        """The mean cosine that gain and bias alone imply.

        >>> Norm("final_norm", "norm", "LayerNorm", torch.ones(4), torch.full((4,), 0.5)).implied_cosine
        0.2
        """
        return self.ratio**2 / (1 + self.ratio**2)

    def normalised(self, x: Tensor) -> Tensor:
        """x̂ of vectors (n, d), without ε, in float64."""
        x = x.double()
        x = x - x.mean(-1, keepdim=True) if self.kind == "LayerNorm" else x
        return x / x.square().mean(-1, keepdim=True).sqrt().clamp_min(torch.finfo(torch.float64).tiny)

    def apply(self, x: Tensor, *, gain: bool = True, bias: bool = True) -> Tensor:
        """The norm of vectors (n, d), with its gain at 1 or its bias at 0 where asked for."""
        y = self.normalised(x)
        y = y * self.gain if gain else y
        return y + self.bias if bias else y


def find_norms(module: nn.Module) -> tuple[list[Norm], list[Site]]:
    """Every LayerNorm and RMSNorm, in the order of the modules, and the sites to watch.

    A norm that closes a site has the name of that site. Post-norm blocks get a site in addition, `….before_norm`, of
    what enters the norm that they end in.
    """
    sites = find_sites(module)
    closing, order = _closing(module, sites), list(sites)
    norms = []
    for path, part in module.named_modules():
        if not _is_norm(part):
            continue
        gain, bias, kind = probe(part)
        found = Norm(_name(path, sites), path, kind, gain, bias, getattr(part, "bias", None) is not None)
        closed = closing.get(path)
        if closed is not None:
            before = _before(closed, path, order)
            found = replace(found, site=closed.name, closes=closed.name, before=before, layer=closed.layer)
        norms.append(found)
    if not norms:
        raise ModelError("this model has no LayerNorm or RMSNorm", where=type(module).__name__)
    return norms, order


def _before(closed: Site, path: str, order: list[Site]) -> str:
    """The site of what enters the norm that closes a site; a post-norm block gets one, put before it in the order."""
    place = order.index(closed)
    if closed.kind == "norm":
        return order[place - 1].name
    added = replace(closed, name=f"{closed.name}.before_norm", path=path, take="input")
    order.insert(place, added)
    return added.name


def probe(part: nn.Module) -> tuple[Tensor, Tensor, Kind]:
    """Gain, bias and kind of a norm, from its outputs, in float64.

    >>> norm = nn.LayerNorm(6)
    >>> _ = norm.weight.data.fill_(3.0), norm.bias.data.fill_(-1.0)
    >>> gain, bias, kind = probe(norm)
    >>> gain.round(decimals=4).tolist()[:2], bias.round(decimals=4).tolist()[:2], kind
    ([3.0, 3.0], [-1.0, -1.0], 'LayerNorm')
    """
    weight: Any = part.weight
    width = len(weight)
    signs = torch.ones(width, dtype=torch.float64)
    signs[1::2] = -1
    if width % 2:
        signs[-1] = 0.0  # an odd width: the last dimension is read by the second probe
    gain, bias = torch.zeros_like(signs), torch.zeros_like(signs)
    for x in (signs, signs.roll(1)):
        there, back = (_answer(part, sign * _LARGE * x, weight) for sign in (1, -1))
        seen = x != 0
        gain[seen] = ((there - back) / 2)[seen] * x.square().mean().sqrt() / x[seen]
        bias = (there + back) / 2
    constant = _answer(part, torch.full_like(signs, _LARGE), weight)
    centring = bool((constant - bias).norm() <= 1e-2 * gain.norm())
    return gain, bias, "LayerNorm" if centring else "RMSNorm"


@torch.no_grad()
def _answer(part: nn.Module, x: Tensor, weight: Tensor) -> Tensor:
    return part(x.to(weight.device, weight.dtype)[None, None])[0, 0].double().cpu()


def _is_norm(part: nn.Module) -> bool:
    weight = getattr(part, "weight", None)
    named = isinstance(part, nn.LayerNorm) or type(part).__name__.endswith(("LayerNorm", "RMSNorm"))
    over_maps = getattr(part, "data_format", "") == "channels_first"  # ConvNeXt's stem and downsampling
    return named and not over_maps and isinstance(weight, Tensor) and weight.dim() == 1


def _closing(module: nn.Module, sites: list[Site]) -> dict[str, Site]:
    """Path of a norm → the site that it closes: the final norms, or else the last norm of each post-norm block."""
    final = {site.path: site for site in sites if site.kind == "norm"}
    return final or {
        path: site for site in sites if site.kind == "block" and (path := _last_norm(module, site.path)) is not None
    }


def _last_norm(module: nn.Module, block: str) -> str | None:
    """The norm that a block ends in, if the last of its modules that has weights is one (dropout may follow)."""
    inside = module.get_submodule(block).named_modules()
    weighted = [(path, part) for path, part in inside if list(part.parameters(recurse=False))]
    if not weighted or not _is_norm(weighted[-1][1]):
        return None
    return f"{block}.{weighted[-1][0]}"


def _name(path: str, sites: list[Site]) -> str:
    """The site of the block and the norm's own path in it, or its path."""
    for site in sites:
        if site.kind == "block" and path.startswith(f"{site.path}."):
            return f"{site.name}.{path.removeprefix(f'{site.path}.')}"
    return path
