"""Connections, and what fits and extraction compute on the nodes, here in this process."""

import os
import socket
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpcache import DataError, FeatureStore, GPCacheClassifier, GPCacheError
from gpcache.cluster import extraction
from gpcache.cluster.connection import _set_environment, connected, reason_of
from gpcache.cluster.extraction import encoded_on_ray
from gpcache.cluster.fitting import rows_on_ray
from gpcache.encoders import load_encoder
from gpcache.encoders.hugging_face import HuggingFaceEncoder
from gpcache.encoders.lite import LiteEncoder
from gpcache.encoders.open_clip import OpenCLIPEncoder
from gpcache.features.extract import extract
from gpcache.features.store import Item
from gpcache.features.stored_rows import StoredRows
from gpcache.features.stream import encoded
from gpcache.images.augment import Views
from gpcache.images.drawn import draw_pictures
from gpcache.images.records import Record
from gpcache.images.sources import from_iterable, open_source
from gpcache.methods import Explicit
from gpcache.methods.cache import explicit_choice
from gpcache.methods.cache.passes import MomentsPass
from gpcache.methods.cache.row_stream import RowStream

N, CLASSES, WIDTH = 240, 3, 16


# Connections.


@pytest.fixture
def environment(monkeypatch):
    """The environment variables, from which Ray's are missing; restored at the end."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    monkeypatch.setattr(os, "environ", bare)
    return bare


@pytest.fixture
def disconnected(in_process_ray):
    in_process_ray.initialized = False
    return in_process_ray


@pytest.mark.usefixtures("environment")
def test_a_local_cluster_is_started_and_stopped(disconnected):
    with connected(cpus=3) as ray:
        assert ray is disconnected
        options = ray.init_options
        assert (options["address"], options["num_cpus"]) == ("local", 3)
        assert (options["include_dashboard"], options["dashboard_host"]) == (False, "127.0.0.1")
        with connected() as same:  # an earlier connection is used, and stays open
            assert same is ray
        assert ray.initialized
    assert not disconnected.initialized


@pytest.mark.usefixtures("disconnected")
def test_a_cluster_of_the_user_is_joined_if_something_listens_there(environment):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        environment["RAY_ADDRESS"] = address
        with connected() as ray:
            assert ray.init_options["address"] == address
            assert "num_cpus" not in ray.init_options
    for prefix in ("", "ray://"):
        environment["RAY_ADDRESS"] = prefix + address
        told = rf"^No Ray cluster could be joined at RAY_ADDRESS='{prefix}{address}' \([^\n]*$"
        with pytest.raises(GPCacheError, match=told), connected():
            pass


@pytest.mark.usefixtures("environment")
def test_a_cluster_that_does_not_start_is_one_sentence(disconnected, monkeypatch):
    def fail(**_):
        raise RuntimeError("no room\n  on the disk.")

    monkeypatch.setattr(disconnected, "init", fail)
    told = r"^Ray could not be started on this machine: no room on the disk\.$"
    with pytest.raises(GPCacheError, match=told), connected():
        pass


def test_only_a_local_cluster_that_is_not_yet_imported_gets_a_token(environment, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    _set_environment("")
    assert "RAY_AUTH_TOKEN" not in environment
    monkeypatch.delitem(sys.modules, "ray")
    _set_environment("127.0.0.1:6379")
    assert "RAY_AUTH_TOKEN" not in environment
    _set_environment("")
    token = environment["RAY_AUTH_TOKEN"]
    assert (environment["RAY_AUTH_MODE"], len(token)) == ("token", 64)
    assert environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    _set_environment("")
    assert environment["RAY_AUTH_TOKEN"] == token


def test_the_reason_of_an_error_is_its_first_line_or_the_last_of_a_traceback():
    assert reason_of(ValueError("The node died.\nDetails follow.")) == "The node died"
    trace = 'task failed\n  File "worker.py", line 3, in total\nOSError: disk full.\n'
    assert reason_of(ValueError(trace)) == "OSError: disk full"
    assert reason_of(ValueError()) == "ValueError"


# Fits.


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    y = np.arange(N) % CLASSES
    return (rng.normal(size=(CLASSES, WIDTH))[y] + rng.normal(size=(N, WIDTH))).astype("f4"), y


@pytest.fixture
def classifier(monkeypatch):
    """Fits in passes over the rows."""
    monkeypatch.setattr(explicit_choice, "PART_ROWS", 60)
    return GPCacheClassifier(approximation=Explicit(16), device="cpu")


def mapped(X, place, order):
    np.save(place / "X.npy", np.asarray(X, order=order))
    return np.load(place / "X.npy", mmap_mode="r")


def stored(X, place, encoder):
    store = FeatureStore.create(place / "store", encoder)
    hashes = [f"{row:064x}" for row in range(N)]
    store.append(hashes, X)
    return StoredRows(store, [Item("photos", f"{one}.jpg", one) for one in hashes])


SOURCES = {
    "array": lambda X, *_: X,
    "list": lambda X, *_: X.tolist(),
    "mapped rows": lambda X, place, _: mapped(X, place, "C"),
    "mapped columns": lambda X, place, _: mapped(X, place, "F"),
    "store": stored,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_pass_over_any_source_is_that_of_one_process(
    kind, rows, in_process_ray, encoder, tmp_path
):
    source, labels = SOURCES[kind](rows[0], tmp_path, encoder), torch.as_tensor(rows[1])
    X = np.asarray(source)  # a store has an order of its own
    np.testing.assert_array_equal(np.sort(X, axis=0), np.sort(rows[0], axis=0))
    step, without = MomentsPass(None, CLASSES), torch.tensor([3, 100])
    with rows_on_ray(source) as on_ray:
        np.testing.assert_array_equal(np.asarray(on_ray), X)
        for given in (labels, labels.flip(0)):
            local, distant = (
                RowStream(source, given, CLASSES, None, torch.float64) for source in (X, on_ray)
            )
            found = on_ray.total_of(step, distant, 16, without)
            expected = step.total(local.batches(16, without))
            assert len(found) == len(expected) > 1
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other.double(), rtol=1e-9, atol=1e-9)
            assert len(in_process_ray.actors) == 2  # one on each live node, with these labels
        held = [last - first for _, first, last in on_ray._parts]
        assert sum(held) == N
        assert held[0] < held[1]  # which has two CPUs
        assert on_ray.passes == 2
    assert in_process_ray.actors == []


@pytest.mark.usefixtures("in_process_ray")
def test_nodes_together_give_the_model_of_one_process(classifier, rows):
    X, y = rows
    expected = classifier.fit(X, y).predict_proba(X)
    with rows_on_ray(X) as on_ray:
        found = classifier.fit(on_ray, y).predict_proba(X)
        assert on_ray.passes > 5
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_stops_a_fit_is_one_sentence(classifier, rows, in_process_ray, tmp_path):
    X, y = rows
    wrong = X.copy()
    wrong[N - 2, 3] = np.nan
    with (
        rows_on_ray(wrong) as on_ray,
        pytest.raises(DataError, match=rf"inf in row {N - 2}: [^\n]*$"),
    ):
        classifier.fit(on_ray, y)
    X = mapped(X, tmp_path, "C")
    with rows_on_ray(X) as on_ray:
        (tmp_path / "X.npy").rename(tmp_path / "elsewhere.npy")
        told = rf"^The rows cannot be read on '{socket.gethostname()}': [^\n]*X\.npy[^\n]*$"
        with pytest.raises(DataError, match=told):
            classifier.fit(on_ray, y)
    with rows_on_ray(rows[0]) as on_ray:
        in_process_ray.lost = in_process_ray.exceptions.RayError("The node died.\nDetails follow.")
        with pytest.raises(GPCacheError, match=r"^Ray stopped: The node died\. Run it again\.$"):
            classifier.fit(on_ray, y)
    in_process_ray.lost = None
    with rows_on_ray(rows[0]) as on_ray:
        far = RowStream(on_ray, torch.zeros(N, device="meta"), CLASSES, None, torch.float64)
        with pytest.raises(DataError, match="computes on CPUs: use device='cpu'"):
            on_ray.total_of(MomentsPass(None, CLASSES), far, 16, None)
    in_process_ray.cpus = {"dead": 8, "without": 0}
    with rows_on_ray(rows[0]) as on_ray, pytest.raises(GPCacheError, match="has no CPU: start"):
        classifier.fit(on_ray, y)


@pytest.mark.parametrize("wrong", [np.zeros(3), [["a", "b"]], np.zeros((2, 2, 2))])
def test_what_is_no_matrix_of_numbers_is_refused(wrong):
    with pytest.raises(DataError, match="takes a matrix of numbers"), rows_on_ray(wrong):
        pass


# Extraction.


@pytest.fixture(scope="module")
def lite():
    return load_encoder("lite0", device="cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos of which two are the same, and a file that is none."""
    place = tmp_path_factory.mktemp("in process") / "photos"
    draw_pictures(place, ("wood", "bricks"), each=3)
    first = min((place / "wood").iterdir())
    (place / "wood" / f"zcopy{first.suffix}").write_bytes(first.read_bytes())
    (place / "bricks" / "broken.jpg").write_bytes(b"no image")
    return place


