"""The site in a browser: what a reader does, in light and dark, on a desk and on a phone."""

import os

from axe_playwright_python.sync_playwright import Axe
from conftest import SITE, pages

# A page of each kind. TOWER_SITE_PAGES=all has axe look at every page, which takes many minutes.
KINDS = [
    "index.html",
    "docs/tutorials/first_program.html",
    "docs/looking_inside.html",
    "api/cpp/axes.html",
    "api/python/looking_inside.html",
    "benchmarks.html",
    "search.html?q=checkpoint_name",
    "source/include/tower/errors.h.html",
]
PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


def test_no_page_has_an_error_or_asks_for_something_outside(open_page, server):
    page = open_page()
    for path in pages():
        page.goto(f"{server}/{path}", wait_until="load")
    assert not page.wrong, "\n".join(page.wrong)


def test_no_page_is_wider_than_a_phone(open_page, server):
    page = open_page(**PHONE)
    wide = []
    for path in pages() + [kind for kind in KINDS if kind.startswith("source/")]:
        page.goto(f"{server}/{path}", wait_until="domcontentloaded")
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if over > 0:
            wide.append(f"{path}: {over} px")
    assert not wide, "\n".join(wide)


def test_axe_finds_nothing(open_page, server):
    """Contrast in light and dark, landmarks, names of controls, and the rest of axe's rules."""
    page = open_page(color_scheme="light")
    found = []
    for path in pages() if os.environ.get("TOWER_SITE_PAGES") == "all" else KINDS:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.goto(f"{server}/{path}", wait_until="load")
            # The navigation is the same on all pages. What figures are drawn of is not axe's (test_content.py has their
            # colours); that they have names is.
            seen = [".tower-figure > *"] if path == KINDS[0] else [".tower-figure > *", ".sidebar-tree"]
            where = {"include": [["html"]], "exclude": [[each] for each in seen]}
            rules = {} if scheme == "light" else {"runOnly": ["color-contrast"]}
            for violation in Axe().run(page, context=where, options=rules).response["violations"]:
                for node in violation["nodes"][:3]:
                    what = f"{node['html'][:160]}: {node['failureSummary'][:300]}"
                    found.append(f"{path}, {scheme}: {violation['id']}: {what}")
    assert not found, "\n".join(found)


def test_search_finds_names_first_and_leads_to_them(open_page, server):
    page = open_page()
    page.goto(f"{server}/index.html")
    page.locator(".sidebar-search").fill("vmap")
    page.locator(".sidebar-search").press("Enter")
    page.wait_for_url("**/search.html?q=vmap*")
    names = page.locator("#tower-results li a").all_inner_texts()
    assert {"tower::vmap", "torch_tower.vmap"} <= set(names[:3])
    page.get_by_role("link", name="tower::vmap", exact=True).first.click()
    page.wait_for_url("**/api/cpp/transforms.html#*")
    anchor = page.url.split("#")[1]
    assert "vmap" in page.locator(f"[id='{anchor}']").inner_text()
    assert not page.wrong


def test_search_works_without_a_server_and_while_one_writes(open_page):
    page = open_page()
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=checkpoint")
    first = page.locator("#tower-results li").first
    assert "checkpoint" in first.inner_text()
    page.locator("#tower-query").fill("sparse jacobian")
    assert "sparse" in page.locator("#tower-results li").first.inner_text().lower()
    page.locator("#tower-query").fill("vmapq")
    assert page.locator("#tower-results li").count() == 0
    assert page.locator("#tower-count").inner_text() == "0 places"
    assert not page.wrong


def test_a_slash_goes_to_the_search(open_page, server):
    page = open_page()
    page.goto(f"{server}/docs/tour.html")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.classList.contains('sidebar-search')")


def test_code_is_copied_as_it_stands_in_the_document(open_page, server):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    page.goto(f"{server}/docs/tutorials/first_program.html")
    block = page.locator("div.highlight-cpp").first
    block.hover()
    block.locator("button.copybtn").click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text.length > 0)")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("#include <ATen/Functions.h>\n#include <tower/tower.h>\n")
    assert copied.strip() == block.locator("pre").inner_text().strip()
    assert page.locator("div.output button.copybtn").count() == 0


def test_the_switch_turns_figures_dark_with_the_page(open_page, server):
    page = open_page(color_scheme="light")
    page.goto(f"{server}/benchmarks.html")
    ink = "getComputedStyle(document.querySelector('.tower-figure')).getPropertyValue('--ink')"
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ink), page.evaluate(paper)
    for _ in range(3):  # auto, light, dark
        page.locator(".theme-toggle-content .theme-toggle").click()
        if page.evaluate("document.body.dataset.theme") == "dark":
            break
    dark = page.evaluate(ink), page.evaluate(paper)
    assert light[0] != dark[0] and light[1] != dark[1]


def test_figures_scroll_by_themselves_on_a_phone(open_page, server):
    page = open_page(**PHONE)
    page.goto(f"{server}/benchmarks.html")
    box = page.locator(".drawing").first
    assert box.evaluate("box => box.scrollWidth > box.clientWidth && box.clientWidth <= 360")


def test_the_navigation_opens_on_a_phone(open_page, server):
    page = open_page(**PHONE)
    page.goto(f"{server}/index.html")
    entry = page.locator(".sidebar-tree").get_by_role("link", name="Benchmarks", exact=True)
    assert not entry.is_visible() or entry.bounding_box()["x"] < 0
    page.locator(".mobile-header .nav-overlay-icon").click()
    page.wait_for_function("document.querySelector('.sidebar-drawer').getBoundingClientRect().x >= 0")
    entry.click()
    page.wait_for_url("**/benchmarks.html")
