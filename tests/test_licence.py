"""The licence of the weights goes wherever the weights go: into the wheel, beside exported models, onto the screen."""

import shutil
from pathlib import Path

import pytest
from tests.cli.invoke import call

from kalmanclip import KalmanCLIP
from kalmanclip.cli.arguments import refuse_foreign
from kalmanclip.cli.export import OURS, Format
from kalmanclip.encoders.backbone import licence_files, licence_of

ROOT = Path(__file__).parents[1]
NAME = "LicenseRef-tiny-research"


@pytest.fixture(scope="module")
def project():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_wheel_says_all_licences_and_holds_their_texts(project):
    metadata = project["project"]
    assert metadata["license"].split(" AND ") == ["Apache-2.0", NAME, "MIT"]
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in metadata["license-files"]}
    assert {"LICENSE", "NOTICE"} <= texts.keys()
    card = {name for name in texts if name.startswith("src/kalmanclip/models/tiny/")}
    assert {Path(name).name for name in card} == {"LICENSE.txt", "README.md"}
    assert all(NAME in text for name, text in texts.items() if name in card or name == "NOTICE")
    pictures = ROOT / "src/kalmanclip/data/eurosat/LICENSE.txt"
    assert texts[str(pictures.relative_to(ROOT))].startswith("MIT License")
    assert {file.suffix for file in pictures.parent.rglob("*.*")} == {".jpg", ".md", ".txt"}
    (backend,) = project["build-system"]["requires"]
    assert backend == "hatchling>=1.27"  # older ones know neither expressions nor lists of files


def test_what_is_loaded_needs_versions_that_do_not_execute_it(project):
    floors = dict(requirement.split(">=") for requirement in project["project"]["dependencies"])
    assert tuple(map(int, floors["torch"].split("."))) >= (2, 6)  # CVE-2025-32434: weights_only did not hold
    assert tuple(map(int, floors["pillow"].split("."))) >= (12, 3)
    assert tuple(map(int, floors["filelock"].split("."))) >= (3, 20, 3)  # CVE-2025-68146, CVE-2026-22701: links


def test_the_notice_names_files_that_are_there():
    named = [word.strip("-:,.") for word in (ROOT / "NOTICE").read_text(encoding="utf-8").split() if "/" in word]
    paths = [word for word in named if word.startswith(("src/", "docs/"))]
    assert len(paths) >= 3
    assert all((ROOT / path).exists() for path in paths), paths


def test_fit_names_the_model_and_its_licence_and_export_takes_it_along(tiny, shapes, tmp_path):
    said = call("fit", shapes, "-o", tmp_path / "a", "--prior-std", 0.1, "--crops", 0).stdout
    assert f"tiny (weights: research use only, {NAME})" in said
    assert "LICENSE.txt" in call("export", tmp_path / "a", "-o", tmp_path / "model").stdout
    refuse_foreign(tmp_path / "model", ours=OURS[Format.open_clip])  # the next export may replace it
    (ours,) = licence_files("tiny")
    assert (tmp_path / "model" / "LICENSE.txt").read_bytes() == ours.read_bytes()
    assert NAME in ours.read_text(encoding="utf-8")
    again = KalmanCLIP(f"local-dir:{tmp_path / 'model'}", prior_std=0.1, options={"crops": 0}).fit(shapes)
    again.export(tmp_path / "again")  # a copy of a copy
    assert (tmp_path / "again" / "LICENSE.txt").read_bytes() == ours.read_bytes()


def test_other_weights_have_licences_of_their_own(tmp_path):
    assert "see where they come from" in licence_of("ViT-B-16:openai")
    assert licence_files("ViT-B-16:openai") == licence_files(f"local-dir:{tmp_path / 'missing'}") == []
    shutil.copy(ROOT / "LICENSE", tmp_path)
    assert licence_of(f"local-dir:{tmp_path}") == "LICENSE beside them"
