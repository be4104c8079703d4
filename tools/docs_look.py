"""Pictures of the documentation's pages and a check of their layout, in a headless browser.

    python tools/docs_look.py SITE OUT

SITE is the folder that `make docs` builds; it is opened from the disk, so that whatever asks the
network is found. Every page is laid out as on a phone and on a desk, in light and dark, and its own
DOM is asked: no page and no block wider than the window unless the block scrolls, no text cut off,
no picture that did not load, no empty heading or code, and code that has colours. Pages in PICTURES
are drawn into OUT. At last a word is searched for. The exit status is 1 when something is wrong,
2 when there is no browser.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

PICTURES = ["index", "recipes", "comparison", "reference", "how_it_works"]
WINDOWS = {"phone": (390, 844), "desk": (1280, 900)}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MISSING = (
    "docs-look: there is no Chromium; get one with `apt-get install chromium`, or with "
    "`python -m playwright install --with-deps chromium`"
)

# What is wrong with a page, as sentences; it runs in the page.
LOOK = """
() => {
  const wide = innerWidth, wrong = [], root = document.documentElement;
  const words = e => (e.innerText || e.src || "").trim().slice(0, 40);
  const name = e => `<${e.tagName.toLowerCase()}> "${words(e)}"`;
  if (root.scrollWidth > wide) wrong.push(`the page is ${root.scrollWidth} wide`);
  const article = document.querySelector("article");
  if (!article || article.innerText.trim().length < 100) return [...wrong, "there is no text"];
  const scrolls = e => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  const seen = e => e.getClientRects().length > 0;
  const blocks = "pre,code,table,img,svg,p,li,h1,h2,h3,h4,div,details,a";
  for (const e of article.querySelectorAll(blocks)) {
    if (!seen(e) || getComputedStyle(e).visibility === "hidden") continue;
    let up = e.parentElement;
    while (up !== article && !scrolls(up)) up = up.parentElement;
    const box = e.getBoundingClientRect();
    if (up === article && (box.right > wide + 1 || box.left < -1))
      wrong.push(`${name(e)} reaches from ${box.left | 0} to ${box.right | 0}`);
    const hides = ["hidden", "clip"].includes(getComputedStyle(e).overflowX);
    if (hides && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 1)
      wrong.push(`${name(e)} is cut off`);
  }
  for (const e of article.querySelectorAll("img"))
    if (!e.complete || !e.naturalWidth) wrong.push(`${name(e)} did not load`);
  for (const e of article.querySelectorAll("h1,h2,h3,pre"))
    if (seen(e) && !e.innerText.replace("¶", "").trim()) wrong.push(`${name(e)} is empty`);
  const colours = e => new Set([...e.querySelectorAll("span")].map(s => getComputedStyle(s).color));
  for (const e of article.querySelectorAll(".language-python pre"))
    if (e.innerText.length > 80 && colours(e).size < 2) wrong.push(`${name(e)} has no colours`);
  return wrong;
}
"""


def launch(playwright):
    """Chromium of the system, or the one that playwright has; None without either."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    path = found or playwright.chromium.executable_path
    if not Path(path).exists():
        return None
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


def look(browser, site: Path, out: Path, window: str, scheme: str) -> list[str]:
    """What is wrong with the pages of the site in one window; draws those that are wanted."""
    width, height = WINDOWS[window]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    found: list[str] = []
    page.on("request", lambda r: r.url.startswith("http") and found.append(f"asks for {r.url}"))
    page.on("pageerror", lambda error: found.append(str(error)))
    wrong = []
    for file in sorted(site.rglob("*.html")):
        if file.name == "404.html":  # its links are those of a server
            continue
        found.clear()
        page.goto(file.resolve().as_uri())
        name = str(file.relative_to(site).with_suffix(""))
        wrong += [f"{name}, {window}, {scheme}: {t}" for t in page.evaluate(LOOK) + found]
        if name in PICTURES:
            page.set_viewport_size({"width": width, "height": 3 * height})
            page.screenshot(path=out / f"{name}_{window}_{scheme}.png")
            page.set_viewport_size({"width": width, "height": height})
    context.close()
    return wrong


def search(browser, site: Path, out: Path) -> list[str]:
    """What is wrong with searching, from the disk."""
    page = browser.new_page(viewport=dict(zip(("width", "height"), WINDOWS["desk"], strict=True)))
    page.goto((site / "index.html").resolve().as_uri())
    page.click("input[data-md-component=search-query]")
    page.keyboard.type("budget")
    try:
        page.wait_for_selector(".md-search-result__item", timeout=20_000)
    except Exception:
        return ["a search for 'budget' finds nothing"]
    finally:
        page.screenshot(path=out / "search.png")
    return []


def main(site: str, out: str) -> int:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("docs-look: there is no playwright; get it with `pip install playwright`")
        return 2
    Path(out).mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        if browser is None:
            print(MISSING)
            return 2
        folders = Path(site), Path(out)
        wrong = [
            f"there is no page {n}" for n in PICTURES if not (folders[0] / f"{n}.html").exists()
        ]
        for window in WINDOWS:
            for scheme in ("light", "dark"):
                wrong += look(browser, *folders, window, scheme)
        wrong += search(browser, *folders)
        browser.close()
    print("\n".join([*wrong, f"docs-look: {len(wrong)} wrong; pictures are in {out}"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
