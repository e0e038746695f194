"use strict";
// The choice of the view and of the colours.

(() => {
  const { el } = mbt;
  const VIEWS = [["tables", "Tables"], ["figures", "Figures"], ["traces", "Traces"], ["lineage", "Lineage"], ["manifest", "Manifest"]];
  const THEMES = { auto: "system", light: "light", dark: "dark" };
  const content = document.getElementById("content");
  const links = new Map(VIEWS.map(([name, title]) => [name, el("a", { href: `#/${name}` }, title)]));
  document.getElementById("views").append(...links.values());

  let drawn = 0;
  const show = async () => {
    drawn += 1;
    const own = drawn;
    const { view, values } = mbt.state();
    const name = mbt.views[view] ? view : "tables";
    for (const [other, link] of links) {
      if (other === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${name} · ${study} · mbt report`;
    try {
      const node = await mbt.views[name](values);
      if (own === drawn) content.replaceChildren(node);
    } catch (error) {
      content.replaceChildren(el("p", { class: "empty bad" }, `${error.message}. Copy the whole folder of the page.`));
    }
    document.documentElement.dataset.ready = name;
  };

  let study = "";
  const remembered = () => { try { return localStorage.getItem("mbt-theme") || "auto"; } catch { return "auto"; } };
  const paint = (theme) => {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    button.textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
    button.setAttribute("aria-label", `Colours: ${THEMES[theme]}`);
    button.title = `Colours: ${THEMES[theme]}`;
    try { localStorage.setItem("mbt-theme", theme); } catch { /* a page opened as a file may have no storage */ }
  };
  document.getElementById("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    paint(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
  });
  paint(THEMES[remembered()] ? remembered() : "auto");

  window.addEventListener("hashchange", show);
  mbt.load("overview").then((overview) => {
    study = overview.study;
    document.getElementById("study").textContent = study;
    return show();
  }).catch((error) => {
    content.replaceChildren(el("p", { class: "empty bad" }, `${error.message}. Copy the whole folder of the page.`));
  });
})();
