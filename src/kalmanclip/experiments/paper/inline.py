"""SVG documents as parts of an HTML page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from kalmanclip.experiments.paper.draw import INK, PAPER

_LEFT_OUT = ("metadata", "style")  # who made it; rules that would hold for the whole page (page.css has them)


def inline_svg(svg: str, prefix: str, label: str) -> str:
    """An SVG document as an element for HTML.

    Several documents in one page must not share ids: a picture would be clipped by its neighbour's frame. The colours
    of `draw` become those of the page, which also decides about the size; it finds the natural width in ``--wide``.

    Args:
        svg: the document.
        prefix: goes before every id in it, and must be unique in the page.
        label: the id of the element that says what it shows.
    """
    root = ElementTree.fromstring(svg)
    for element in list(root.iter()):
        for child in [child for child in element if _local(child.tag) in _LEFT_OUT]:
            element.remove(child)
        element.tag = _local(element.tag)  # HTML knows by <svg> what is inside
        attributes = {_local(name): _rewrite(_local(name), value, prefix) for name, value in element.attrib.items()}
        element.attrib.clear()
        element.attrib.update(attributes)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    wide = root.get("viewBox", "0 0 600 400").split()[2]
    root.attrib.update({"role": "img", "aria-labelledby": label, "style": f"--wide: {float(wide):.0f}px"})
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _rewrite(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return prefix + value
    if name == "href" and value.startswith("#"):
        return f"#{prefix}{value[1:]}"
    value = re.sub(r"url\(#", f"url(#{prefix}", value)
    return value.replace(INK, "currentColor").replace(PAPER, "none")