def test_extraction_is_as_on_this_machine(photos, lite, in_process_ray, tmp_path):
    options = {"views": Views(2, average=False)}
    made = {}
    for engine, stream in (("local", encoded), ("ray", encoded_on_ray)):
        store = tmp_path / engine
        report = extract(open_source(photos), store, lite, stream=stream, batch_size=4, **options)
        made[engine] = report, FeatureStore.open(store).read()
    (local_report, local), (report, rows) = made["local"], made["ray"]
    assert (report.encoded, report.known, report.refused) == (6, 1, local_report.refused)
    assert [refused.name for refused in report.refused] == ["bricks/broken.jpg"]
    assert rows.items == local.items
    assert rows.features.shape == (7, 2, lite.dim)
    np.testing.assert_allclose(rows.features, local.features, atol=1e-5)
    # A batch is of four views. The encoding stage holds a CPU for each actor, the other one none.
    assert in_process_ray.asked == [
        ("_Decode", 3, {"num_cpus": 0, "batch_size": 2}),
        ("_Encode", 3, {"num_cpus": 1, "num_gpus": 0, "batch_size": 2}),
    ]
    # A second run encodes nothing, bytes are known by their content, and a lost file is refused.
    images = [next((photos / "wood").iterdir()).read_bytes(), photos / "gone.jpg", b""]
    again = extract(from_iterable(images), tmp_path / "ray", lite, stream=encoded_on_ray, **options)
    assert (again.encoded, again.known, len(again.refused)) == (0, 1, 2)
    in_process_ray.lost = OSError("[Errno 28] No space left.")
    told = r"^Ray stopped: \[Errno 28\] No space left\. Encoded images are kept: run it again"
    with pytest.raises(GPCacheError, match=told):
        extract(open_source(photos), tmp_path / "lost", lite, stream=encoded_on_ray)


