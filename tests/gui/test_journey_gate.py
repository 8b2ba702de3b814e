"""The real page of viser behind the gate, in a real browser."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import viser
from gate_client import TOKEN, wait
from gui_parts import TIMEOUT
from studio_page import CANVAS, CLOSE_NOTICES, PAGE_TEST, press_on_the_scene

from splatstudio.gui.server.access import Listen
from splatstudio.gui.server.gate import GatedServer, open_server

pytestmark = PAGE_TEST

FOREIGN_PAGE = """<script>
const outcome = {};
const port = new URLSearchParams(location.search).get("port");
const version = new URLSearchParams(location.search).get("version");
function socket(name) {
  return new Promise(done => {
    const ws = new WebSocket(`ws://${name}:${port}/`, ["viser-v" + version]);
    ws.onmessage = () => done("read");
    ws.onerror = ws.onclose = () => done("refused");
  });
}
function page(name) {
  return fetch(`http://${name}:${port}/`, {credentials: "include"})
    .then(answer => answer.text()).then(() => "read", () => "refused");
}
Promise.all([socket("127.0.0.1"), socket("localhost"), page("127.0.0.1"), page("localhost")])
  .then(results => { document.title = results.join(" "); });
</script>"""


@pytest.fixture
def gated() -> Iterator[GatedServer]:
    server = open_server(Listen(port=0), token=TOKEN)
    yield server
    server.stop()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 900, "height": 500})
    context.set_default_timeout(1000 * TIMEOUT)
    yield context.new_page()
    context.close()


def test_the_page_of_viser_works_through_the_gate(gated: GatedServer, page: Any, tmp_path: Path) -> None:
    gui = gated.server.gui
    button = gui.add_button("Start training")
    slider = gui.add_slider("Steps", min=0, max=10, step=1, initial_value=3)
    choice = gui.add_dropdown("Mode", ("rgb", "depth"))
    upload = gui.add_upload_button("Load path")
    pressed = threading.Event()
    uploaded = threading.Event()
    button.on_click(lambda _: pressed.set())
    upload.on_upload(lambda _: uploaded.set())
    file = tmp_path / "camera path.json"
    file.write_bytes(b"{}" * 400_000)  # two parts

    answer = page.goto(f"http://127.0.0.1:{gated.port}/")
    assert answer.status == 403
    assert "open the URL printed in the terminal" in page.inner_text("body")
    assert (
        page.locator("link[rel=icon]").get_attribute("href").startswith("data:image/svg")
    )  # asks for no more
    gated.gate.refused.clear()
    page.goto(gated.url)
    page.get_by_role("button", name="Start training").click()
    assert TOKEN not in page.url
    assert page.locator("link[rel=icon]").get_attribute("href").startswith("data:image/svg")
    wait(gated.server.get_clients)
    assert pressed.wait(TIMEOUT)
    number = page.locator(f"[id='{slider._impl.uuid}']").locator("xpath=..").get_by_role("textbox")
    number.fill("8")
    wait(lambda: slider.value == 8)
    page.get_by_role("textbox", name="Mode").or_(page.locator(f"[id='{choice._impl.uuid}']")).first.click()
    page.get_by_role("option", name="depth").click()
    wait(lambda: choice.value == "depth")
    page.locator("input[type=file]").set_input_files(file)
    assert uploaded.wait(TIMEOUT)
    assert (upload.value.name, len(upload.value.content)) == ("camera path.json", 800_000)

    (client,) = gated.server.get_clients().values()
    before = client.camera.position.copy()
    page.locator(CANVAS).wait_for()
    page.evaluate(CLOSE_NOTICES)  # they lie over the scene, and one more comes for the upload
    press_on_the_scene(page, 400, 350)
    page.mouse.move(480, 380, steps=8)
    page.mouse.up()
    wait(lambda: (client.camera.position != before).any())
    assert dict(gated.gate.refused) == {}, "the page says something that the gate does not let through"


def test_a_page_of_another_origin_reads_nothing(gated: GatedServer, page: Any) -> None:
    class Foreign(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(FOREIGN_PAGE.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as foreign:
        threading.Thread(target=foreign.serve_forever, daemon=True).start()
        # The browser is logged in; both names are the same site, so that it even sends its cookie.
        for own in (gated.url, f"http://localhost:{gated.port}/?token={TOKEN}"):
            assert page.goto(own, wait_until="commit").status == 200
        before = gated.gate.refused["origin"]
        for name in ("localhost", "127.0.0.1"):
            address = f"http://{name}:{foreign.server_port}/?port={gated.port}&version={viser.__version__}"
            page.goto(address)
            page.wait_for_function("document.title.split(' ').length === 4")
            assert page.title() == "refused refused refused refused"
        foreign.shutdown()
    assert gated.gate.refused["origin"] >= before + 6
