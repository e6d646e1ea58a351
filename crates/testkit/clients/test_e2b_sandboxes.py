"""Making, finding and ending sandboxes with the unmodified packages of E2B."""

import datetime

import httpx
import pytest
from e2b import AuthenticationException, NotFoundException, Sandbox, SandboxException, SandboxNotFoundException, SandboxQuery, SandboxState


def test_a_sandbox_is_made_found_and_killed(e2b):
    sandbox = Sandbox.create(timeout=60, metadata={"for": "a test & more"}, envs={"COLOUR": "blue"})
    assert sandbox.is_running()
    assert sandbox.commands.run("echo $COLOUR").stdout == "blue\n"
    info = sandbox.get_info()
    assert (info.sandbox_id, info.state, info.template_id) == (sandbox.sandbox_id, SandboxState.RUNNING, "base")
    assert info.metadata == {"for": "a test & more"}
    assert info.memory_mb > 0 and info.cpu_count > 0
    age = datetime.datetime.now(datetime.timezone.utc) - info.started_at
    assert abs(age.total_seconds()) < 30
    assert 30 < (info.end_at - info.started_at).total_seconds() <= 61
    assert sandbox.kill()
    assert not sandbox.is_running()
    assert not sandbox.kill()
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()


def test_it_is_killed_where_its_context_ends(e2b):
    with Sandbox.create() as sandbox:
        assert sandbox.is_running()
    assert not sandbox.is_running()


def test_somebody_else_connects_to_it(e2b):
    first = Sandbox.create(timeout=60)
    first.files.write("shared", "by the first")
    second = Sandbox.connect(first.sandbox_id, timeout=600)
    assert second.files.read("shared") == "by the first"
    info = second.get_info()
    assert (info.end_at - info.started_at).total_seconds() > 500, "connecting makes its time longer"
    Sandbox.connect(first.sandbox_id, timeout=10)
    assert second.get_info().end_at >= info.end_at - datetime.timedelta(seconds=2), "and never shorter"
    Sandbox.kill(first.sandbox_id)
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(first.sandbox_id)


def test_its_time_is_set_anew_and_runs_out(e2b):
    sandbox = Sandbox.create(timeout=600)
    sandbox.set_timeout(100)
    info = sandbox.get_info()
    assert (info.end_at - info.started_at).total_seconds() < 150
    sandbox.set_timeout(1)
    with pytest.raises(SandboxException):
        sandbox.commands.run("sleep 20")
    assert not sandbox.is_running()
    with pytest.raises(SandboxException, match="86400"):
        Sandbox.create(timeout=24 * 3600 + 1)


def test_it_stands_still_and_goes_on(e2b):
    sandbox = Sandbox.create(timeout=100)
    counter = sandbox.commands.run("while sleep 0.05; do echo >> ticks; done", background=True)
    assert sandbox.pause()
    assert not sandbox.pause(), "it is paused already"
    assert sandbox.get_info().state == SandboxState.PAUSED
    assert [each.sandbox_id for each in Sandbox.list(SandboxQuery(state=[SandboxState.PAUSED])).next_items()] == [sandbox.sandbox_id]
    assert Sandbox.list(SandboxQuery(state=[SandboxState.RUNNING])).next_items() == []
    again = sandbox.connect(timeout=100)
    assert again.get_info().state == SandboxState.RUNNING
    assert counter.pid in [each.pid for each in again.commands.list()]
    with pytest.raises(SandboxException, match="without its memory"):
        sandbox.pause(keep_memory=False)


def test_lists_have_pages_filters_and_an_order(e2b):
    made = [Sandbox.create(timeout=60, metadata={"n": str(n), "all": "a+b c"}).sandbox_id for n in range(3)]
    pages = Sandbox.list(limit=2)
    first = pages.next_items()
    assert pages.has_next
    second = pages.next_items()
    assert not pages.has_next
    assert [each.sandbox_id for each in first + second] == made[::-1], "the newest comes first"
    assert [each.sandbox_id for each in Sandbox.list(order="asc").next_items()] == made
    found = Sandbox.list(SandboxQuery(metadata={"n": "1", "all": "a+b c"})).next_items()
    assert [each.sandbox_id for each in found] == made[1:2]
    assert len(Sandbox.list(SandboxQuery(template="base")).next_items()) == 3
    assert Sandbox.list(SandboxQuery(template="other")).next_items() == []


