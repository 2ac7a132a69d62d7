"""Gemini CLI and OpenCode themselves, through the doors that they have."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from postroom.doors import session_binding
from postroom.room import open_room

from . import programs
from .conftest import World

GEMINI_SETTINGS = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "general": {"disableAutoUpdate": True}}


def gemini(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    environment = programs.environment(
        world.home, GEMINI_API_KEY="x", GOOGLE_GEMINI_BASE_URL=f"http://127.0.0.1:{world.model.port}"
    )
    return programs.run([str(programs.NODE), str(programs.GEMINI), *words], world.project, environment)


def with_gemini(world: World) -> None:
    (world.home / ".gemini").mkdir()
    (world.home / ".gemini" / "settings.json").write_text(json.dumps(GEMINI_SETTINGS), encoding="utf-8")
    world.postroom("install", "gemini")


def test_gemini_accepts_the_extension(world: World) -> None:
    with_gemini(world)
    done = gemini(world, "extensions", "validate", str(world.home / ".gemini" / "extensions" / "postroom"))

    assert done.returncode == 0, done.stderr
    assert "successfully validated" in done.stdout + done.stderr


def test_gemini_is_told_of_mail_and_reads_it(world: World) -> None:
    with_gemini(world)
    world.room.agent("gemini", transient=True)
    before = world.send("gemini", "BEFORE-IT-RAN")
    done = gemini(world, "--skip-trust", "-y", "-o", "json", "-p", "WORK 2")
    assert done.returncode == 0, done.stderr[-2000:]

    world.model.wait_for("BEFORE-IT-RAN", 1)
    world.until_acked([before], 1)
    assert "shown" in world.events(before)


def test_two_gemini_programs_are_two_agents(world: World) -> None:
    with_gemini(world)
    words = ["--skip-trust", "-y", "-o", "json", "-p"]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(gemini, world, *words, "WORK 40")
        world.until(
            lambda: "gemini" in session_binding.bound_to(world.room.gateway, "gemini"), what="the first one's name"
        )
        world.room.agent("gemini-2", transient=True)
        id = world.send("gemini-2", "FOR-THE-SECOND")
        second = gemini(world, *words, "WORK 2")
        world.until_acked([id], 5)
        assert not first.done()
    assert (first.result().returncode, second.returncode) == (0, 0)
    assert world.room.receipt(id).events[-1].agent == "gemini-2"


def opencode_home(world: World) -> None:
    folder = world.home / ".config" / "opencode"
    folder.mkdir(parents=True)
    provider = {
        "npm": "@ai-sdk/anthropic",
        "options": {"baseURL": f"http://127.0.0.1:{world.model.port}/v1", "apiKey": "x"},
        "models": {"mock": {"name": "mock", "tool_call": True, "limit": {"context": 100000, "output": 4000}}},
    }
    settings = {
        "model": "mock/mock",
        "small_model": "mock/mock",
        "provider": {"mock": provider},
        "autoupdate": False,
        "permission": "allow",
    }
    (folder / "opencode.json").write_text(json.dumps(settings), encoding="utf-8")
    world.postroom("install", "opencode")


def test_opencode_connects_and_reads_its_mail(world: World) -> None:
    opencode_home(world)
    world.room.agent("opencode", transient=True)
    id = world.send("opencode", "FOR-OPENCODE")
    environment = programs.environment(world.home)
    listed = programs.run([str(programs.OPENCODE), "mcp", "list"], world.project, environment)
    done = programs.run([str(programs.OPENCODE), "run", "WORK 2"], world.project, environment)

    assert "postroom" in listed.stdout + listed.stderr
    assert "connected" in listed.stdout + listed.stderr
    assert done.returncode == 0, done.stderr[-2000:]
    world.model.wait_for("FOR-OPENCODE", 1)
    world.until_acked([id], 5)


@pytest.mark.parametrize("where", ["the project", "a folder in it", "a room of files", "a room made later"])
def test_an_idle_opencode_is_woken(world: World, tmp_path: Path, where: str) -> None:
    opencode_home(world)
    project = world.project if where in ("the project", "a folder in it") else tmp_path / "another"
    folder = project / "src" / "deep" if where == "a folder in it" else project
    folder.mkdir(parents=True, exist_ok=True)
    if where == "a room of files":
        world.postroom_in(project, "init", "--layout", "windsurf", "--workers", "1")
    environment = programs.environment(world.home)
    log = (tmp_path / "serve.log").open("wb")
    server = subprocess.Popen(
        [str(programs.OPENCODE), "serve", "--port", "0", "--print-logs"],
        cwd=folder,
        env=environment,
        stdout=log,
        stderr=log,
    )
    try:
        text = world.until(
            lambda: (t := (tmp_path / "serve.log").read_text()).count("http://127.0.0.1:") and t, what="the server"
        )
        base = "http://127.0.0.1:" + text.split("http://127.0.0.1:")[1].split()[0].strip("/")
        session = post(f"{base}/session?directory={folder}", {})["id"]
        prompt = partial(post, f"{base}/session/{session}/message?directory={folder}")
        prompt({"parts": [{"type": "text", "text": "hello"}]})
        if where == "a room made later":
            world.postroom_in(project, "init")
            prompt({"parts": [{"type": "text", "text": "hello again"}]})
        kind = f"files:{project}/.windsurf/mailbox" if where == "a room of files" else f"sqlite:{project}/.postroom"
        with open_room(kind) as room:
            world.until(
                lambda: (session_binding.look(room.gateway, "opencode") or {}).get("session") == session,
                what="the binding",
            )
            time.sleep(2)
            id = room.agent("ada").send("opencode", {"text": "WAKE-UP"})
            sent_s = time.time()
            seen = world.model.wait_for("WAKE-UP", 30)
            print(f"{where}, from send to the model's context: {seen.time_s - sent_s:.2f} s")
            world.until(lambda: room.receipt(id).state == "acked", 30, "the ack")
    finally:
        server.kill()
        server.wait()
        log.close()
        programs.end_all(world.home)


def post(url: str, body: object) -> dict[str, str]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    found: dict[str, str] = json.loads(text) if text else {}
    return found
