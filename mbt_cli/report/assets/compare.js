"use strict";
// Two methods on every benchmark: paired differences with their intervals, and the mean.

(() => {
  const { el } = mbt;
  const SVG = "http://www.w3.org/2000/svg";
  const [WIDTH, HEIGHT, EDGE] = [220, 52, 6];

  mbt.views.compare = async (values) => {
    const overview = await mbt.load("overview");
    const { compare } = overview;
    if (!compare) return el("div", { class: "page" }, el("p", { class: "empty" }, "This report has no two methods with scores."));
    const find = (name) => compare.cells.findIndex((cells) => cells.includes(values.get(name)));
    let a = Math.max(0, find("a"));
    let b = find("b");
    if (b < 0 || b === a) b = a === 0 ? 1 : 0;
    const page = el("div", { class: "page" });

    const show = async (focus) => {
      mbt.note("compare", { a: address(compare, a), b: address(compare, b) });
      const found = await mbt.load(`compare-${Math.min(a, b)}`);
      const metrics = found[String(Math.max(a, b))];
      const options = compare.methods.map((name, k) => [String(k), name]);
      const choose = (side) => (value) => {
        const wanted = Number(value);
        // a method chosen on both sides moves the other one to where it was
        if (side === "a") [a, b] = [wanted, wanted === b ? a : b];
        else [a, b] = [wanted === a ? b : a, wanted];
        show(`method-${side}`);
      };
      const swap = () => { [a, b] = [b, a]; show("swap"); };
      page.replaceChildren(
        el("section", { class: "card" },
          el("h2", {}, "Two methods on every benchmark"),
          el("div", { class: "pickers" },
            mbt.select("Method A", "method-a", options, String(a), choose("a")),
            el("button", { type: "button", id: "swap", class: "quiet", "aria-label": "Swap A and B", title: "Swap A and B", onclick: swap }, "⇄"),
            mbt.select("Method B", "method-b", options, String(b), choose("b"))),
          metrics.every((rows) => rows.every((row) => row === null))
            ? el("p", { class: "empty" }, "These two methods have no benchmark in common.")
            : differences(overview, metrics, a, b),
          el("ul", { class: "notes" }, notes(overview, a, b).map((note) => el("li", {}, note)))));
      document.getElementById(focus)?.focus();
    };
    await show("");
    return page;
  };

  const address = (compare, k) => compare.cells[k].find((cell) => cell !== null);

  const differences = (overview, metrics, a, b) => {
    const { compare } = overview;
    const sign = a < b ? 1 : -1;
    const heads = [["", "label l0"], ["A", "number"], ["B", "number"], ["A − B", "number"], ["95 % interval", "plot"], ["better", "winner"], ["higher A : B", "number"], ["questions", "number"], ["", "links"]];
    const bodies = compare.metrics.map((metric, m) => {
      const rows = metrics[m].map((row) => row && turned(row, sign));
      const known = rows.filter(Boolean);
      if (!known.length) return null;
      const most = Math.max(...known.flatMap((row) => [row[2], row[3], row[4]]).map((text) => Math.abs(Number(text)) || 0));
      const names = [...compare.benchmarks, `mean of ${known.length - 1}`];
      return el("tbody", {},
        el("tr", { class: "start" }, el("th", { scope: "rowgroup", colspan: String(heads.length), class: "metric" }, metric.title,
          metric.best === "low" ? el("small", {}, " lower is better") : null)),
        rows.map((row, k) => row && line(overview, names[k], row, most, k < compare.benchmarks.length ? [compare.cells[a][k], compare.cells[b][k]] : null)));
    });
    return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Differences" },
      el("table", { class: "differences", "data-from": "0" },
        el("thead", {}, el("tr", {}, heads.map(([title, name]) => el("th", { scope: "col", class: name }, el("span", {}, title))))), bodies));
  };

  /** A difference as A minus B, whichever of them comes first in the study. */
  const turned = (row, sign) => {
    if (sign > 0) return row;
    const [first, second, difference, low, high, above, below, questions, side] = row;
    const minus = (text) => (/^-/.test(text) ? text.slice(1) : /[1-9]/.test(text) ? `-${text}` : text);
    return [second, first, minus(difference), minus(high), minus(low), below, above, questions, -side];
  };

  const line = (overview, name, row, most, addresses) => {
    const [first, second, difference, low, high, above, below, questions, side] = row;
    const rollouts = (addresses || []).map((one) => (overview.rollouts_of[one] || [])[0]);
    const best = side > 0 ? "A" : side < 0 ? "B" : null;
    return el("tr", { class: addresses ? null : "mean" },
      el("th", { scope: "row", class: "label l0" }, name),
      el("td", { class: "number" }, first), el("td", { class: "number" }, second),
      el("td", { class: "number" }, best ? el("b", {}, difference) : difference, el("small", {}, low === "—" ? "[—]" : `[${low}, ${high}]`)),
      el("td", { class: "plot" }, plot(row, most)),
      el("td", { class: "winner" }, best ? el("span", { class: "side", title: `${best} is better by more than the interval` }, best) : ""),
      el("td", { class: "number" }, `${mbt.count(above)} : ${mbt.count(below)}`),
      el("td", { class: "number" }, mbt.count(questions)),
      el("td", { class: "links" }, rollouts.length === 2 && rollouts.every(Boolean)
        ? el("a", { href: mbt.link("traces", { a: rollouts[0], b: rollouts[1] }), "aria-label": `Traces of both on ${name}` }, "traces") : ""));
  };

  /** The difference and its interval on a line with 0 in the middle. */
  const plot = (row, most) => {
    const [difference, low, high] = row.slice(2, 5).map(Number);
    const x = (number) => (WIDTH / 2 + (most ? number / most : 0) * (WIDTH / 2 - EDGE)).toFixed(1);
    const node = (tag, props) => {
      const made = document.createElementNS(SVG, tag);
      for (const [name, value] of Object.entries(props)) made.setAttribute(name, String(value));
      return made;
    };
    const svg = node("svg", { width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true", class: row[8] ? "beyond" : "within" });
    svg.append(node("line", { x1: WIDTH / 2, x2: WIDTH / 2, y1: 0, y2: HEIGHT, class: "zero" }));
    if (Number.isFinite(low) && Number.isFinite(high)) svg.append(node("line", { x1: x(low), x2: x(high), y1: HEIGHT / 2, y2: HEIGHT / 2, class: "range" }));
    svg.append(node("circle", { cx: x(difference), cy: HEIGHT / 2, r: 3.5 }));
    return svg;
  };

  const notes = (overview, a, b) => {
    const { compare } = overview;
    const several = compare.benchmarks.length > 1;
    return [
      "Each number is of the questions that both methods have; differences of per cent are in points. `better` names a method whose interval leaves out 0.",
      several ? "Mean: every benchmark counts once, whatever its number of questions." : null,
      "higher A : B counts the questions on which A, or B, has the higher value.",
      el("span", {}, "Tests, and differences of AES: ", el("code", {}, `mbt compare ${pattern(overview, a)} ${pattern(overview, b)}`)),
      compare.left_out ? `${mbt.count(compare.left_out)} more methods are not compared here.` : null,
    ].filter(Boolean);
  };

  /** A glob of the score cells of a method. */
  const pattern = (overview, k) => {
    const cells = overview.compare.cells[k].filter(Boolean).map((cell) => cell.split("/"));
    const parts = cells[0].map((part, n) => (cells.every((cell) => cell[n] === part) ? part : part.replace(/=.*/, "=*")));
    return `'runs/${overview.study}/${parts.join("/")}'`;
  };
})();
