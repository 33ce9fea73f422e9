"""Claims about the page in a real browser: Debian's Chromium, driven by Playwright (the extra `browser`)."""

import os
import random
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ndparallel.commands.explore import server_on
from ndparallel.explorer import cut, rings
from ndparallel.explorer.page import page
from ndparallel.explorer.screens import SCREENS, known
from ndparallel.explorer.server import Explorer

playwright = pytest.importorskip("playwright.sync_api", reason="the extra browser is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
DRAWN = "#screen:not(.busy):not(:has(.later)) > *"
PAGES = ["cut", "timeline", "ring", "schedule", "cluster", "predict"]
SECONDS = 30_000  # ms, for a machine under load


@pytest.fixture(scope="module")
def server() -> Iterator[Explorer]:
    with server_on(0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """One tab, and what went wrong in it."""

    def __init__(self, browser: Any, server: Explorer, **options: Any) -> None:
        self.page, self.address = browser.new_page(**options), server.address
        self.wrong: list[str] = []
        self.page.set_default_timeout(SECONDS)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda line: self.wrong.extend([line.text] * (line.type == "error")))
        self.page.on("request", self.look_at)

    def look_at(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.wrong.append(f"asks {request.url}")

    def open(self, address: str) -> "Tab":
        self.page.goto(self.address + address)
        return self.drawn()

    def drawn(self) -> "Tab":
        self.page.wait_for_selector(DRAWN)
        self.page.wait_for_load_state("networkidle")
        self.page.wait_for_selector(DRAWN)
        return self

    def numbers(self) -> list[str]:
        return self.page.locator(".numbers dd:first-of-type").all_inner_texts()


@pytest.fixture
def tab(browser, server, request) -> Iterator[Tab]:
    tab = Tab(browser, server, **getattr(request, "param", {}))
    yield tab
    tab.page.close()
    assert tab.wrong == []


@pytest.mark.parametrize("screen", PAGES)
def test_every_screen_opens_and_shows_its_command(tab, screen):
    tab.open(f"#{screen}")
    assert tab.page.locator(f"#tab-{screen}[aria-current=page]").count() == 1
    assert (
        tab.page.locator("#command").inner_text()
        == SCREENS[{"timeline": "cut"}.get(screen, screen)]({})["command"]
    )
    assert tab.page.locator("main svg").count() > 0 or screen == "predict"
    assert not {"null", "undefined", "NaN"} & set(tab.page.locator("body").inner_text().split())


def test_a_guess_is_compared_with_the_run(tab):
    tab.open("#predict")
    tab.page.locator("#guess-ring-bytes").fill("200")
    tab.page.locator("#show-ring-bytes").click()
    card = tab.page.locator("#card-ring-bytes")
    card.locator("div[role=status]").wait_for()
    assert "188 MB. You said 200 MB: 12 MB too much." in card.inner_text()
    assert "ring-bytes=200" in tab.page.url


@pytest.mark.parametrize("is_saved", [False, True])
def test_who_has_not_moved_the_slider_is_told_of_no_guess(tab, is_saved, request):
    if is_saved:
        tab.address = request.getfixturevalue("saved_anew").as_uri()
    tab.open("#predict")
    card = tab.page.locator("#card-ring-bytes")
    assert card.locator("output").inner_text() == "your guess?"
    tab.page.locator("#show-ring-bytes").click()
    card.locator("div[role=status]").wait_for()
    assert "188 MB" in card.inner_text() and "You said" not in card.inner_text()
    assert card.locator("svg").get_attribute("aria-label") == "188 MB"
    assert card.locator("circle").count() == 0


def test_a_slider_that_is_put_down_where_it_stood_is_a_guess(tab):
    tab.open("#predict")
    tab.page.locator("#guess-ring-bytes").click()
    tab.page.locator("#show-ring-bytes").click()
    tab.page.locator("#card-ring-bytes div[role=status]").wait_for()
    assert "You said 800 MB" in tab.page.locator("#card-ring-bytes").inner_text()


def test_the_numbers_on_the_page_are_the_commands(tab):
    cells = cut.answer({"tp": 4, "zero": 1})["cells"]
    tab.open("#cut?tp=4&zero=1")
    wanted = [cells[name] for name in ("step", "speedup", "exposed", "bubble", "sent", "memory")]
    assert tab.numbers() == [*wanted, "yes"]


def test_a_control_moves_the_page_and_back_undoes_it(tab):
    before = tab.open("#cut").numbers()
    tab.page.locator("#control-zero-2").check(force=True)
    after = tab.drawn().numbers()
    assert "zero=2" in tab.page.url and after != before
    tab.page.go_back()
    assert tab.drawn().numbers() == before
    tab.page.go_forward()
    assert tab.drawn().numbers() == after


def test_a_link_restores_what_was_set(tab):
    numbers = tab.open("#cut?pp=4&tp=1&schedule=zb-v&microbatches=8&batch=16").numbers()
    tab.page.reload()
    assert tab.drawn().numbers() == numbers
    assert tab.page.locator("#control-schedule").input_value() == "zb-v"


def test_waiting_is_hatched_and_every_part_of_the_step_is_named(tab):
    tab.open("#cut")
    parts = [part["name"].removeprefix("exposed ") for part in cut.answer({})["parts"]]
    bars = tab.page.locator("svg[aria-label^='compute: ']")
    assert {"tp", "pp", "dp"} < set(parts) <= set(bars.locator("text").all_text_contents())
    assert bars.locator("rect[fill='url(#hatch)'][data-says]").count() == 3
    assert tab.page.locator("rect[fill='var(--waiting)'][data-says]").count() == 0
    hatched = tab.page.locator("rect[fill='url(#hatch)']")
    assert hatched.evaluate_all("all => all.every((each) => each.closest('svg').querySelector('#hatch'))")


def test_the_timeline_says_what_the_colours_of_its_memory_strips_are(tab):
    tab.open("#timeline")
    kinds = cut.answer({})["memory"]["kinds"]
    for kind in kinds:
        assert tab.page.locator("#screen .legend li", has_text=re.compile(rf"{kind}$")).count() >= 1, kind


def test_a_ring_begins_at_its_start_and_outlines_only_what_has_just_arrived(tab):
    tab.open("#ring")
    assert tab.page.locator("output[for=hop]").inner_text() == "start"
    assert tab.page.locator("rect.arrived").count() == 0
    for hop in (1, 6):
        tab.open(f"#ring?hop={hop}")
        assert tab.page.locator("rect.arrived").count() == 4  # of 16: one piece on every GPU


def test_every_collective_can_be_chosen_and_brings_an_algorithm_that_it_has(tab):
    tab.open("#ring")
    for collective, algorithm in (
        ("broadcast", "one-by-one"),
        ("all_to_all", "direct"),
        ("all_reduce", "ring"),
    ):
        tab.page.locator("#control-collective").select_option(collective)
        assert tab.drawn().page.locator("#control-algorithm").input_value() == algorithm
        assert f"collective {collective} " in tab.page.locator("#command").inner_text()


def test_a_word_that_cannot_be_says_why_when_it_is_chosen(tab):
    tab.open("#ring")
    tab.page.locator("#control-algorithm").select_option("hierarchical")
    tab.page.locator("#said", has_text="needs several nodes").wait_for()
    assert tab.drawn().page.locator("#control-algorithm").input_value() == "ring"


def test_what_is_pinned_stands_in_the_link_and_is_compared(tab):
    tab.open("#cut?tp=4&pp=1")
    tab.page.locator("#pin").click()
    tab.drawn().page.locator("#control-order").select_option("pp-dp-ep-cp-tp")
    tab.drawn().page.reload()
    pinned, shown = (cut.answer({"tp": 4, "pp": 1, **more})["cells"]["step"] for more in ({}, ACROSS))
    assert tab.drawn().numbers()[0] == shown
    assert tab.page.locator(".numbers .ghost").first.inner_text() == f"pinned: {pinned}"
    tab.page.locator("#tab-timeline").click()
    assert "pinned: TP4 x DP2" in tab.drawn().page.locator("#screen").inner_text()


def test_a_pin_says_what_to_do_next_and_can_be_taken_away_from_any_set_up(tab):
    tab.open("#cut?tp=4&pp=1")
    tab.page.locator("#pin").click()
    assert "Now change a setting" in tab.drawn().page.locator("form").inner_text()
    tab.page.locator("#control-order").select_option("pp-dp-ep-cp-tp")
    assert tab.drawn().page.locator("#pin").inner_text() == "pin this one instead"
    tab.page.locator("#unpin").click()
    assert tab.drawn().page.locator(".ghost").count() == 0
    assert tab.page.locator("#pin").inner_text() == "pin this one, to compare"


ACROSS = {"order": "pp-dp-ep-cp-tp"}


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("#nowhere", 'no screen "nowhere"'),
        ("#__proto__", "no screen"),
        ("#cut?tp=banana", "tp cannot be 'banana'"),
        ("#cut?pin=%3Fnothing%3D1", ""),
        ("#timeline?from=9&to=x", ""),
        ("#ring?hop=x&ranks=99", "ranks cannot be '99'"),
        ("#schedule?mine=XX", "cannot place"),
        ("#cluster?gpus=-5", "gpus cannot be '-5'"),
        ("#predict?ring-bytes=a&none=1", ""),
    ],
)
def test_an_address_that_nobody_knows_gives_the_page_as_it_begins_with_a_sentence(tab, address, said):
    tab.open(address)
    screen = address[1:].partition("?")[0]
    begun = screen if screen in PAGES else "cut"
    assert tab.page.locator(f"#tab-{begun}[aria-current=page]").count() == 1
    assert tab.page.locator("main svg, main .card").count() > 0
    assert said in tab.page.locator("#said").inner_text()
    assert not said or "what the page begins with" in tab.page.locator("#said").inner_text()


