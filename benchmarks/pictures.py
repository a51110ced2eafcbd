"""Plain charts as PNG files, with nothing but numpy: areas, lines, a few words."""

import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

Colour = tuple[int, int, int]

_LETTERS = {
    "0": "757557", "1": "262227", "2": "717477", "3": "717177", "4": "557111", "5": "747177",
    "6": "747577", "7": "711222", "8": "757577", "9": "757177", "A": "257555", "B": "656556",
    "C": "344443", "D": "655556", "E": "746447", "F": "746444", "G": "345553", "H": "557555",
    "I": "722227", "J": "111156", "K": "556655", "L": "444447", "M": "577555", "N": "675555",
    "O": "255552", "P": "656444", "Q": "255563", "R": "656655", "S": "342116", "T": "722222",
    "U": "555557", "V": "555552", "W": "555775", "X": "552255", "Y": "552222", "Z": "712447",
    ".": "000002", "%": "512245", "-": "007000", "/": "112244", ":": "020020", ",": "000024",
}  # fmt: skip
"""Three by six dots each: a digit a row, its bits from left to right."""


class Chart:
    """A picture of some panels, one below the other; all share the horizontal axis."""

    def __init__(self, width: int, panels: int, panel_height: int = 110) -> None:
        self._margin = 14
        self._height = panel_height
        rows = panels * (panel_height + self._margin) + self._margin
        self._dots = np.full((rows, width, 3), 255, np.uint8)

    def write(self, path: Path) -> None:
        """Write the picture as a PNG file."""
        rows, columns, _ = self._dots.shape
        raw = np.zeros((rows, 1 + columns * 3), np.uint8)
        raw[:, 1:] = self._dots.reshape(rows, columns * 3)
        header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
        parts = ((b"IHDR", header), (b"IDAT", zlib.compress(raw.tobytes(), 9)), (b"IEND", b""))
        path.write_bytes(
            b"\x89PNG\r\n\x1a\n"
            + b"".join(
                struct.pack(">I", len(data))
                + kind
                + data
                + struct.pack(">I", zlib.crc32(kind + data))
                for kind, data in parts
            )
        )

    def title(self, panel: int, text: str) -> None:
        """Write a few words above a panel, in capitals."""
        top, _ = self._place(panel)
        self._write(text.upper(), self._margin, top - 10)

    def areas(
        self, panel: int, values: npt.NDArray[np.float64], colours: list[Colour], most: float
    ) -> None:
        """Stack areas: a row of values for each step, a column for each area."""
        top, left = self._place(panel)
        width = self._dots.shape[1] - left - self._margin
        ends = np.concatenate([np.zeros((len(values), 1)), values.cumsum(axis=1)], axis=1)
        for column in range(width):
            row = ends[column * len(values) // width]
            for number, colour in enumerate(colours):
                first, last = (self._row(top, value, most) for value in row[[number + 1, number]])
                self._dots[first:last, left + column] = colour
        self._frame(panel)

    def lines(
        self, panel: int, values: npt.NDArray[np.float64], colours: list[Colour], most: float
    ) -> None:
        """Draw a line for each column of values."""
        top, left = self._place(panel)
        width = self._dots.shape[1] - left - self._margin
        for number, colour in enumerate(colours):
            before = None
            for column in range(width):
                row = self._row(top, values[column * len(values) // width, number], most) - 1
                first, last = sorted((row, row if before is None else before))
                self._dots[max(first, top) : last + 2, left + column] = colour
                before = row
        self._frame(panel)

    def rule(self, panel: int, at: float) -> None:
        """Draw an upright line at this part of the horizontal axis."""
        top, left = self._place(panel)
        column = left + int(at * (self._dots.shape[1] - left - self._margin))
        self._dots[top : top + self._height : 3, column] = 0

    def _place(self, panel: int) -> tuple[int, int]:
        return self._margin + panel * (self._height + self._margin), self._margin

    def _row(self, top: int, value: float, most: float) -> int:
        return top + self._height - int(min(max(value / most, 0.0), 1.0) * self._height)

    def _frame(self, panel: int) -> None:
        top, left = self._place(panel)
        self._dots[top : top + self._height, left - 1] = 120
        self._dots[top + self._height, left:] = 120

    def _write(self, text: str, left: int, top: int) -> None:
        for letter in text:
            for down, bits in enumerate(_LETTERS.get(letter, "000000")):
                for right in range(3):
                    if int(bits) >> (2 - right) & 1:
                        self._dots[top + down, left + right] = 0
            left += 5
