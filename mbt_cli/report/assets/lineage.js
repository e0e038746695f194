"use strict";
// The graph from the questions to the tables: a column per stage, a button per cell. Choosing a
// cell highlights what it was made from and what was made from it.

(() => {
  const { el } = mbt;
  const SVG = "http://www.w3.org/2000/svg";

  mbt.views.lineage = async (values) => {
    const overview = await mbt.load("overview");
    const nodes = new Map(overview.graph.map((node) => [node.address, node]));
    const buttons = new Map();
    const edges = document.createElementNS(SVG, "svg");
    edges.setAttribute("class", "edges");
    edges.setAttribute("aria-hidden", "true");
    const columns = el("div", { class: "columns" }, stages(overview.graph, nodes).map(([stage, cells]) =>
      el("section", { "aria-label": `Stage ${stage}` },
        el("h3", {}, stage, el("small", {}, ` ${cells[0].kind}, ${mbt.count(cells.length)}`)),
        el("div", { class: "cells", onscroll: () => draw() }, cells.map((node) => {
          const button = el("button", { type: "button", class: `cell kind-${node.kind}${node.made ? "" : " missing"}`, onclick: () => choose(node.address) },
            el("span", { class: "name" }, short(node)),
            el("small", {}, node.made ? facts(node) : "not run yet"));
          buttons.set(node.address, button);
          return button;
        })))));
    const tables = el("section", { "aria-label": "Tables" }, el("h3", {}, "tables"),
      el("div", { class: "cells" }, overview.tables.map((table) =>
        el("a", { class: "cell kind-table", href: mbt.link("tables", { table: table.name }) }, table.title))));
    columns.append(tables);
    const canvas = el("div", { class: "graph" }, edges, columns);
    const panel = el("section", { class: "card detail", "aria-live": "polite" },
      el("p", { class: "empty" }, "Choose a cell to see its inputs, settings and code."));
    let chosen = null;

    const choose = (address) => {
      chosen = address;
      mbt.note("lineage", { cell: address });
      const lit = new Set([...reach(address, (n) => n.inputs), ...reach(address, (n) => readers.get(n.address) || [])]);
      for (const [other, button] of buttons) {
        button.classList.toggle("lit", lit.has(other));
        button.classList.toggle("dim", !lit.has(other));
        button.setAttribute("aria-pressed", other === address ? "true" : "false");
      }
      for (const column of columns.querySelectorAll(".cells")) {
        const first = column.querySelector(".cell.lit");
        const [box, at] = [column.getBoundingClientRect(), first && first.getBoundingClientRect()];
        if (at && (at.top < box.top || at.bottom > box.bottom)) column.scrollTop += at.top - box.top - 8;
      }
      draw();
      describe(panel, nodes.get(address), nodes, overview);
    };

    // an input that another input also reads is drawn from that one only
    const isRoundabout = (node, input) => node.inputs.some((other) => nodes.get(other)?.inputs.includes(input));
    const readers = new Map();
    for (const node of overview.graph) {
      for (const input of node.inputs) readers.set(input, [...(readers.get(input) || []), node.address]);
    }
    const reach = (start, next) => {
      const seen = new Set();
      const todo = [start];
      while (todo.length) {
        const address = todo.pop();
        if (seen.has(address) || !nodes.has(address)) continue;
        seen.add(address);
        todo.push(...next(nodes.get(address)));
      }
      return seen;
    };

    const draw = () => {
      const box = canvas.getBoundingClientRect();
      edges.setAttribute("width", canvas.scrollWidth);
      edges.setAttribute("height", canvas.scrollHeight);
      const few = overview.graph.length <= 80;
      const lines = [];
      for (const node of overview.graph) {
        for (const input of node.inputs.filter((one) => !isRoundabout(node, one))) {
          const lit = chosen && buttons.get(node.address).classList.contains("lit") && buttons.get(input)?.classList.contains("lit");
          if (lit || (few && !chosen)) lines.push(line(buttons.get(input), buttons.get(node.address), box, canvas, lit));
        }
      }
      edges.replaceChildren(...lines.filter(Boolean));
    };
    new ResizeObserver(draw).observe(canvas);
    setTimeout(() => {
      const wanted = values.get("cell");
      if (wanted && buttons.has(wanted)) choose(wanted);
    });
    return el("div", { class: "page wide" }, canvas, panel);
  };

  const line = (from, to, box, canvas, lit) => {
    if (!from || !to) return null;
    const [a, b] = [from.getBoundingClientRect(), to.getBoundingClientRect()];
    const shown = (r, node) => {
      const column = node.parentNode.getBoundingClientRect();
      return Math.min(Math.max(r.top + r.height / 2, column.top), column.bottom) - box.top + canvas.scrollTop;
    };
    const [x1, y1] = [a.right - box.left + canvas.scrollLeft, shown(a, from)];
    const [x2, y2] = [b.left - box.left + canvas.scrollLeft, shown(b, to)];
    const path = document.createElementNS(SVG, "path");
    const bend = Math.max(16, Math.abs(x2 - x1) / 2);
    path.setAttribute("d", `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`);
    if (lit) path.setAttribute("class", "lit");
    return path;
  };

  /** Stages with their cells, in the order of their dependencies. */
  const stages = (graph, nodes) => {
    const depths = new Map();
    const depth = (address) => {
      if (!depths.has(address)) {
        const inputs = (nodes.get(address)?.inputs || []).filter((input) => nodes.has(input));
        depths.set(address, inputs.length ? 1 + Math.max(...inputs.map(depth)) : 0);
      }
      return depths.get(address);
    };
    const found = new Map();
    for (const node of graph) found.set(node.stage, [...(found.get(node.stage) || []), node]);
    const deepest = (cells) => Math.max(...cells.map((cell) => depth(cell.address)));
    return [...found].sort(([, a], [, b]) => deepest(a) - deepest(b));
  };

  const short = (node) => node.address.split("/").slice(1).map((part) => part.replace(/^[^=]*=/, "")).join(" · ") || node.address;

  const facts = (node) => [
    node.rows !== undefined ? `${mbt.count(node.rows)} row${node.rows === 1 ? "" : "s"}` : null,
    node.failed ? `${mbt.count(node.failed)} failed` : null,
    node.model || null,
  ].filter(Boolean).join(" · ") || node.kind;

  const describe = async (panel, node, nodes, overview) => {
    const cells = await mbt.load("cells");
    const lineage = cells[node.address] ? JSON.parse(cells[node.address]) : null;
    const traced = (await mbt.load("index")).cells.some((cell) => cell.address === node.address);
    const rollouts = overview.rollouts_of[node.address] || (traced ? [node.address] : []);
    const links = [
      rollouts.length ? el("a", { href: mbt.link("traces", { a: rollouts[0], b: "none" }) }, "traces") : null,
    ].filter(Boolean);
    const rows = lineage ? [
      ["rows", `${mbt.count(lineage.rows)}${lineage.failed_rows ? `, ${mbt.count(lineage.failed_rows)} failed: ${Object.entries(lineage.failures).map(([why, n]) => `${n} × ${why}`).join(", ")}` : ""}`],
      ["model", lineage.model ? `${lineage.model.name} (${lineage.model.id})` : null],
      ["requests", lineage.requests.sent || lineage.requests.reused ? `${mbt.count(lineage.requests.sent)} sent, ${mbt.count(lineage.requests.retried)} retried, ${mbt.count(lineage.requests.reused)} reused` : null],
      ["tokens", lineage.tokens.completion ? `${mbt.count(lineage.tokens.prompt)} prompt, ${mbt.count(lineage.tokens.completion)} completion` : null],
      ["made", `${lineage.started_at.slice(0, 19).replace("T", " ")} UTC in ${lineage.seconds.toFixed(1)} s, mbt ${lineage.code.version}${lineage.code.commit ? ` at ${lineage.code.commit.slice(0, 12)}${lineage.code.dirty ? " with changes" : ""}` : ""}`],
      ["fingerprint", lineage.fingerprint],
    ] : [];
    panel.replaceChildren(
      el("h2", {}, node.address), el("p", {}, links),
      el("dl", { class: "facts" }, rows.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
      el("h3", {}, "Reads"),
      node.inputs.length
        ? el("ul", {}, node.inputs.map((input) => el("li", {}, el("a", { href: mbt.link("lineage", { cell: input }) }, input), nodes.has(input) ? "" : " (deleted)")))
        : el("p", {}, node.kind === "questions" ? "the benchmark's own files" : "no finished cell"),
      lineage ? el("details", {}, el("summary", {}, "Full lineage"), el("pre", { class: "code", tabindex: "0" }, cells[node.address])) : "");
  };
})();