def test_a_piece_says_what_it_is_beside_the_pointer_until_escape(tab):
    tab.open("#cut")
    tab.page.locator("rect[data-says^='compute']").hover()
    assert "compute: " in tab.page.locator("#tip").inner_text()
    tab.page.keyboard.press("Escape")
    assert not tab.page.locator("#tip").is_visible()


def test_a_stop_that_cannot_be_says_why_and_changes_nothing(tab):
    tab.open("#cut")
    address = tab.page.url
    tab.page.locator("#control-tp-8").click(force=True)
    tab.page.locator("#remedy-pp").wait_for()
    assert "does not divide 8 GPUs" in tab.page.locator("#said").inner_text() and tab.page.url == address
    assert tab.page.locator("#control-tp-2").is_checked()
    tab.page.locator("#remedy-pp").click()
    assert "--tp 8" in tab.drawn().page.locator("#command").inner_text()


def test_only_the_answer_to_the_newest_question_is_shown(tab):
    tab.open("#cut")
    for zero in (1, 2, 3, 0, 3):
        tab.page.evaluate(f"go('cut', {{zero: {zero}}})")
    cells = cut.answer({"zero": 3})["cells"]
    assert tab.drawn().numbers()[0] == cells["step"]
    assert tab.page.locator("#control-zero-3").is_checked()


