"""How a figure is spread."""

import numpy as np
import numpy.typing as npt


def quantiles(values: npt.NDArray[np.int64]) -> dict[str, int]:
    """Return the median and what is beyond it; nothing if there are no values."""
    shares = (0.5, 0.9, 0.99, 0.999, 1.0)
    return {
        f"p{share * 100:g}": int(np.quantile(values, share, method="higher"))
        for share in shares
        if len(values)
    }
