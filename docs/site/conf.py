"""Sphinx's configuration of the site; script/site calls it, and says where its sources are."""

import os
import pathlib
import re
import sys

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here))

tower_root = os.environ.get("TOWER_ROOT", str(here.parent.parent))
_version = (pathlib.Path(tower_root) / "include/tower/version.h").read_text(encoding="utf-8")

project = "Tower"
author = "The authors of Tower"
project_copyright = "the authors of Tower. BSD 3-Clause"
version = release = ".".join(
    re.search(rf"TOWER_VERSION_{part} (\d+)", _version)[1] for part in ("MAJOR", "MINOR", "PATCH")
)

extensions = ["myst_parser", "sphinx_copybutton", "tower_site.extension"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
exclude_patterns = ["figures", "extra"]
myst_enable_extensions = ["colon_fence", "attrs_inline", "attrs_block"]
myst_heading_anchors = 4
suppress_warnings = ["myst.strikethrough"]

# Names in signatures that are LibTorch's or the standard library's have no page here; links of our own are checked by
# the tests in a browser.
nitpicky = False
primary_domain = "cpp"
highlight_language = "cpp"
cpp_maximum_signature_line_length = 92
python_maximum_signature_line_length = 92
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"Tower {version}"
html_baseurl = ""
html_static_path = [str(here / "static")]
templates_path = [str(here / "templates")]
html_extra_path = [str(pathlib.Path(tower_root) / "build/site/source/extra")]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_favicon = str(here / "static/tower.svg")
html_copy_source = False
html_show_sphinx = False
html_use_index = True
html_additional_pages = {"search": "tower_search.html"}
html_theme_options = {
    "light_logo": "tower.svg",
    "dark_logo": "tower-dark.svg",
    "sidebar_hide_name": False,
    "top_of_page_buttons": [],
    "light_css_variables": {
        "color-brand-primary": "#1d4f91",
        "color-brand-content": "#1d4f91",
        "color-brand-visited": "#5b3a8e",
        "font-stack": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
        "font-stack--monospace": "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8fbcff",
        "color-brand-content": "#8fbcff",
        "color-brand-visited": "#c9a6ff",
    },
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
copybutton_exclude = ".linenos, .gp"
copybutton_selector = "div:not(.output) > div.highlight > pre"
