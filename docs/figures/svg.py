"""Drawings as SVG text: plots, and boxes with arrows. A drawing is one file for light and dark: its colours are names
that its own style sheet gives values, by what the reader prefers; a page that holds it may give others
(docs/site/static/site.css).
"""

import html
import math

# name: (light, dark). Text on the ground has a contrast of 4.5 at least.
COLOURS = {
    "ground": ("#ffffff", "#131416"),
    "ink": ("#1b1f24", "#e6e8eb"),
    "faint": ("#5a636e", "#a4adb8"),
    "line": ("#d9dee4", "#33383f"),
    "panel": ("#f3f6fa", "#1c2025"),
    "c0": ("#1d5fb4", "#6fb0ff"),
    "c1": ("#b34d05", "#ff9d57"),
    "c2": ("#6b7280", "#9aa3af"),
    "c3": ("#1a7f52", "#4fd39a"),
    "c4": ("#8a3fa8", "#d79af0"),
}


def style() -> str:
    light = ";".join(f"--{name}:{pair[0]}" for name, pair in COLOURS.items())
    dark = ";".join(f"--{name}:{pair[1]}" for name, pair in COLOURS.items())
    marks = "".join(
        f".tower-figure .f-{n}{{fill:var(--{n})}}.tower-figure .s-{n}{{stroke:var(--{n})}}" for n in COLOURS
    )
    return (
        f"<style>.tower-figure{{{light};"
        "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}"
        f"@media(prefers-color-scheme:dark){{.tower-figure{{{dark}}}}}{marks}"
        ".tower-figure .mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace}"
        ".tower-figure .none{fill:none}</style>"
    )


def number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


class Drawing:
    def __init__(self, width: float, height: float, title: str, description: str = ""):
        self.width, self.height, self.title, self.description = width, height, title, description
        self.parts: list[str] = []

    def add(self, text: str) -> None:
        self.parts.append(text)

    def text(self, x, y, text, size=13, colour="ink", anchor="start", weight="normal", mono=False, turn=None):
        classes = f"f-{colour}" + (" mono" if mono else "")
        bold = f' font-weight="{weight}"' if weight != "normal" else ""
        turned = f' transform="rotate({turn} {number(x)} {number(y)})"' if turn else ""
        self.add(
            f'<text x="{number(x)}" y="{number(y)}" class="{classes}" font-size="{size}" text-anchor="{anchor}"'
            f"{bold}{turned}>{html.escape(text)}</text>"
        )

    def line(self, x1, y1, x2, y2, colour="line", width=1.0, dash=""):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.add(
            f'<path class="none s-{colour}" stroke-width="{width}"{dashed} '
            f'd="M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}"/>'
        )

    def path(self, points, colour="c0", width=2.0, closed=False, dash=""):
        d = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points) + ("Z" if closed else "")
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.add(f'<path class="none s-{colour}" stroke-width="{width}" stroke-linejoin="round"{dashed} d="{d}"/>')

    def rect(self, x, y, width, height, colour="panel", border=None, radius=0.0):
        edge = f" s-{border}" if border else ""
        self.add(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
            f'rx="{radius}" class="f-{colour}{edge}"/>'
        )

    def dot(self, x, y, radius=5.0, colour="c0", shape=0):
        if shape == 1:
            self.rect(x - radius * 0.85, y - radius * 0.85, radius * 1.7, radius * 1.7, colour)
        elif shape == 2:
            r = number(radius * 1.15)
            top = f"M{number(x)} {number(y - radius * 1.15)}"
            self.add(f'<path class="f-{colour}" d="{top}l{r} {r}l-{r} {r}l-{r} -{r}Z"/>')
        elif shape == 3:
            r, wide = number(radius * 1.15), number(radius * 2.3)
            top = f"M{number(x)} {number(y - radius * 1.15)}"
            self.add(f'<path class="f-{colour}" d="{top}l{r} {wide}l-{wide} 0Z"/>')
        else:
            self.add(f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" class="f-{colour}"/>')

    def arrow(self, x1, y1, x2, y2, colour="faint", width=1.6, dash=""):
        self.line(x1, y1, x2, y2, colour, width, dash)
        angle = math.atan2(y2 - y1, x2 - x1)
        corners = [(x2, y2)] + [
            (x2 - 8 * math.cos(angle + turn), y2 - 8 * math.sin(angle + turn)) for turn in (0.45, -0.45)
        ]
        d = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in corners) + "Z"
        self.add(f'<path class="f-{colour}" d="{d}"/>')

    def svg(self) -> str:
        about = f"<desc>{html.escape(self.description)}</desc>" if self.description else ""
        size = f"{number(self.width)} {number(self.height)}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="tower-figure" viewBox="0 0 {size}" role="img" '
            f'aria-label="{html.escape(self.title)}"><title>{html.escape(self.title)}</title>{about}{style()}'
            f'<rect width="100%" height="100%" class="f-ground"/>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )


def ticks_of(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two."""
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


class Axes:
    """A panel with axes, at a place of a drawing."""

    def __init__(self, drawing, box, x, y, log_x=False, log_y=False, x_label="", y_label="", title=""):
        self.drawing, self.box = drawing, box
        self.x_range, self.y_range, self.log_x, self.log_y = x, y, log_x, log_y
        left, top, width, height = box
        drawing.text(left, top - 12, title, 14, weight="600")
        for value in self._ticks(x, log_x):
            at = self.x(value)
            drawing.line(at, top, at, top + height)
            drawing.text(at, top + height + 18, self._label(value, log_x), 12, "faint", "middle")
        for value in self._ticks(y, log_y):
            at = self.y(value)
            drawing.line(left, at, left + width, at)
            drawing.text(left - 7, at + 4, self._label(value, log_y), 12, "faint", "end")
        drawing.text(left + width / 2, top + height + 38, x_label, 12.5, "faint", "middle")
        if y_label:
            drawing.text(left - 44, top + height / 2, y_label, 12.5, "faint", "middle", turn=-90)

    @staticmethod
    def _ticks(bounds, log):
        if not log:
            return ticks_of(*bounds)
        powers = list(range(math.ceil(math.log10(bounds[0]) - 1e-9), math.floor(math.log10(bounds[1]) + 1e-9) + 1))
        return [10.0**p for p in powers[:: max(1, len(powers) // 6)]]

    @staticmethod
    def _label(value, log):
        if log:
            power = round(math.log10(value))
            raised = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
            return f"10{raised}" if not -2 <= power <= 3 else f"{value:g}"
        return f"{value:g}"

    def x(self, value):
        left, _, width, _ = self.box
        return left + width * self._part(value, self.x_range, self.log_x)

    def y(self, value):
        _, top, _, height = self.box
        return top + height * (1 - self._part(value, self.y_range, self.log_y))

    @staticmethod
    def _part(value, bounds, log):
        low, high = bounds
        if log:
            return (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return (value - low) / (high - low)

    def line(self, points, colour="c0", width=2.0, dash=""):
        self.drawing.path([(self.x(a), self.y(b)) for a, b in points], colour, width, dash=dash)

    def dots(self, points, colour="c0", radius=4.0, shape=0):
        for a, b in points:
            self.drawing.dot(self.x(a), self.y(b), radius, colour, shape)
