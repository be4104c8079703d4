"""What `make docs-look` finds wrong with a page. It needs playwright and a Chromium."""

import pytest
from support.paths import ROOT

pytest.importorskip("playwright", reason="playwright is not installed: make docs-look")
PAGE = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<body style="margin: 0"><article style="padding: 0">{}<p>{}</p></article>"""
WRONG = {
    '<div style="width: 3000px">wide</div>': "reaches from 0 to 3000",
    '<p style="width: 90px; overflow: hidden; white-space: nowrap">one line of text</p>': "cut off",
    '<img src="nothing.png">': "did not load",
    "<h2></h2>": "is empty",
    f'<div class="language-python"><pre>{"x = 1; " * 20}</pre></div>': "has no colours",
    '<script src="http://127.0.0.1:9/nothing.js"></script>': "asks for http:",
    "<script>undefined.nothing</script>": "Cannot read properties",
}
RIGHT = """<div style="overflow-x: auto"><pre style="width: 2000px">wide</pre></div>
<div class="language-python" style="overflow-x: auto"><pre><span style="color: red">import</span>
<span>torch</span> {}</pre></div>""".format("# and so on, for as long as it takes" * 3)


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with pytest.MonkeyPatch.context() as path:
        path.syspath_prepend(ROOT / "tools")
        import docs_look
    with sync_playwright() as playwright:
        found = docs_look.launch(playwright)
        if found is None:
            pytest.skip(docs_look.MISSING)
        yield docs_look, found
        found.close()


def wrong_with(browser, site, html):
    docs_look, chromium = browser
    (site / "page.html").write_text(PAGE.format(html, "words " * 50))
    docs_look.PICTURES[:] = ["page"]
    return docs_look.look(chromium, site, site, "phone", "light")


@pytest.mark.parametrize("html", WRONG, ids=WRONG.values())
def test_what_is_wrong_is_found(browser, html, tmp_path):
    assert any(WRONG[html] in text for text in wrong_with(browser, tmp_path, html))


def test_what_scrolls_by_itself_is_right(browser, tmp_path):
    assert wrong_with(browser, tmp_path, RIGHT) == []
    assert (tmp_path / "page_phone_light.png").stat().st_size > 1000
