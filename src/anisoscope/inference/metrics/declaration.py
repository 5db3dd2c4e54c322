"""What a metric is: its name, how a person reads it, its range, the function that computes it, its isotropic null.

A metric of a cloud names the arrays that its function reads, so that one function gives everything: the value from the
totals, the jackknife from the totals without each group, and the difference of two runs from the same two.

    directions   `reads` names group arrays of `Sums`: "unit" is `Sums.group_unit`, (g, d)
    spectrum     `of(eigenvalues, n)`; `reads` is ("covariance",) or ("second moment",), whichever has the eigenvalues

>>> half = Metric("half", "half", "half of the vectors", "counts", of=lambda n: n / 2, reads=("n",))
>>> half.of(10)
5.0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anisoscope.geometry.nulls.isotropic import NullValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anisoscope.accumulate.sums import Sums


@dataclass(frozen=True)
class Metric:
    """One metric, declared once.

    - `label` for axes and tables, `meaning` in one plain sentence, `group` for the section it is shown in.
    - `low`, `high`: the range of the value, missing where it has no bound; `unit` where it has one (`p` for a p-value).
    - `of`: the function of the sums that `reads` names, over leading axes; missing where a metric needs more.
    - `null`: what isotropy gives at n vectors in d dimensions; missing where a study computes its own.
    - `paired`: whether the difference of two runs over the same sequences can be computed group by group.
    """

    name: str
    label: str
    meaning: str
    group: str
    low: float | None = None
    high: float | None = None
    unit: str = ""
    of: Callable[..., Any] | None = None
    reads: tuple[str, ...] = ()
    null: Callable[[int, int], NullValue | None] | None = None
    paired: bool = False

    def isotropic(self, n: int, d: int) -> float | None:
        """The value of n isotropic vectors in d dimensions, where it is known."""
        known = None if self.null is None else self.null(n, d)
        return None if known is None else known.value

    def groups(self, sums: Sums) -> tuple[NDArray[Any], ...]:
        """The group arrays that `of` takes, for a metric of directions."""
        return tuple(getattr(sums, f"group_{name}") for name in self.reads)

    def described(self) -> dict[str, Any]:
        """What a page or a table needs to show the metric, as plain data."""
        shown = {"group": self.group, "label": self.label, "meaning": self.meaning, "unit": self.unit}
        return shown | {"low": self.low, "high": self.high}


def constant(value: float) -> Callable[[int, int], NullValue]:
    """A null that depends on neither n nor d."""
    return lambda n, d: NullValue(value, None, "exact")
