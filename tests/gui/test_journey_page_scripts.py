"""Journeys in a browser: what the script of the page does, in a page of its own."""

from __future__ import annotations

from typing import Any

from studio_page import PAGE_TEST

from splatstudio.gui.server.viser_private import page_script

pytestmark = PAGE_TEST


def test_the_arrow_keys_of_a_slider_do_not_reach_the_camera_and_pictures_have_names(browser: Any) -> None:
    blank = browser.new_page()
    icon = "<button><svg class='tabler-icon tabler-icon-list-search'></svg></button>"
    blank.set_content(f"<div id=slider role=slider tabindex=0>a</div><div id=canvas tabindex=0>b</div>{icon}")
    blank.evaluate(
        "() => { window.heard = [];"
        " for (const to of [window, document])"
        "   to.addEventListener('keydown', event => window.heard.push(event.key)); }"
    )
    blank.evaluate(f"() => {{ {page_script()} }}")
    blank.focus("#slider")
    blank.keyboard.press("ArrowRight")
    assert blank.evaluate("window.heard") == []
    blank.keyboard.press("p")
    blank.focus("#canvas")
    blank.keyboard.press("ArrowLeft")
    assert blank.evaluate("window.heard") == ["p", "p", "ArrowLeft", "ArrowLeft"]
    blank.keyboard.press("Control+a")
    assert "a" not in blank.evaluate("window.heard"), "the camera does not move with it"
    blank.locator("button[aria-label='All commands']").wait_for(state="attached")
    blank.close()


def test_what_a_button_brings_stays_in_sight_until_somebody_scrolls(browser: Any) -> None:
    blank = browser.new_page()
    blank.set_content(
        "<div id=root style='height:200px; overflow:auto'><button id=go>Export</button>"
        "<div id=above style='height:900px'></div><div id=end></div></div>"
    )
    blank.evaluate(f"() => {{ {page_script()} }}")
    in_sight = (
        "() => { const box = document.getElementById('root').getBoundingClientRect();"
        " return document.querySelector('#end button').getBoundingClientRect().bottom <= box.bottom + 1; }"
    )
    grow = "height => { document.getElementById('above').style.height = height; }"
    blank.click("#go")
    blank.evaluate("document.getElementById('end').innerHTML = '<button>Download a.ply (1 MB)</button>'")
    blank.wait_for_function(in_sight)
    blank.evaluate(grow, "1800px")
    assert not blank.evaluate(in_sight)
    blank.wait_for_function(in_sight)
    blank.evaluate("document.getElementById('root').dispatchEvent(new WheelEvent('wheel', {bubbles: true}))")
    blank.evaluate(grow, "2700px")
    blank.wait_for_timeout(800)
    assert not blank.evaluate(in_sight), "it is not taken from who has scrolled"
    blank.close()


def test_a_page_says_that_its_studio_is_gone_until_it_is_back(browser: Any) -> None:
    lost = browser.new_page()
    lost.evaluate(
        "() => { window.setInterval = (call, wait) => { if (wait === 2500) window.ask = call; };"
        " window.fetch = async () => {"
        "   if (!window.status_) throw new TypeError('Failed to fetch');"
        "   return {ok: window.status_ === 200, status: window.status_}; }; }"
    )
    lost.evaluate(f"() => {{ {page_script()} }}")
    alert = lost.get_by_role("alert")
    for status, told in (
        (200, None),
        (0, None),  # one may be missed
        (0, "No connection to the studio"),
        (403, "The studio was restarted"),
        (200, None),
        (0, None),
    ):
        lost.evaluate("async status => { window.status_ = status; await window.ask(); }", status)
        assert alert.count() == (0 if told is None else 1)
        assert told is None or told in alert.inner_text()
    lost.close()


def test_a_page_that_reconnects_is_dressed_once(browser: Any) -> None:
    blank = browser.new_page()
    blank.evaluate(
        """() => {
          window.made = [];
          window.setInterval = () => window.made.push("interval");
          document.addEventListener = kind => window.made.push(kind);
          document.body.addEventListener = kind => window.made.push(kind);
        }"""
    )
    made = []
    for _ in range(2):
        blank.evaluate(f"() => {{ {page_script()} }}")
        made.append(
            (blank.evaluate("window.made"), blank.evaluate("document.querySelectorAll('style').length"))
        )
    assert (
        made[0] == made[1] and {"click", "interval", "keydown", "keyup"} < set(made[0][0]) and made[0][1] > 0
    )
    blank.close()


def test_a_training_that_ends_is_told_to_a_browser_that_wants_it(browser: Any) -> None:
    blank = browser.new_page()
    blank.set_content(
        "<span data-splatstudio=name>fox</span><span data-splatstudio=state>Training</span>"
        "<input type=checkbox data-own=notify>"
    )
    blank.evaluate(
        "() => { window.told = [];"
        " Object.defineProperty(window, 'isSecureContext', {value: true});"
        " window.Notification = class { constructor(text) { window.told.push(text); } };"
        " Notification.permission = 'default';"
        " Notification.requestPermission = async () => Notification.permission = window.answer; }"
    )
    blank.evaluate(f"() => {{ {page_script()} }}")
    says = "state => { document.querySelector('[data-splatstudio=state]').textContent = state; }"
    wait = "() => new Promise(done => setTimeout(done, 1100))"
    for answer, expected in (("denied", []), ("granted", ["fox: Finished"])):
        blank.evaluate("answer => { window.answer = answer; }", answer)
        blank.locator("[data-own=notify]").click()
        blank.evaluate(wait)
        assert blank.locator("[data-own=notify]").is_checked() == (answer == "granted")
        blank.evaluate(says, "Finished")
        blank.evaluate(wait)
        assert blank.evaluate("window.told") == expected
        blank.evaluate(says, "Training")
        blank.evaluate(wait)
    blank.close()


def test_a_browser_is_told_once_that_it_draws_without_a_gpu(browser: Any) -> None:
    blank = browser.new_page()
    notices = "".join(
        "<div class=mantine-Notification-root onclick=this.remove()>"
        f"<div class=mantine-Notification-title>{title}</div><button></button></div>"
        for title in ("Software WebGL rendering detected", "Another one")
    )
    blank.route("**/*", lambda route: route.fulfill(body=notices, content_type="text/html"))
    wait = "() => new Promise(done => setTimeout(done, 400))"
    for expected in (2, 1, 1):
        blank.goto("http://studio.test/")
        blank.evaluate(f"() => {{ {page_script()} }}")
        blank.evaluate(wait)
        assert blank.locator(".mantine-Notification-root").count() == expected
    assert blank.get_by_text("Another one").count() == 1
    blank.close()
