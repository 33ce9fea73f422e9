"""Claims about the explorer's server: it serves one page to this machine, and nothing else to nobody else."""

import http.client
import json
import posixpath
import re
import threading
from collections.abc import Iterator
from html import unescape
from urllib.parse import unquote

import pytest

from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.commands.explore import server_on
from ndparallel.explorer.documents import as_page, documents
from ndparallel.explorer.page import page
from ndparallel.explorer.server import MOST_BYTES, Explorer, QuestionQueue, Superseded
from ndparallel.lessons.registry import ROOT

PAGE, POLICY = page({"words": "</script>"})
JSON = {"Content-Type": "application/json"}


def refuse(question):
    raise UserError("no such thing.")


@pytest.fixture
def server() -> Iterator[Explorer]:
    with Explorer(PAGE, POLICY, {"echo": dict, "refuse": refuse}) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def request(
    server: Explorer, method: str, path: str, body: str | None = None, **headers: str
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=200)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, (JSON if body is not None else {}) | named)
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text


def test_the_page_is_whole_and_asks_nobody_else():
    assert "http://" not in PAGE.replace("http://www.w3.org/2000/svg", "") and "https://" not in PAGE
    assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(?!data:)', PAGE)
    assert "default-src 'none'" in POLICY and "unsafe" not in POLICY


def test_what_the_page_knows_cannot_end_its_script():
    assert PAGE.count("</script>") == 1


def test_a_question_is_answered(server):
    assert request(server, "POST", "/echo", '{"a": 1}') == (200, '{"a": 1}')
    assert request(server, "GET", "/")[1] == PAGE
    assert request(server, "GET", "/?x=1")[0] == 200


def test_documents_are_pages_and_no_other_file_can_be_asked_for():
    with server_on(0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        code, chapter = request(server, "GET", "/docs/book/3d.md")
        assert code == 200 and '<h1 id="3d-pipeline-parallelism">3D: pipeline parallelism</h1>' in chapter
        assert '"chapters": ["docs/book/0d.md", "docs/book/1d.md"' in request(server, "GET", "/")[1]
        assert request(server, "GET", "/docs/pictures/1f1b-filling.svg")[1].startswith("<svg")
        assert request(server, "GET", "/gpu.py")[1] == (ROOT / "gpu.py").read_text("utf-8")
        for other in ("/pyproject.toml", "/docs/book", "/docs/book/", "/docs/book/../book/3d.md"):
            assert request(server, "GET", other)[0] == 404, other
        assert request(server, "GET", "/docs/book/3d.md", Host="evil.example")[0] == 403
        server.shutdown()
        thread.join()


def test_a_document_runs_nothing_and_asks_no_other_site():
    policies = {make().policy.replace("img-src 'self' data:", "") for make in documents().values()}
    assert all(policy.startswith("default-src 'none'") and "script" not in policy for policy in policies)
    assert "self" not in "".join(policies)


def test_every_link_and_picture_of_every_document_leads_to_a_document_and_a_heading():
    pages = {name: make().content.decode() for name, make in documents().items()}
    for name, html in pages.items():
        for target in re.findall(r'(?:href|src)="([^":]+)"', html) if name.endswith(".md") else ():
            file, _, heading = unescape(unquote(target)).partition("#")
            there = posixpath.normpath(posixpath.join(posixpath.dirname(name), file)) if file else name
            assert there.removeprefix("/") in pages or target == "/", (name, target)
            assert not heading or f' id="{heading}"' in pages[there], (name, target)


def test_a_link_to_what_is_not_served_is_words_alone():
    page = as_page("docs/a.md", "[in torch](../in_pytorch) and [b](b.md)", {"docs/b.md"}, "")
    assert '<a>in torch</a> and <a href="b.md">b</a>' in page


def test_without_its_documents_the_page_links_none(monkeypatch, tmp_path):
    monkeypatch.setattr("ndparallel.explorer.documents.ROOT", tmp_path)  # as where it was installed by pip
    assert documents() == {}


def test_a_refusal_is_a_sentence_for_the_reader(server):
    assert request(server, "POST", "/refuse", "{}") == (200, '{"error": "no such thing."}')


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, 403),  # another name for this machine: DNS rebinding
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content_Type": "text/plain"}, 415),  # what a page of another site may send unasked
        ({"Content_Length": "-1"}, 413),
        ({"Content_Length": str(MOST_BYTES + 1)}, 413),
    ],
)
def test_no_other_site_and_no_flood_is_answered(server, headers, code):
    assert request(server, "POST", "/echo", "{}", **headers)[0] == code
    if code == 403:
        assert request(server, "GET", "/", **headers)[0] == code


@pytest.mark.parametrize(("body", "code"), [("[1]", 400), ("{", 400), ("[" * 100_000, 400)])
def test_what_is_no_question_is_refused(server, body, code):
    assert request(server, "POST", "/echo", body)[0] == code


@pytest.mark.parametrize("path", ["/../etc/passwd", "/etc/passwd", "/style.css", "/echo"])
def test_no_path_is_a_file(server, path):
    assert request(server, "GET", path)[0] == 404
    assert request(server, "POST", f"{path}x", "{}")[0] == 404


def test_its_own_page_is_answered_by_both_names_of_this_machine(server):
    for name in ("127.0.0.1", "localhost"):
        origin = f"http://{name}:{server.server_port}"
        assert request(server, "POST", "/echo", "{}", Origin=origin)[0] == 200


def test_of_the_questions_that_wait_the_newest_is_answered():
    started, go_on, answered = threading.Event(), threading.Event(), []

    def slow(question):
        started.set()
        go_on.wait(200)
        return {"number": question["number"]}

    desk = QuestionQueue({"slow": slow})

    def ask(number: int) -> None:
        try:
            answered.append(desk.answer("slow", {"number": number})["number"])
        except Superseded:
            answered.append(f"{number} superseded")

    threads = [threading.Thread(target=ask, args=(0,))]
    threads[0].start()
    started.wait(200)
    for number in (1, 2, 3):
        threads.append(threading.Thread(target=ask, args=(number,)))
        threads[-1].start()
        while desk.newest["slow"] <= number:
            pass
    go_on.set()
    for thread in threads:
        thread.join()
    assert sorted(map(str, answered)) == ["0", "1 superseded", "2 superseded", "3"]


def test_a_tab_that_is_closed_before_its_answer_leaves_no_traceback(server, capfd):
    for error in (BrokenPipeError(), ConnectionResetError()):
        try:
            raise error
        except ConnectionError:
            server.handle_error(None, None)
    assert capfd.readouterr().err == ""


def test_the_server_is_of_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    assert json.loads(request(server, "POST", "/echo", json.dumps({"é": "ü"}))[1]) == {"é": "ü"}


def test_a_port_that_is_in_use_is_named(server, capsys):
    assert main(["explore", "--no-browser", "--port", str(server.server_port)]) == 2
    said = f"error: port {server.server_port} cannot be used: address already in use; take another"
    assert capsys.readouterr().err.startswith(said)


def test_a_port_that_is_none_is_refused(capsys):
    assert main(["explore", "--port", "70000", "--no-browser"]) == 2
    assert "there is no port 70000" in capsys.readouterr().err
