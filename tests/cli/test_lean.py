"""What commands do not import, and that what they left out is there all the same."""

import json
import subprocess
import sys

import pytest

from kalmanclip import KalmanCLIP
from kalmanclip.cli.lean import _is_plain, model_of

COMMAND = """
import sys
from kalmanclip.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


def run(script, *words):
    done = subprocess.run([sys.executable, "-c", script, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def adapter(tiny, shapes, tmp_path_factory):
    clf = KalmanCLIP(tiny, prior_std=0.15, options={"crops": 0}).fit(shapes)
    return clf.save(tmp_path_factory.mktemp("lean") / "shapes.adapter")


def test_predict_imports_no_library_that_it_does_not_use(adapter, shapes):
    heavy = ["timm", "transformers", "torch._dynamo", "sklearn", "pandas", "scipy.stats", "matplotlib"]
    script = f"{COMMAND}\nprint('imported:', [name for name in {heavy} if name in sys.modules])"
    said = run(script, "predict", adapter, shapes / "circle" / "0.png", "--json")
    assert said.endswith("imported: []\n")


def test_fit_imports_no_compiler(shapes, tmp_path):
    heavy = ["timm", "transformers", "torch._dynamo"]
    script = f"{COMMAND}\nprint('imported:', [name for name in {heavy} if name in sys.modules])"
    options = tmp_path / "options.json"
    options.write_text('{"crops": 0}')
    assert run(script, "fit", shapes, "-o", tmp_path / "a", "--config", options).endswith("imported: []\n")


def test_predict_says_what_the_estimator_says(adapter, shapes):
    files = sorted(map(str, shapes.rglob("*.png")))
    rows = json.loads(run(COMMAND, "predict", adapter, *files, "--json"))
    full = KalmanCLIP.load(adapter).predict_full(files, how="mean")
    assert [row["ood_score"] for row in rows] == pytest.approx(full.ood_score.tolist(), abs=1e-5)
    best = full.at_mean.max(dim=1).values.tolist()
    assert [row["top"][0]["probability"] for row in rows] == pytest.approx(best, abs=1e-5)


def test_what_was_left_out_can_be_imported_and_called():
    run(
        "import sys\n"
        "from kalmanclip.cli import lean\n"
        "lean.own_process()\n"
        "lean.import_models('tiny')\n"
        "assert not {'timm', 'transformers', 'torch._dynamo', 'torch._dynamo.utils'} & set(sys.modules)\n"
        "assert sys.modules['torchvision.ops.roi_align'].is_compile_supported('cpu') in (True, False)\n"
        "import timm, torch._dynamo.utils\n"
        "assert torch._dynamo.utils.__file__ and timm.create_model\n"
    )


def test_another_name_of_the_compiler_is_the_real_one():
    run(
        "import sys\n"
        "from kalmanclip.cli import lean\n"
        "with lean._left_out():\n"
        "    from torch._dynamo.utils import counters\n"
        "import torch._dynamo.utils\n"
        "assert counters is torch._dynamo.utils.counters\n"
    )


@pytest.mark.parametrize("model", ["vit_medium_patch16_gap_256:random", "openai/clip-vit-base-patch32", None])
def test_models_of_other_libraries_have_them(model):
    run(
        "from importlib.util import find_spec\n"
        "from kalmanclip.cli import lean\n"
        "lean.own_process()\n"
        f"lean.import_models({model!r})\n"
        "from open_clip import hf_model, timm_model\n"
        "assert timm_model.timm is not None\n"
        "assert hf_model.transformers is not None or find_spec('transformers') is None\n"
    )


def test_python_programs_get_the_libraries_as_they_are():
    run(
        "import sys\n"
        "from kalmanclip.cli import lean\n"
        "lean.import_models('tiny')\n"
        "assert 'open_clip' not in sys.modules\n"
    )


@pytest.mark.parametrize("name", ["tiny", "ViT-B-16:openai", "RN50:openai", "ViT-B/32:random"])
def test_plain_models(name):
    assert _is_plain(name)


@pytest.mark.parametrize(
    "name",
    [
        "MobileCLIP-S1:datacompdr",
        "ViT-B-16-SigLIP:webli",
        "roberta-ViT-B-32:laion2b_s12b_b32k",
        "coca_ViT-B-32:laion2b_s13b_b90k",
        "hf-hub:org/repo",
        "local-dir:folder",
        "org/model",
        "ViT-B-16",
        "no such model:openai",
        "",
    ],
)
def test_models_that_are_not_known_to_be_plain(name):
    assert not _is_plain(name)


def test_the_model_of_an_adapter(adapter, tmp_path):
    assert model_of(adapter) == "tiny"
    assert model_of(tmp_path / "missing") is None
    for text in ("[]", "{", '{"backbone": 1}'):
        (tmp_path / "adapter.json").write_text(text)
        assert model_of(tmp_path) is None
