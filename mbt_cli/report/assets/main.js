"use strict";
// The choice of the view.

(() => {
  const { el } = mbt;
  const VIEWS = [["tables", "Tables"], ["compare", "Compare"], ["figures", "Figures"], ["traces", "Traces"], ["lineage", "Lineage"], ["manifest", "Manifest"]];
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
    if (own === 1) performance.mark("first view");
  };

  let study = "";
  mbt.theme();
  window.addEventListener("hashchange", show);
  mbt.load("overview").then((overview) => {
    study = overview.study;
    document.getElementById("study").textContent = study;
    return show();
  }).catch((error) => {
    content.replaceChildren(el("p", { class: "empty bad" }, `${error.message}. Copy the whole folder of the page.`));
  });
})();
