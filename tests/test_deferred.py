"""Libraries that are imported when they are used: stand-ins until then, and what the command line leaves out."""

import importlib
import subprocess
import sys

import pytest
from PIL import Image

from kalmanclip import KalmanCLIP
from kalmanclip.deferred import deferred

BIG = "class Shape: pass\nclass Square(Shape): pass\ndef area(side): return side**2\nvalue = 3\n"
SMALL = """
import big
from big import Shape, area, Square as Base
from big.inside import seven
def is_shape(x: Shape | None): return isinstance(x, Shape)
def build(): return big.Square()
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A library that imports a big one; removed afterwards."""
    (tmp_path / "big").mkdir()
    (tmp_path / "big/__init__.py").write_text(BIG)
    (tmp_path / "big/inside.py").write_text("seven = lambda: 7\n")
    (tmp_path / "small.py").write_text(SMALL)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: importlib.import_module("small")
    for name in ("small", "big", "big.inside"):
        sys.modules.pop(name, None)


def test_what_is_deferred_is_imported_when_it_is_used(small):
    with deferred("big"):
        module = small()
    assert "big" not in sys.modules
    assert not module.is_shape(3)
    assert "big" not in sys.modules, "nothing is an instance of what was never imported"
    assert module.area(3) == 9
    assert "big" in sys.modules
    assert module.seven() == 7
    assert module.is_shape(module.build())
    assert module.big.value == 3


def test_a_class_that_inherits_has_the_real_base(small):
    with deferred("big"):
        module = small()

    class Mine(module.Base):
        pass

    assert Mine.__mro__[1] is sys.modules["big"].Square


def test_other_imports_and_those_before_are_as_ever(small):
    real = importlib.import_module("big")
    with deferred("big", "no_such_library"):
        assert small().big is real
        with pytest.raises(ImportError):
            importlib.import_module("no_such_library")
    assert not [finder for finder in sys.meta_path if type(finder).__module__ == "kalmanclip.deferred"]


def test_a_prediction_imports_neither_compiler_nor_other_kinds_of_models(tmp_path):
    """By module, not by seconds: each of these takes half a second to two seconds of every command."""
    images = [Image.new("RGB", (48, 48), colour) for colour in ("red", "blue")]
    for name, image in zip("ab", images, strict=True):
        image.save(tmp_path / f"{name}.png")
    KalmanCLIP("tiny", options={"crops": 0}).fit(images, ["red", "blue"]).save(tmp_path / "adapter")
    unneeded = ("torch._dynamo", "torch._inductor", "timm", "transformers", "scipy.stats", "pandas", "matplotlib")
    code = (
        "import sys; from kalmanclip.cli import app; app(sys.argv[1:], standalone_mode=False); "
        f"print('imported:', *({set(unneeded)!r} & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "predict", str(tmp_path / "adapter"), str(tmp_path / "a.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1].strip() == "imported:", done.stderr