def test_a_search_shows_its_way_and_its_best_plan_can_be_shown(tab):
    tab.open("#cluster?model=llama-3-8b&gpus=8&global_batch=16&sequence=4096&tp=8&pp=1")
    tab.page.locator("#search").click()
    tab.page.wait_for_selector("#plan-0")
    plan = tab.page.locator("#plans td").first.inner_text()
    tab.page.locator("#plan-0").click()
    assert plan.split(",")[0] in tab.drawn().page.locator("main section > p").first.inner_text()
    tab.page.locator("#control-gpus").fill("2048")
    tab.page.locator("#control-gpus").press("Enter")
    tab.drawn().page.locator("#search").click()
    tab.page.locator("#end-search").click()
    assert tab.page.locator("#search").count() == 1


def test_a_models_config_can_be_dropped_in(tab):
    config = Path(__file__).parents[2] / "docs/llama-70b/config.json"
    tab.open("#cluster?model=llama-3-8b&tp=2")
    tab.page.locator("#config").set_input_files(config)
    tab.page.wait_for_url("**model=config.json**")
    command = tab.drawn().page.locator("#command").inner_text()
    assert "--model config.json" in command and "--tp 2" in command
    tab.page.reload()
    assert "70.55 billion" in tab.drawn().page.locator("main section > p").first.inner_text()


