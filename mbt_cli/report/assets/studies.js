"use strict";
// Several studies: the state of each, its models and its main results.

(() => {
  const { el } = mbt;
  const OPEN = 3; // tables that are open at first
  const content = document.getElementById("content");
  const search = document.querySelector("#find input");

  const card = (study, number) => {
    const date = study.made ? el("time", { datetime: study.made.replace(" ", "T") + "Z" }, `${study.made} UTC`) : null;
    const facts = [date, study.models.length ? mbt.some("model", study.models) : null, cells(study)].filter(Boolean);
    return el("section", { class: "card study", "aria-label": study.name },
      el("h2", {}, study.link ? el("a", { href: study.link }, study.name) : study.name, " ", state(study)),
      facts.length ? el("p", { class: "head" }, facts.flatMap((fact, k) => (k ? [" · ", fact] : [fact]))) : null,
      study.problem ? el("p", { class: "warning" }, study.problem) : null,
      study.table
        ? el("details", { open: number < OPEN }, el("summary", {}, study.table.title), mbt.grid(study.table, null))
        : el("p", { class: "where" }, "No report yet."));
  };

  /** The state in a word: what needs somebody first. */
  const state = ({ cells }) => {
    const [name, words] = [["failed", "bad"], ["running", "warn"], ["pending", "warn"], ["cancelled", "none"], ["missing", "none"]]
      .find(([doing]) => cells[doing]) || ["done", "good"];
    return el("span", { class: `tag ${words}` }, name === "missing" ? "not finished" : name);
  };

  const cells = ({ cells }) => {
    const all = Object.values(cells).reduce((sum, count) => sum + count, 0);
    const others = Object.entries(cells).filter(([doing, count]) => doing !== "done" && count);
    if (!all) return null;
    return `${mbt.count(cells.done || 0)} of ${mbt.count(all)} cells done${others.map(([doing, count]) => `, ${mbt.count(count)} ${doing}`).join("")}`;
  };

  const show = (found) => {
    const words = search.value.toLowerCase().trim().split(/\s+/).filter(Boolean);
    const fits = (study) => words.every((word) => [study.name, ...study.models].some((text) => text.toLowerCase().includes(word)));
    const kept = found.studies.filter(fits);
    content.replaceChildren(el("div", { class: "page" },
      el("p", { class: "head", role: "status" }, kept.length === found.studies.length ? `${mbt.count(kept.length)} studies in ${found.title}` : `${mbt.count(kept.length)} of ${mbt.count(found.studies.length)} studies`),
      kept.map(card)));
    document.documentElement.dataset.ready = "studies";
  };

  mbt.theme();
  mbt.load("studies").then((found) => {
    search.addEventListener("input", () => show(found));
    show(found);
  }).catch((error) => {
    content.replaceChildren(el("p", { class: "empty bad" }, `${error.message}. Copy the whole folder of the page.`));
  });
})();
