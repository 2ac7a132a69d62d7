"""Who is let in: names compared with a list, whole and exactly; the token everywhere; nothing by the cookie alone."""

from __future__ import annotations

import http.client
import itertools

import pytest

from postroom.doors.web.guard import CONTENT_POLICY, PageCredentials, PageGuard, new_token

from .browser import Site

PORT = 7678
TOKEN = new_token()
GOOD_HOSTS = (f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"LocalHost:{PORT}", f"[::1]:{PORT}")
BAD_HOSTS = (
    "",
    "127.0.0.1",
    "localhost",
    f"127.0.0.1:{PORT + 1}",
    f"127.0.0.1:{PORT}1",
    f"127.0.0.1.nip.io:{PORT}",
    f"localhost.evil.example:{PORT}",
    f"evil-localhost:{PORT}",
    f"evil.example:{PORT}",
    f"localhost.:{PORT}",
    f"127.0.0.1:{PORT}@evil.example",
    f"evil.example@127.0.0.1:{PORT}",
    f"0.0.0.0:{PORT}",
    f"127.1:{PORT}",
    f"2130706433:{PORT}",
    f"[::ffff:127.0.0.1]:{PORT}",
    f" 127.0.0.1:{PORT}",
    f"127.0.0.1:{PORT} ",
)
GOOD_ORIGINS = (f"http://127.0.0.1:{PORT}", f"http://localhost:{PORT}", f"http://[::1]:{PORT}")
BAD_ORIGINS = (
    "null",
    "",
    "http://evil.example",
    f"https://127.0.0.1:{PORT}",
    "http://127.0.0.1",
    f"http://127.0.0.1:{PORT + 1}",
    f"http://127.0.0.1:{PORT}.evil.example",
    f"http://localhost.evil.example:{PORT}",
    f"http://127.0.0.1:{PORT}/",
    f"http://evil.example#http://127.0.0.1:{PORT}",
    f"http://127.0.0.1:{PORT} http://evil.example",
    "file://",
    "chrome-extension://abcdefgh",
)


def guard() -> PageGuard:
    return PageGuard(PORT, TOKEN)


@pytest.mark.parametrize("host", BAD_HOSTS)
@pytest.mark.parametrize("origin", [None, GOOD_ORIGINS[0]])
def test_a_name_that_is_not_on_the_list_is_refused(host: str, origin: str | None) -> None:
    refusal = guard().check_way([host], [] if origin is None else [origin])

    assert refusal is not None
    assert refusal.status == 421


@pytest.mark.parametrize("origin", BAD_ORIGINS)
@pytest.mark.parametrize("host", GOOD_HOSTS[:2])
def test_a_page_of_another_origin_is_refused(host: str, origin: str) -> None:
    refusal = guard().check_way([host], [origin])

    assert refusal is not None
    assert refusal.status == 403


def test_every_name_of_this_machine_is_let_in_with_each_of_its_origins_and_without() -> None:
    combinations = list(itertools.product(GOOD_HOSTS, [[], *([origin] for origin in GOOD_ORIGINS)]))

    assert [pair for pair in combinations if guard().check_way([pair[0]], pair[1]) is not None] == []


@pytest.mark.parametrize(
    ("hosts", "origins"),
    [
        ([], []),
        ([GOOD_HOSTS[0], GOOD_HOSTS[0]], []),
        ([GOOD_HOSTS[0], "evil.example"], []),
        ([GOOD_HOSTS[0]], [*GOOD_ORIGINS[:2]]),
    ],
)
def test_a_header_that_is_missing_or_there_twice_is_refused(hosts: list[str], origins: list[str]) -> None:
    assert guard().check_way(hosts, origins) is not None


def test_other_names_must_be_given() -> None:
    named = PageGuard(PORT, TOKEN, ["build.example"])

    assert guard().check_way([f"build.example:{PORT}"], []) is not None
    assert named.check_way([f"build.example:{PORT}"], [f"http://build.example:{PORT}"]) is None
    assert named.check_way([f"x.build.example:{PORT}"], []) is not None


COOKIE = f"other=1; postroom_{PORT}={TOKEN}; x=2"


