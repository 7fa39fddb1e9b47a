"""Pictures for the two themes of the site, which a visitor may choose against his system.

An SVG that follows the system with `@media (prefers-color-scheme:dark)` comes in, one for light and one for dark go
out.
"""

from __future__ import annotations

_DARK = "@media (prefers-color-scheme:dark){"


def themes(svg: str) -> dict[str, str]:
    """Return the picture by theme, `light` and `dark`; nothing if it looks the same in both."""
    start = svg.find(_DARK)
    if start < 0:
        return {}
    first = start + len(_DARK)
    depth, end = 1, first
    while depth:
        depth += {"{": 1, "}": -1}.get(svg[end], 0)
        end += 1
    rules = svg[first : end - 1]
    return {"light": svg[:start] + svg[end:], "dark": svg[:start] + rules + svg[end:]}