def test_templates_are_images_of_the_store(e2b):
    with pytest.raises(SandboxException, match="404.*image"):
        Sandbox.create("no-such-image")
    for template in ["base", "code-interpreter-v1"]:
        assert Sandbox.create(template).get_info().template_id == "base"


@pytest.mark.parametrize(
    "asked",
    [
        {"allow_internet_access": True},
        {"network": {"allow_out": ["example.com"]}},
        {"lifecycle": {"on_timeout": "pause"}},
        {"mcp": {"exa": {"apiKey": "x"}}},
        {"idempotency_key": "abc"},
    ],
)
def test_what_is_not_there_is_refused(e2b, asked):
    with pytest.raises(SandboxException, match="400"):
        Sandbox.create(**asked)
    assert Sandbox.list().next_items() == [], "nothing was made"


def test_what_is_not_supported_says_so(e2b):
    sandbox = Sandbox.create(timeout=60)
    for call in [sandbox.get_metrics, sandbox.create_snapshot, sandbox.fork]:
        with pytest.raises(SandboxException, match="501.*is not supported"):
            call()


def test_a_key_is_a_token(e2b):
    token, other = e2b.token("acme"), e2b.token("umbrella")
    with pytest.raises(AuthenticationException):
        Sandbox.create()
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key=token[:-1] + ("0" if token[-1] != "0" else "1"))
    mine = Sandbox.create(api_key=token, timeout=60)
    assert mine.commands.run("echo mine").stdout == "mine\n"
    assert Sandbox.list(api_key=other).next_items() == []
    assert Sandbox.kill(mine.sandbox_id, api_key=other) is False
    for attempt in [
        lambda: Sandbox.connect(mine.sandbox_id, api_key=other),
        lambda: Sandbox.get_info(mine.sandbox_id, api_key=other),
        lambda: Sandbox.set_timeout(mine.sandbox_id, 10, api_key=other),
        lambda: Sandbox.pause(mine.sandbox_id, api_key=other),
    ]:
        with pytest.raises(NotFoundException):
            attempt()
    assert mine.is_running()
    receipts = e2b.token("acme", "--scope", "receipts")
    with pytest.raises(SandboxException, match="403"):
        Sandbox.create(api_key=receipts)


def test_without_tokens_only_this_machine_makes_sandboxes(e2b):
    headers = {"x-api-key": "e2b_anything", "host": "evil.example"}
    refused = httpx.post(f"{e2b.url}/v2/sandboxes", json={"templateID": "base"}, headers=headers)
    assert refused.status_code == 403
    assert refused.json()["code"] == 403


def test_the_key_of_a_sandbox_is_checked(e2b):
    sandbox = Sandbox.create(timeout=60)
    other = Sandbox.create(timeout=60)
    named = {"e2b-sandbox-id": sandbox.sandbox_id}
    good = {**named, "x-access-token": sandbox._envd_access_token}
    assert httpx.get(f"{e2b.url}/health", headers=good).status_code == 204
    for key in [None, "", "0" * 64, other._envd_access_token]:
        headers = named if key is None else {**named, "x-access-token": key}
        assert httpx.get(f"{e2b.url}/health", headers=headers).status_code == 401
        assert httpx.get(f"{e2b.url}/contexts", headers=headers).status_code == 401
        assert httpx.get(f"{e2b.url}/files?path=x", headers=headers).status_code == 401
        listed = httpx.post(f"{e2b.url}/process.Process/List", json={}, headers=headers)
        assert (listed.status_code, listed.json()["code"]) == (401, 401)
    unknown = httpx.get(f"{e2b.url}/health", headers={**good, "e2b-sandbox-id": "0" * 32})
    assert unknown.status_code == 502 and "was not found" in unknown.json()["message"]
    assert httpx.get(f"{e2b.url}/files?path=x").status_code == 400, "no sandbox is named"
