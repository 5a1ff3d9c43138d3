"""The sentence that a missing extra gives."""

import json
import sys

import pytest

from gpcache.errors import MissingExtraError
from gpcache.support.extras import require


def test_an_installed_module_is_returned():
    assert require("json", "any") is json
    assert require("json.decoder", "any") is json.decoder


def test_a_missing_module_names_the_extra():
    with pytest.raises(MissingExtraError) as caught:
        require("absent_package", "heif", purpose="Reading HEIC")
    assert str(caught.value) == (
        "Reading HEIC needs absent_package, which is not installed: pip install 'gpcache[heif]'."
    )


def test_a_missing_submodule_names_its_package():
    with pytest.raises(MissingExtraError, match=r"^This needs absent_package, .*gpcache\[lite\]"):
        require("absent_package.inner.most", "lite")


def test_a_module_that_lacks_its_own_dependency_speaks_for_itself(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import absent_package")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "half_installed", raising=False)
    with pytest.raises(ModuleNotFoundError, match="absent_package") as caught:
        require("half_installed", "heif")
    assert not isinstance(caught.value, MissingExtraError)


def test_a_package_whose_name_only_begins_alike_is_another(tmp_path, monkeypatch):
    (tmp_path / "absent_package_two.py").write_text("import absent_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError) as caught:
        require("absent_package_two", "heif")
    assert not isinstance(caught.value, MissingExtraError)
