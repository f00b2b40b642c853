"""Drawing charts as SVG: what all charts of bench/ share. Standard library only."""

import math
from html import escape

# In order of appearance; the second one of each is the lighter part of the same thing. Distinguishable in grey and with
# colour-blind eyes; lines have markers of different forms besides.
COLOURS = [("#4c6a92", "#9db2cf"), ("#c8702a", "#e9b48a"), ("#6b6b6b", "#b9b9b9"),
           ("#2f8f6b", "#93cdb6"), ("#8a4f9e", "#c7a5d3")]
MARKERS = ["circle", "square", "triangle", "diamond", "cross"]
BAR_HEIGHT = 20


class Svg:
    """Parts are drawn in the order of the calls, later ones above. Positions are pixels from the upper left."""

    def __init__(self):
        self.parts = []

    def text(self, x, y, text, size=13, anchor="start", colour="#222", weight="normal"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
                          f'fill="{colour}" font-weight="{weight}">{escape(text)}</text>')

    def bar(self, x, y, width, colour, tip, height=BAR_HEIGHT):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height}" '
                          f'fill="{colour}"><title>{escape(tip)}</title></rect>')

    def line(self, points, colour, width=2, dashed=False):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" fill="none" '
                          f'stroke="{colour}" stroke-width="{width}"{dash}/>')

    def marker(self, x, y, form, colour, tip):
        shapes = {"circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"',
                  "square": f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"',
                  "triangle": f'<polygon points="{x:.1f},{y - 5.5:.1f} {x + 5:.1f},{y + 4:.1f} {x - 5:.1f},{y + 4:.1f}"',
                  "diamond": f'<polygon points="{x:.1f},{y - 6:.1f} {x + 5:.1f},{y:.1f} {x:.1f},{y + 6:.1f} {x - 5:.1f},{y:.1f}"',
                  "cross": f'<path d="M{x - 4:.1f} {y - 4:.1f} l8 8 m0 -8 l-8 8" stroke="{colour}" stroke-width="2.5"'}
        self.parts.append(f'{shapes[form]} fill="{colour}"><title>{escape(tip)}</title></{shapes[form][1:].split()[0]}>')

    def document(self, width, height):
        # A ground of its own, so that it reads the same on light and dark pages.
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
                f'<rect width="{width}" height="{height}" fill="#fdfdfb"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


def ticks(most, about=5):
    """Round numbers from 0 to at least `most`."""
    rough = most / about
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * scale for factor in (1, 2, 2.5, 4, 5, 8, 10) if factor * scale >= rough * 0.999)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]