@pytest.mark.parametrize("kind", ["SVG", "PNG"])
def test_a_picture_can_be_kept(tab, kind):
    tab.open("#cut")
    with tab.page.expect_download() as saved:
        tab.page.locator("figcaption button", has_text=kind).first.click()
    content = saved.value.path().read_bytes()
    if kind == "PNG":
        assert content.startswith(b"\x89PNG")
    else:
        assert ElementTree.fromstring(content).tag.endswith("svg") and b"var(" not in content


def test_a_timeline_is_zoomed_by_the_mouse_as_by_the_buttons(tab):
    tab.open("#timeline")
    picture = tab.page.locator("svg.zoomed").bounding_box()
    middle = picture["y"] + 20
    tab.page.mouse.move(picture["x"] + 0.4 * picture["width"], middle)
    tab.page.mouse.down()
    tab.page.mouse.move(picture["x"] + 0.6 * picture["width"], middle)
    tab.page.mouse.up()
    seconds = cut.answer({})["timeline"]["seconds"]
    setup = tab.drawn().page.evaluate("read().setup")
    assert 0.15 * seconds < float(setup["to"]) - float(setup["from"]) < 0.35 * seconds
    tab.page.locator("#zoom-whole-step").click()
    assert "from" not in tab.drawn().page.evaluate("read().setup")


def test_a_moment_of_the_timeline_says_what_everybody_does(tab):
    tab.open("#timeline?pp=4&tp=1")
    tab.page.locator("#moment").fill("400")
    said = tab.page.locator("#hovered").inner_text()
    assert "GPU 0-1: bubble" in said and "backward layers.3" in said
    texts = tab.page.locator("svg.zoomed text.mark").all_text_contents()
    assert {"F0", "B0", "B3"} <= set(texts)


def test_read_more_leads_to_the_chapter_and_back(tab):
    tab.open("#schedule?stages=2")
    tab.page.locator("#book").click()
    assert tab.page.locator("h1").inner_text() == "3D: pipeline parallelism"
    assert tab.page.locator("img").first.evaluate("each => each.naturalWidth") > 100
    tab.page.go_back()
    assert tab.drawn().page.evaluate("read().setup.stages") == "2"


def test_the_questions_of_a_chapter_lead_to_it(tab):
    tab.open("#predict")
    links = tab.page.locator("#screen h2 a").evaluate_all("all => all.map(each => each.getAttribute('href'))")
    assert links[:2] == ["/docs/book/0d.md", "/docs/book/1d.md"] and links[-1] == "/docs/book/cluster.md"
    tab.page.locator("#book").click()
    assert tab.page.locator("h1").inner_text() == "0D: one GPU"


def test_1f1b_can_be_placed_with_the_keyboard_alone(tab):
    tab.open("#schedule?stages=2&microbatches=2")
    for rank, letters in ((0, "FFBB"), (1, "FBFB")):
        for letter in letters:
            tab.page.locator(f"#place-{rank}-{letter}").focus()
            tab.page.keyboard.press("Enter")
            tab.drawn()
    assert "As fast as 1F1B" in tab.page.locator(".mine [role=status]").inner_text()


def test_a_hint_says_what_can_come_next_and_goes_to_its_button(tab):
    tab.open("#schedule?mine=F|||")
    tab.page.locator("#hint").click()
    assert (
        tab.page.locator("#said").inner_text()
        == "Soonest of all, at 1 s, GPU 0 can begin F of microbatch 1 on stage 0."
    )
    assert tab.page.evaluate("document.activeElement.id") == "place-0-F"


