"""JSON documents: whole against their schemas, exact for every path, stable in their keys."""

import base64
import copy
import json
import os
import pathlib

import jsonschema
import pytest

import cli_values as values
from hostfork.cli import documents
from hostfork.cli.policy_document import policy_document
from hostfork.collect.changeset import Counts
from hostfork.errors import HostforkError
from hostfork.lifecycle.doctor import Capability
from hostfork.lifecycle.record import Outcome, Status
from hostfork.storage.contract import Usage

SCHEMAS = pathlib.Path(__file__).parent.parent / "docs/schemas"


def closed(schema):
    """The same schema without room for keys that it does not name."""
    if isinstance(schema, dict):
        if schema.get("properties") is not None:
            schema.setdefault("additionalProperties", False)
        for part in schema.values():
            closed(part)
    elif isinstance(schema, list):
        for part in schema:
            closed(part)
    return schema


def check(name, document):
    """The document fits its schema, names nothing that the schema does not, and is JSON in ASCII."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(json.dumps(document)), closed(copy.deepcopy(schema)))
    return document


def observed():
    record = values.record()
    return documents.observed(record, "idle", 12.3456, Usage(1, 2, True), Counts(created=1))


@pytest.mark.parametrize("name", sorted(path.stem for path in SCHEMAS.glob("*.json")))
def test_schemas_are_valid_and_say_what_each_document_is(name):
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"]
    assert schema["properties"]["schema"]["const"] == documents.SCHEMA


def test_the_result_of_a_run_has_the_keys_that_were_promised():
    document = check("run-result", documents.result(values.outcome()))
    promised = [
        "schema",
        "fork",
        "status",
        "paths",
        "ownership",
        "same_paths",
        "changes",
        "kept",
        "released",
        "leftovers",
        "timings",
    ]
    assert list(document)[: len(promised)] == promised
    ended = {"exit": 0, "signal": None, "timed_out": False, "storage_limited": False, "error": None}
    assert document["status"] == ended
    keys = ["path", "mechanism", "guarantee", "bytes_copied", "base_content", "source_changed", "skipped", "lost"]
    assert list(document["paths"][0]) == keys
    assert document["changes"] == {"created": 3, "modified": 1, "deleted": 2, "metadata": 0, "type": 0}


def test_a_refused_run_has_a_result_too():
    document = check("run-result", documents.result(Outcome("", Status(error=values.problem()))))
    assert document["fork"] is None
    assert list(document["status"]["error"]) == ["code", "step", "path", "path_bytes", "errno", "message", "hint"]


def test_a_diff_has_every_path_with_its_exact_bytes():
    document = check("diff", documents.diff("calm-otter", values.changeset()))
    entries = document["entries"]
    assert [entry["change"] for entry in entries].count("created") == document["counts"]["created"] == 5
    assert list(entries[0])[:4] == ["path", "change", "kind", "class"]
    odd = entries[-1]
    assert base64.b64decode(odd["path_bytes"]) == os.fsencode(values.ODD)
    assert odd["path"] == "/home/me/proj/\ufffd\n:,\\"
    assert all("path_bytes" not in entry for entry in entries[:-1])
    assert entries[0]["mode"] == "0755"


def test_show_list_plan_doctor_and_error():
    check("show", documents.answer(observed() | {"processes": [{"pid": 1, "name": "sh", "memory": 1}]}))
    orphan = documents.observed(values.record(status=None, cgroup=None), "orphaned", 1, None, None)
    check("show", documents.answer(orphan | {"processes": []}))
    broken = [("odd-heron", values.error())]
    document = check("list", documents.fork_list([observed()], broken))
    assert document["broken"][0]["error"]["code"] == "fork.corrupt"
    check("plan", documents.plan(values.plan()))
    check("doctor", documents.doctor([Capability("pool", False, "tried", "nothing", "buy", needed=True)]))
    check("error", documents.error(values.error(), 125))


def test_doctor_counts_only_what_is_needed():
    there, not_there = Capability("a", True, "", "", needed=True), Capability("b", False, "", "")
    assert documents.doctor([there, not_there])["usable"] is True
    assert documents.doctor([Capability("a", False, "", "", needed=True)])["usable"] is False


def test_a_command_with_odd_bytes_is_exact_word_by_word():
    assert documents.argv(("make", "test")) == {"command": ["make", "test"]}
    odd = documents.argv(("make", "te\udcffst"))
    assert odd["command"] == ["make", "te\ufffdst"]
    assert [base64.b64decode(word) for word in odd["command_bytes"]] == [b"make", b"te\xffst"]


def test_exact_paths():
    assert documents.exact("path", None) == {"path": None}
    assert documents.exact("path", "/ünï") == {"path": "/ünï"}
    # the sign that stands for what is no text is itself text
    assert documents.exact("path", "/\ufffd") == {"path": "/\ufffd"}
    assert documents.exact("path", "/\udcff")["path_bytes"] == base64.b64encode(b"/\xff").decode()


def test_a_policy_is_a_document():
    document = policy_document(values.policy())
    assert json.loads(json.dumps(document))["rules"][1]["path_bytes"]
    assert document["requires"] == ["cgroup"]


def test_every_document_is_valid_json_for_strict_readers():
    everything = [
        documents.result(values.outcome()),
        documents.diff("x", values.changeset()),
        observed(),
        documents.plan(values.plan()),
        documents.error(values.error(), 125),
        policy_document(values.policy()),
    ]
    text = json.dumps(everything)
    # a lone surrogate is no text: strict readers refuse the whole document
    json.loads(text)
    assert "\\ud" not in text


def test_a_problem_is_the_error_without_its_details():
    problem = documents.problem_of(values.error())
    assert (problem.code, problem.step, problem.errno) == ("fork.corrupt", "load", 5)
    assert isinstance(values.error(), HostforkError)
    assert documents.problem(None) is None