@pytest.mark.usefixtures("in_process_ray")
def test_an_encoder_that_differs_on_the_cluster_is_one_sentence(photos, encoder, tmp_path):
    """The actors know an encoder by its name, and check that it is the same."""
    encoder.name = "lite0"
    with pytest.raises(GPCacheError, match=r"^The encoder 'lite0' differs on [^\n]*$"):
        extract(open_source(photos), tmp_path / "store", encoder, stream=encoded_on_ray)


@pytest.mark.usefixtures("in_process_ray")
def test_what_extraction_cannot_take_is_one_sentence(photos, encoder, tmp_path):
    def fail(source, **options):
        with pytest.raises(GPCacheError) as caught:
            extract(source, tmp_path / "s", encoder, stream=encoded_on_ray, **options)
        return str(caught.value)

    told = fail(from_iterable([np.zeros((9, 9, 3), np.uint8)]))
    assert "takes files and bytes, but 'item 0000000' is of the type ndarray" in told
    assert "workers must be a whole number above zero" in fail(open_source(photos), workers=0)
    encoder.device = torch.device("cuda", 0)
    assert "The Ray cluster has no GPU" in fail(open_source(photos), batch_size=2)


@pytest.mark.parametrize(
    ("family", "name", "loadable"),
    [
        (LiteEncoder, "lite", "lite"),
        (OpenCLIPEncoder, "clip-rn50", "clip-rn50"),
        (OpenCLIPEncoder, "ViT-L-14:laion2b_s32b_b82k", "open_clip:ViT-L-14/laion2b_s32b_b82k"),
        (HuggingFaceEncoder, "google/siglip-base-patch16-224", "hf:google/siglip-base-patch16-224"),
    ],
)
def test_an_encoder_is_known_by_the_name_it_is_loaded_by(family, name, loadable):
    encoder = family.__new__(family)  # its weights have no part in its name
    encoder.name = name
    assert encoder.loadable_name == loadable


def test_a_folder_is_known_from_any_working_directory(tmp_path, monkeypatch):
    encoder = OpenCLIPEncoder.__new__(OpenCLIPEncoder)
    (tmp_path / "model").mkdir()
    encoder.name = "model"
    monkeypatch.chdir(tmp_path)
    assert encoder.loadable_name == f"open_clip:{tmp_path / 'model'}"


hashes = st.sets(
    st.one_of(
        st.binary(min_size=32, max_size=32), st.binary(max_size=3).map(lambda b: b.ljust(32, b"\0"))
    )
)


@given(hashes, hashes)
def test_hashes_in_an_array_are_found_as_in_a_set(known, asked):
    """Also those that end in zeros, which numpy's strings do not show."""
    array = extraction._sorted_hashes({code.hex() for code in known})
    found = {code for code in asked | known if extraction._contains(array, code.hex())}
    assert found == known


@pytest.mark.parametrize(
    ("rows", "size", "counts"), [(3, 10**9, [3, 3, 2]), (100, 20, [2, 2, 2, 2])]
)
def test_windows_are_bounded_by_rows_and_by_bytes(rows, size, counts, monkeypatch):
    monkeypatch.setattr(extraction, "WINDOW_ROWS", rows)
    monkeypatch.setattr(extraction, "WINDOW_BYTES", size)
    records = [Record(str(number), bytes(10)) for number in range(8)]
    windows = list(extraction._windows(records))
    assert [len(window) for window in windows] == counts
    assert [record for window in windows for record in window] == records