CONTROLS = (
    ".stops label:not(.illegal) input:not(:checked)",
    "main select:not([disabled])",
    "main input[type=number]",
    "main input[type=range]",
    "main button:not([disabled]):not(.save):not([id^=show-]):not([id^=copy-])",
    "#tabs button",
    "#intro a:not(#book)",  # which leaves the page
)


def turn(page: Any, control: Any, walk: random.Random) -> None:
    """Move one control to any place that it has."""
    kind = control.evaluate("each => each.type || each.tagName")
    if kind == "select-one":
        values = control.locator("option").evaluate_all("all => all.map((each) => each.value)")
        control.select_option(walk.choice(values))
    elif kind == "number":
        control.fill(str(2 ** walk.randrange(13)))
        control.press("Enter")
    elif kind == "range":
        for _ in range(walk.randrange(1, 4)):
            control.press(walk.choice(["ArrowLeft", "ArrowRight", "Home", "End"]))
    else:
        control.click(force=True)


@pytest.mark.parametrize("seed", range(int(os.environ.get("WALKS", 3))))
def test_a_random_walk_over_all_controls_finds_no_error_and_no_stale_number(tab, seed):
    walk = random.Random(seed)
    tab.open(f"#{walk.choice(PAGES)}")
    for _ in range(12):
        if walk.random() < 0.1 and tab.page.evaluate("history.length") > 3:
            tab.page.evaluate(walk.choice(["history.back()", "history.forward()"]))
        else:
            kinds = [tab.page.locator(kind) for kind in CONTROLS]
            found = walk.choice([kind for kind in kinds if kind.count()])
            turn(tab.page, found.nth(walk.randrange(found.count())), walk)
        tab.drawn()
    numbers, command = tab.numbers(), tab.page.locator("#command").inner_text()
    tab.page.reload()
    tab.drawn()
    assert (tab.numbers(), tab.page.locator("#command").inner_text()) == (numbers, command)


