"""The part of Ray that gpcache uses, without processes: actors are objects of this process.

With it, fast tests run all code of ours that a cluster runs. As with Ray, whatever an actor gets or
returns is a copy. Real clusters, whose processes die, are in the slow tests.
"""

import pickle
import sys
import traceback
from types import SimpleNamespace

import pytest
import torch


class RayError(Exception):
    """The base class of Ray's errors, as in `ray.exceptions`."""


class RayTaskError(RayError):
    pass


class RayServeException(Exception):
    """The base class of the errors of Ray Serve, as in `ray.serve.exceptions`."""


class BackPressureError(RayServeException):
    pass


class Reference:
    """What `put` and a call of an actor give: only the cluster has the value."""

    def __init__(self, value):
        self.pickled = pickle.dumps(value)

    @property
    def value(self):
        return pickle.loads(self.pickled)


class Actor:
    """An object whose methods have `.remote`."""

    def __init__(self, kind, arguments, options):
        threads = torch.get_num_threads()
        self.made = kind(*copied(arguments), **copied(options))
        torch.set_num_threads(threads)  # an actor chooses them for its own process

    def __getattr__(self, name):
        method = getattr(self.made, name)
        return SimpleNamespace(remote=lambda *given: Reference(method(*copied(given))))


def copied(given):
    """Arguments as an actor gets them: references as their values."""
    if isinstance(given, dict):
        return dict(zip(given, copied(given.values()), strict=True))
    return [(one if isinstance(one, Reference) else Reference(one)).value for one in given]


class Dataset:
    """Blocks of rows, and the actors that they pass through."""

    def __init__(self, ray, blocks, stages=()):
        self._ray, self._blocks, self._stages = ray, blocks, stages
        self.context = SimpleNamespace(execution_options=SimpleNamespace())

    def map_batches(self, kind, *, fn_constructor_args, compute, batch_format, **settings):
        assert batch_format == "pyarrow"
        assert compute.min_size == 1 <= compute.max_size
        self._ray.asked.append((kind.__name__, compute.max_size, settings))
        return Dataset(self._ray, self._blocks, (*self._stages, (kind, fn_constructor_args)))

    def iter_batches(self, **_):
        # `put` gives references as they are here: the actors call `get` themselves.
        stages = [kind(*arguments) for kind, arguments in self._stages]
        for block in self._blocks:
            if self._ray.lost is not None:
                raise self._ray.lost
            for stage in stages:
                block = stage(block)
            yield block


class Serve:
    """Ray Serve: applications whose replica lives in the event loop of the caller."""

    exceptions = SimpleNamespace(
        RayServeException=RayServeException, BackPressureError=BackPressureError
    )

    def __init__(self):
        self.options = None
        self.replicas = {}
        self.applications = {}
        self.errors = []  # of the next calls, instead of answers
        self.silent = False

    def deployment(self, kind, **options):
        self.options = options
        return SimpleNamespace(bind=lambda *arguments: (kind, arguments))

    def start(self, proxy_location):
        assert proxy_location == "Disabled"

    def run(self, application, *, name, route_prefix):
        kind, arguments = application
        deployment = SimpleNamespace(message="", replica_states={})
        self.applications[name] = SimpleNamespace(deployments={kind.__name__: deployment})
        try:
            self.replicas[name] = kind(*copied(arguments))
        except Exception:
            deployment.message = traceback.format_exc()
            raise RuntimeError("Deploying the application failed.") from None
        deployment.replica_states["RUNNING"] = self.options["num_replicas"]

    def get_app_handle(self, name):
        async def answer(content, learn):
            if self.errors:
                raise self.errors.pop(0)
            return await self.replicas[name].encode(content, learn)

        return SimpleNamespace(encode=SimpleNamespace(remote=answer))

    def status(self):
        if self.silent:
            raise RayServeException("no controller")
        return SimpleNamespace(applications=self.applications)

    def delete(self, name):
        del self.applications[name]


class InProcessRay:
    """The module `ray`, connected to nodes of one and of two CPUs, and one that died."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self):
        self.initialized = True
        self.init_options = None
        self.cpus = {"first": 1, "second": 2, "dead": 8}
        self.actors = []  # those that were not killed
        self.lost = None  # the error of whatever is computed next
        self.asked = []  # stages of data sets
        self.data = SimpleNamespace(
            from_blocks=lambda blocks: Dataset(self, blocks), ActorPoolStrategy=SimpleNamespace
        )
        self.serve = Serve()
        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
        self.util = SimpleNamespace(scheduling_strategies=strategies)

    def is_initialized(self):
        return self.initialized

    def init(self, **options):
        self.initialized, self.init_options = True, options

    def shutdown(self):
        self.initialized = False

    def nodes(self):
        return [
            {"NodeID": name, "Alive": name != "dead", "Resources": {"CPU": count} if count else {}}
            for name, count in self.cpus.items()
        ]

    def cluster_resources(self):
        return {"CPU": float(sum(one["Resources"].get("CPU", 0) for one in self.nodes()[:2]))}

    available_resources = cluster_resources

    def put(self, value):
        return Reference(value)

    def get(self, given):
        if self.lost is not None:
            raise self.lost
        return [one.value for one in given] if isinstance(given, list) else given.value

    def remote(self, **_):
        def factory(kind):
            def make(*arguments, **options):
                self.actors.append(Actor(kind, arguments, options))
                return self.actors[-1]

            return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))

        return factory

    def kill(self, actor):
        self.actors.remove(actor)


@pytest.fixture
def in_process_ray(monkeypatch):
    """What `import ray` then finds."""
    ray = InProcessRay()
    for name, module in {"ray": ray, "ray.data": ray.data, "ray.serve": ray.serve}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return ray
