"""Plug-ins of all four kinds: by entry point, by address, registered; never because a file says so."""

import json
import re
import shutil
import sys

import pytest
import torch
from benchmarks.table import ROOT

from kalmanclip import KalmanCLIP, plugins
from kalmanclip.data import DATA_SETS, data_name, find_dataset, read_data
from kalmanclip.data import catalog as datasets
from kalmanclip.errors import AdapterError, ConfigError
from kalmanclip.experiments.spec import find_variants, method_options
from kalmanclip.filtering import belief_structure, make_belief
from kalmanclip.filtering.beliefs import base as beliefs
from kalmanclip.methods import METHODS, KalmanConfig, find_method, make_method, method_name, preset
from kalmanclip.methods import PLUGINS as METHOD_PLUGINS
from kalmanclip.observation import PLUGINS as OBSERVATION_PLUGINS
from kalmanclip.observation import make_likelihood

PAGE = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
KINDS = (METHOD_PLUGINS, datasets.PLUGINS, OBSERVATION_PLUGINS, beliefs.PLUGINS)


@pytest.fixture
def garden(monkeypatch, tmp_path, shapes):
    """The module of the page, in a folder of its own that Python looks into, and the data that it names."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "packages"
    place.mkdir()
    source = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)[0]
    (place / "garden.py").write_text(source)
    shutil.copytree(shapes, tmp_path / "garden", ignore=shutil.ignore_patterns("triangle"))
    monkeypatch.syspath_prepend(str(place))
    for kind in KINDS:
        monkeypatch.setattr(kind, "_known", {})
    monkeypatch.setattr(beliefs, "_KINDS", dict(beliefs._KINDS))
    yield place
    sys.modules.pop("garden", None)


@pytest.fixture
def installed(garden):
    """The same, with the entry points of the page."""
    declared = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)[0]
    text = re.sub(r'\[project\.entry-points\."(.*?)"\]', r"[\1]", declared).replace('"', "")
    folder = garden / "garden-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: garden\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(text + "\n[kalmanclip.methods.none]\n")
    return garden


def test_the_page_runs(garden, tiny):
    names = {"torch": torch, "Diagonal": None}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)[1:]:
        (garden.parent / "x").mkdir(exist_ok=True)
        exec(block, names)
    assert names["splits"].class_names == ["circle", "square"]
    assert names["clf"].config_.observation == "garden:Softened"
    assert type(names["belief"]).__name__ == "Forgetful"
    assert type(make_method("mine", tiny)) is type(names["means"])


def test_names_that_a_package_declares(installed, tiny):
    assert "garden" not in sys.modules
    assert METHOD_PLUGINS.names() == ["means"]
    means = find_method("means")
    import garden

    assert means is garden.Means
    assert method_name(garden.MeansConfig()) == "means"
    assert find_dataset("Plants") is garden.GARDEN
    assert data_name("plants") == data_name("garden:GARDEN") == "garden"
    assert type(make_likelihood("softened")) is garden.Softened
    assert belief_structure("forgetful_floor") is garden.Forgetful
    assert make_belief("forgetful_floor", torch.zeros(2), 1.0).marginal_variance().tolist() == [1.0, 1.0]
    (variant,) = find_variants(["means strong"], {"means strong": {"method": "means", "weight": 0.9}})
    assert method_options(variant.method, variant.options, 0) == {"weight": 0.9}
    assert preset("means") == garden.MeansConfig()
    with pytest.raises(ConfigError, match="has no belief"):
        KalmanCLIP(tiny, preset="means").set_classes(["a", "b"])


def test_a_method_learns_and_scores(garden, tiny, shapes):
    from kalmanclip.data import FewShotTask, read_folder

    images = read_folder(shapes)
    method = make_method("garden:Means", tiny)
    method.fit(FewShotTask(images))
    assert (method.logits(images.sources).argmax(dim=1) == torch.tensor(images.labels)).float().mean() > 0.9


def test_our_names_win(garden, tiny):
    METHOD_PLUGINS.register("gda", find_method("garden:Means"))
    assert find_method("gda") is METHODS["gda"]
    (garden.parent / "eurosat").mkdir()
    assert find_dataset("eurosat") is DATA_SETS["eurosat"]


@pytest.mark.parametrize(
    ("get", "name", "wrong"),
    [
        (find_method, "gdaa", "Unknown method 'gdaa' .did you mean 'gda'.*module:object"),
        (find_method, "nowhere:Means", "'nowhere:Means' could not be imported: ModuleNotFoundError.*PYTHONPATH"),
        (find_method, "garden:Meens", "module garden has no 'Meens'"),
        (find_method, "garden:GARDEN", "'garden:GARDEN' is no method: it is not a class with fit"),
        (find_method, "garden:Softened", "is no method"),
        (find_method, "fractions:Fraction", "is no method"),
        (find_dataset, "garden:Means", "is no data set: it is not a kalmanclip.data.DataSet"),
        (make_likelihood, "garden:Forgetful", "is no observation: it is not a subclass of kalmanclip.observation"),
        (belief_structure, "garden:Softened", "is no covariance structure"),
        (belief_structure, "bandedd", "Unknown covariance structure"),
        (find_method, "broken:Thing", "'broken:Thing' could not be imported: ZeroDivisionError"),
    ],
)
def test_what_is_wrong_is_said(garden, get, name, wrong):
    (garden / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=wrong):
        get(name)


def test_a_broken_entry_point_names_its_package(installed, capsys):
    (installed / "garden.py").write_text("raise OSError('no seeds')")
    with pytest.raises(ConfigError, match=r"'means' could not be loaded from garden:Means: OSError: no seeds"):
        find_method("means")


def test_folders_are_no_addresses(garden, monkeypatch, tmp_path, shapes):
    shutil.copytree(shapes, tmp_path / "train")
    shutil.copytree(shapes, tmp_path / "held")
    splits = read_data("train:held")
    assert len(splits.train) == len(splits.test) == 15
    assert "train" not in sys.modules


@pytest.fixture
def adapter(garden, tiny, split_shapes, tmp_path):
    """An adapter that names an observation and a structure by their addresses, and a way to change its description."""
    options = {"observation": "garden:Softened", "belief": "garden:Forgetful", "low_rank.rank": 1}
    clf = KalmanCLIP(tiny, preset="head", epochs=1, options=options).fit(split_shapes / "train")
    return clf.save(tmp_path / "adapter")


def forget():
    """What a new process does not know."""
    for kind in KINDS:
        kind._known.clear()
    sys.modules.pop("garden", None)


def test_an_adapter_imports_nothing(adapter, tiny):
    forget()
    with pytest.raises(AdapterError, match=r"named in a file.*`import garden` first"):
        KalmanCLIP.load(adapter, tiny)
    assert "garden" not in sys.modules
    import garden

    clf = KalmanCLIP.load(adapter, tiny)
    assert type(clf.method_.filter.belief) is garden.Forgetful
    assert clf.set_params(epochs=1).partial_fit  # the names are known now


@pytest.mark.parametrize("name", ["garden:Trap", "garden:lazy"])
def test_nothing_runs_for_the_name_of_a_method_in_a_file(adapter, tiny, garden, name):
    forget()
    (garden / "garden.py").write_text("def __getattr__(name):\n    raise SystemExit('it ran')\n")
    path = adapter / "adapter.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"method": name}))
    for _ in range(2):
        with pytest.raises(AdapterError, match="named in a file"):
            KalmanCLIP.load(adapter, tiny)
        import garden as imported  # second time: even then no __getattr__ of it is called

        assert imported.__name__ == "garden"


def test_registered_names_and_the_scope_of_a_file(garden):
    with plugins.installed_only(), pytest.raises(ConfigError, match="named in a file"):
        KalmanConfig(observation="garden:Softened")
    assert KalmanConfig(observation="garden:Softened").observation == "garden:Softened"
    with plugins.installed_only():  # the user has named it
        assert KalmanConfig(observation="garden:Softened").observation == "garden:Softened"
    with pytest.raises(ConfigError, match="'mine' is no observation"):
        OBSERVATION_PLUGINS.register("mine", object())