@pytest.mark.parametrize("screen", PAGES)
@pytest.mark.parametrize(
    "tab", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True, ids=["light", "dark"]
)
def test_an_accessibility_checker_finds_nothing_serious(tab, screen):
    checker = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    ).Axe()
    tab.open(f"#{screen}")
    found = checker.run(tab.page).response["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found if serious(each)] == []


def test_a_card_says_what_is_to_be_guessed_and_between_which_ends(tab):
    tab.open("#predict")
    card = tab.page.locator("#card-batch-32")
    assert "To guess: How many MB does a step of 4 microbatches need now?" in card.inner_text()
    assert card.locator(".slide .what").all_inner_texts() == ["0 MB", "80 MB"]


@pytest.mark.parametrize("screen", PAGES)
def test_the_bar_below_is_never_empty(tab, screen):
    tab.open(f"#{screen}")
    assert "copy the link to this page" in tab.page.locator("footer").inner_text()
    assert tab.page.locator("#copy").is_visible() == (screen != "predict")


@pytest.mark.parametrize(
    "tab", [{"viewport": {"width": width, "height": 800}} for width in (1280, 360)], indirect=True
)
def test_every_slider_is_wide_enough_to_be_moved(tab):
    tab.open("#predict")
    sliders = tab.page.locator("input[type=range]")
    widths = sliders.evaluate_all("all => all.map((each) => each.getBoundingClientRect().width)")
    assert len(widths) > 30 and min(widths) >= 100


def test_the_strip_of_memory_goes_on_to_the_end_of_the_step(tab):
    tab.open("#timeline")
    right = tab.page.locator("svg.zoomed path[data-says*=' holds weights']").evaluate_all(
        "all => all.map((each) => each.getBBox().x + each.getBBox().width)"
    )
    assert len(right) == 2 and right == pytest.approx([1000, 1000])


@pytest.fixture(scope="module")
def saved_anew(tmp_path_factory) -> Path:
    """The page as it would be saved now, with the answers of the one in docs."""
    answers = re.search(
        r'id="saved">([^<]*)<', (Path(__file__).parents[2] / "docs/explorer.html").read_text()
    )
    assert answers
    path = tmp_path_factory.mktemp("saved") / "explorer.html"
    path.write_text(page(known(), answers[1])[0], "utf-8")
    return path


def test_a_saved_page_tells_what_it_does_not_hold_from_what_cannot_be(tab, saved_anew):
    tab.address = saved_anew.as_uri()
    tab.open("#schedule")
    assert "crossed out" not in tab.page.locator("form").inner_text()
    assert (
        "What is dotted is possible, but its answer is not in this page."
        in tab.page.locator("form").inner_text()
    )
    assert tab.page.locator(".stops .absent").count() > 0 == tab.page.locator(".stops .illegal").count()
    assert "Place actions by hand" not in tab.page.locator("body").inner_text()
    assert tab.page.locator("#book").get_attribute("href") == "book/3d.md"
    tab.open("#predict")
    assert tab.page.locator("#book").get_attribute("href") == "book/0d.md"
    tab.open("#cut")
    assert tab.page.locator(".stops .illegal").count() > 0


def test_a_saved_page_holds_every_collective(tab, saved_anew):
    tab.address = saved_anew.as_uri()
    tab.open("#ring")
    for collective in rings.COLLECTIVES:
        tab.page.locator("#control-collective").select_option(collective)
        assert f"collective {collective} " in tab.drawn().page.locator("#command").inner_text()


def test_the_saved_page_needs_no_server_and_greys_what_it_does_not_hold(tab):
    saved = Path(__file__).parents[2] / "docs/explorer.html"
    tab.address = saved.as_uri()
    tab.page.goto(f"{tab.address}#cut")
    numbers = tab.drawn().numbers()
    assert numbers[0] == cut.answer({})["cells"]["step"]
    tab.page.locator("#control-zero-2").check(force=True)
    assert tab.drawn().numbers() != numbers
    tab.page.locator("#control-gpus-4").click(force=True)
    assert "holds no run" in tab.page.locator("#said").inner_text() and "gpus=" not in tab.page.url
    for screen in PAGES:
        tab.page.locator(f"#tab-{screen}").click()
        tab.drawn()
        if screen == "schedule":
            assert (
                "ndparallel explore opens a page on which you build a schedule of your own"
                in tab.page.locator("#screen").inner_text()
            )
    tab.page.locator("#guess-ring-bytes").fill("200")
    tab.page.locator("#show-ring-bytes").click()
    tab.page.locator("#card-ring-bytes div[role=status]").wait_for()
    assert "188 MB. You said 200 MB" in tab.page.locator("#card-ring-bytes").inner_text()


def serious(violation: dict) -> bool:
    return violation["impact"] in ("serious", "critical")


@pytest.mark.parametrize("tab", [{"viewport": {"width": 360, "height": 740}}], indirect=True, ids=["360 px"])
def test_on_a_narrow_screen_a_reason_is_seen_where_the_stop_was_chosen(tab):
    tab.open("#cut")
    tab.page.locator("#control-gpus-2").click(force=True)
    said = tab.page.locator("#said")
    said.get_by_text("choose gpus 4").wait_for()
    box = said.bounding_box()
    assert box and box["y"] > 0 and box["y"] + box["height"] <= 740
    tab.page.locator("#control-gpus_per_node-2").check(force=True)
    assert tab.drawn().page.locator("#said").inner_text() == ""


@pytest.mark.parametrize("screen", PAGES)
@pytest.mark.parametrize("tab", [{"viewport": {"width": 360, "height": 740}}], indirect=True, ids=["360 px"])
def test_on_a_phone_nothing_is_wider_than_the_screen_and_no_word_is_broken(tab, screen):
    tab.open(f"#{screen}")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360
    ends = tab.page.locator("svg").evaluate_all(
        "all => all.map((each) => each.getBoundingClientRect().right)"
    )
    assert max(ends, default=0) <= 360  # no picture has to be moved sideways
    words = tab.page.locator("td:first-child").filter(has_text=re.compile(r"^\w+$"))
    heights = words.evaluate_all("all => all.map((cell) => cell.clientHeight)")
    assert max(heights, default=0) < 40  # one word, one line
