"""`gpcache inspect`: what a model folder holds, and what it says of itself."""

import json


def test_inspect_says_what_fit_said(run, fitted, shapes):
    model, done = fitted
    code, out, err = run("inspect", model)
    assert (code, err) == (0, "")
    assert f"images       12 from {shapes}\n" in out
    assert "classes      circle (4), square (4), triangle (4)\n" in out
    shared = [line for line in done.stdout.decode().splitlines() if line.startswith("accuracy")]
    assert len(shared) == 1
    assert shared[0] in out.splitlines()


def test_json(run, model, shapes):
    code, out, err = run("inspect", model, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["encoder"], found["method"], found["images"]) == ("lite", "gpcache", 12)
    assert found["classes"] == {"circle": 4, "square": 4, "triangle": 4}
    assert found["hyper_parameters"]["noise"] > 0
    assert (found["templates"], found["source"]) == (["a photo of a(n) {}."], str(shapes))
    assert found["held_out"]["n"] == 12


def test_a_model_of_text_alone(run, text_model):
    code, out, _ = run("inspect", text_model)
    assert code == 0
    assert "not known: this method learns nothing from images" in out
    code, out, _ = run("inspect", text_model, "--json")
    assert (code, json.loads(out)["held_out"]) == (0, None)


def test_what_is_no_model_is_one_sentence(mistake, shapes, own_model):
    assert "is not a gpcache model: it has no config.json" in mistake("inspect", shapes)
    # Fields beyond the known ones, or a pickle in the place of tensors, are never read.
    (own_model / "model.safetensors").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    assert "is damaged" in mistake("inspect", own_model)
    (own_model / "config.json").write_text("[]")
    assert "is damaged" in mistake("inspect", own_model)
