"""The site, served on this machine, and a browser that sees it. script/site --check runs these tests."""

import functools
import http.server
import os
import pathlib
import threading

import pytest
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = ROOT / "build/site/html"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="session")
def server():
    """The address of the site, without a slash at its end."""
    handler = functools.partial(_Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=os.environ["TOWER_CHROMIUM"], args=["--no-sandbox", "--disable-gpu"]
        )
        yield running
        running.close()


@pytest.fixture
def open_page(browser):
    """Makes a page of a browser with settings of its own, which notes what goes wrong in it."""
    contexts = []

    def made(**settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.wrong = []
        page.on(
            "console", lambda said: said.type in ("error", "warning") and page.wrong.append(f"{page.url}: {said.text}")
        )
        page.on("pageerror", lambda error: page.wrong.append(f"{page.url}: {error}"))

        def failed(request):
            if request.failure != "net::ERR_ABORTED":  # what a page still loads when the next is asked for
                page.wrong.append(f"{page.url}: {request.url}: {request.failure}")

        def answered(response):
            if response.status >= 400:
                page.wrong.append(f"{page.url}: {response.url}: {response.status}")

        def outside(request):
            if not request.url.startswith(("http://127.0.0.1:", "file://", "data:")):
                page.wrong.append(f"{page.url} asks for {request.url}: it must work without a network")

        page.on("request", outside)
        page.on("requestfailed", failed)
        page.on("response", answered)
        return page

    yield made
    for context in contexts:
        context.close()


def pages(sources=False):
    """The paths of the site's pages; those of source files only where they are asked for."""
    found = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
    return [path for path in found if sources or not path.startswith("source/")]