@pytest.mark.parametrize(
    ("method", "origins", "shown", "passes"),
    [
        ("GET", [], PageCredentials([COOKIE], []), True),
        ("POST", [GOOD_ORIGINS[0]], PageCredentials([COOKIE], []), True),
        ("POST", [], PageCredentials([COOKIE], []), False),
        ("DELETE", [], PageCredentials([COOKIE], []), False),
        ("POST", [], PageCredentials([], [f"Bearer {TOKEN}"]), True),
        ("GET", [], PageCredentials([], [f"bearer {TOKEN}"]), True),
        ("GET", [], PageCredentials([], [f"Basic {TOKEN}"]), False),
        ("GET", [], PageCredentials([], [f"Bearer {TOKEN}x"]), False),
        ("GET", [], PageCredentials([], [f"Bearer {TOKEN[:-1]}"]), False),
        ("GET", [], PageCredentials([], [f"Bearer {TOKEN}", f"Bearer {TOKEN}"]), False),
        ("GET", [], PageCredentials([f"postroom_{PORT + 1}={TOKEN}"], []), False),
        ("GET", [], PageCredentials([f"postroom_{PORT}="], []), False),
        ("GET", [], PageCredentials([f"postroom_{PORT}=\udcff"], []), False),
        ("GET", [], PageCredentials([], []), False),
    ],
)
def test_who_has_the_token_is_known(method: str, origins: list[str], shown: PageCredentials, passes: bool) -> None:
    assert (guard().check_token(method, origins, shown) is None) is passes


def test_tokens_differ_and_cannot_be_guessed() -> None:
    tokens = {new_token() for _ in range(100)}

    assert len(tokens) == 100
    assert min(len(token) for token in tokens) >= 43


def test_the_policy_allows_nothing_inline_and_nothing_from_elsewhere() -> None:
    assert "unsafe" not in CONTENT_POLICY
    assert "http" not in CONTENT_POLICY
    assert "*" not in CONTENT_POLICY
    assert CONTENT_POLICY.startswith("default-src 'none'; script-src 'self';")


# The same over real sockets: what the server does with a header is what counts


def status(
    any_site: Site, path: str, hosts: list[str], origins: list[str], method: str = "GET", token: bool = True
) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", any_site.port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for host in hosts:
            connection.putheader("Host", host)
        for origin in origins:
            connection.putheader("Origin", origin)
        if token:
            connection.putheader("Cookie", f"postroom_{any_site.port}={any_site.token}")
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


def moved(text: str, site: Site) -> str:
    return text.replace(str(PORT), str(site.port))


def test_over_the_wire_none_is_accepted_that_should_not_be(any_site: Site) -> None:
    """Every Host with every Origin: more than forty combinations for each of three paths."""
    accepted = []
    count = 0
    for host in (*GOOD_HOSTS, *BAD_HOSTS):
        for origin in (None, GOOD_ORIGINS[0], "null", "http://evil.example"):
            good = host in GOOD_HOSTS and origin in (None, GOOD_ORIGINS[0])
            got = status(
                any_site, "/api/recent", [moved(host, any_site)], [] if origin is None else [moved(origin, any_site)]
            )
            count += 1
            # h11 strips the spaces around a value, as the standard says: then it is the right name
            if host.strip() != host:
                good = host.strip() in GOOD_HOSTS and origin in (None, GOOD_ORIGINS[0])
            if (got == 200) is not good:
                accepted.append((host, origin, got))

    assert accepted == []
    assert count >= 40


@pytest.mark.parametrize(
    "path",
    ["/", "/api/about", "/api/recent", "/api/events", "/api/stream", "/api/live", "/metrics", "/nothing", "/api/send"],
)
def test_without_the_token_nothing_is_told(any_site: Site, path: str) -> None:
    assert status(any_site, path, [f"127.0.0.1:{any_site.port}"], [], token=False) == 401
    assert status(any_site, path, [f"127.0.0.1:{any_site.port}"], [], method="POST", token=False) == 401


def test_the_cookie_alone_changes_nothing(any_site: Site) -> None:
    host = [f"127.0.0.1:{any_site.port}"]

    assert status(any_site, "/api/requeue", host, [], method="POST") == 403
    assert status(any_site, "/api/requeue", host, ["http://evil.example"], method="POST") == 403
    assert (
        status(any_site, "/api/requeue", host, [f"http://127.0.0.1:{any_site.port}"], method="POST") == 415
    )  # let in; no body


def test_two_hosts_are_none(any_site: Site) -> None:
    host = f"127.0.0.1:{any_site.port}"

    assert status(any_site, "/api/recent", [host, host], []) >= 400
    assert status(any_site, "/api/recent", [], []) >= 400
