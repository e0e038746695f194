"use strict";
// Sortable tables, figures, and the details of a number.

(() => {
  const { el } = mbt;

  const fileLinks = (folder, names) =>
    names.length
      ? el("p", { class: "files" }, "Files: ", names.flatMap((name, k) => [
          k ? " · " : "",
          el("a", { href: `${folder}/${name}`, download: name }, name.replace(/^.*\./, ".")),
        ]))
      : null;

  mbt.views.tables = async (values) => {
    const overview = await mbt.load("overview");
    const sections = overview.tables.map((table) => section(table, overview));
    const toc = el("nav", { class: "toc", "aria-label": "Tables" }, overview.tables.map((table) =>
      el("a", { href: mbt.link("tables", { table: table.name }) }, table.title)));
    const wanted = values.get("table");
    setTimeout(() => {
      const found = wanted && document.getElementById(`table-${wanted}`);
      if (found) found.scrollIntoView();
    });
    return el("div", { class: "page" }, facts(overview), sections.length > 1 ? toc : null, warnings(overview), sections);
  };

  /** What the numbers were made from, in a line. */
  const facts = (overview) => {
    const made = overview.graph.filter((cell) => cell.made);
    const of = (kind) => made.filter((cell) => cell.kind === kind);
    const names = (cells) => [...new Set(cells.map((cell) => cell.model).filter(Boolean))];
    const total = (cells, name) => cells.reduce((sum, cell) => sum + (cell[name] || 0), 0);
    const some = (title, list) => {
      if (!list.length) return null;
      const shown = list.slice(0, 4).join(", ");
      return `${title}${list.length > 1 ? "s" : ""}: ${shown}${list.length > 4 ? ` and ${list.length - 4} more` : ""}`;
    };
    const replies = of("rollout");
    const failed = total(replies, "failed");
    const parts = [
      overview.made ? overview.made.slice(0, 10) : null,
      some("model", names(replies)),
      some("judge", names(of("judge"))),
      replies.length ? `${mbt.count(total(replies, "rows"))} replies, ${mbt.count(failed)} failed` : null,
      replies.length ? `${mbt.count(total(made, "tokens"))} tokens written` : null,
    ].filter(Boolean);
    return parts.length ? el("p", { class: "head" }, parts.join(" · ")) : null;
  };

  const warnings = (overview) => {
    const groups = [
      [overview.missing, "not run yet; their numbers are shown as a dash"],
      [overview.lost, "deleted before this page was made"],
      [overview.changed, "changed after the scores were computed; their traces do not match the numbers"],
    ];
    return groups.filter(([cells]) => cells.length).map(([cells, what]) =>
      el("details", { class: "warning" },
        el("summary", {}, `${mbt.count(cells.length)} cell${cells.length > 1 ? "s" : ""}: ${what}`),
        el("ul", {}, cells.slice(0, 500).map((address) => el("li", {}, el("code", {}, address))))));
  };

  const section = (table, overview) => {
    const body = el("tbody", {});
    const detail = el("tr", { class: "detail" }); // moves below the row of the chosen number
    const heads = table.columns.map((column, k) => head(table, column, k, body, detail, overview));
    fill(table, table.rows.map((_, k) => k), body, detail, overview);
    return el("section", { class: "card", id: `table-${table.name}` },
      el("h2", {}, table.title),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.title },
        el("table", {}, el("thead", {}, el("tr", {}, heads)), body)),
      table.notes.length ? el("ul", { class: "notes" }, table.notes.map((note) => el("li", {}, note))) : null,
      fileLinks("tables", overview.files.tables.filter((name) => name.replace(/\.[a-z]+$/, "") === table.name)));
  };

  const head = (table, column, k, body, detail, overview) => {
    const th = el("th", { scope: "col", class: column.kind });
    const sort = () => {
      const first = column.best === "low" || column.kind === "label" ? "ascending" : "descending";
      const now = th.getAttribute("aria-sort");
      const next = !now ? first : now === "ascending" ? "descending" : "ascending";
      for (const other of th.parentNode.children) other.removeAttribute("aria-sort");
      th.setAttribute("aria-sort", next);
      fill(table, order(table, k, next === "ascending" ? 1 : -1), body, detail, overview);
    };
    th.append(el("button", { type: "button", onclick: sort }, column.title));
    return th;
  };

  /** Row numbers sorted by one column; rows without a number come last. */
  const order = (table, k, sign) => {
    const key = (row) => {
      const cell = table.rows[row][k];
      return cell.v !== undefined ? cell.v : table.columns[k].kind === "label" ? cell.t : null;
    };
    return table.rows.map((_, row) => row).sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === null || y === null) return (x === null) - (y === null) || a - b;
      const less = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
      return less * sign || a - b;
    });
  };

  const fill = (table, rows, body, detail, overview) => {
    body.replaceChildren(...rows.map((row) => el("tr", {}, table.rows[row].map((cell, k) => {
      if (table.columns[k].kind === "label") return el("th", { scope: "row", class: "label" }, cell.t);
      const text = cell.r === "best" ? el("b", {}, cell.t) : cell.r === "second" ? el("u", {}, cell.t) : cell.t;
      const tied = cell.d ? el("sup", { title: "not significant: see the notes below" }, "†") : null;
      const interval = cell.i ? el("small", {}, ` [${cell.i.join(", ")}]`) : null;
      const about = `${table.columns[k].title}: ${cell.t}. Show details`;
      return el("td", { class: "number" },
        el("button", { type: "button", class: "plain", "aria-label": about, onclick: (event) => behind(table, row, k, detail, overview, event.currentTarget) },
          text, tied, interval));
    }))));
  };

  /** The details of a number below its row, with links to its traces and lineage. */
  const behind = (table, row, k, detail, overview, number) => {
    if (detail.isConnected && detail.number === number) {
      detail.remove(); // a second click closes them
      return;
    }
    detail.number = number;
    const close = () => { detail.remove(); number.focus(); };
    const cell = table.rows[row][k];
    const address = table.addresses[row];
    const labels = table.rows[row].filter((_, c) => table.columns[c].kind === "label").map((c) => c.t);
    const facts = [
      cell.n !== undefined ? `n ${mbt.count(cell.n)}` : null,
      cell.f !== undefined ? `failed ${mbt.count(cell.f)}` : null,
      cell.i ? `95 % interval ${cell.i.join(" to ")}` : null,
      cell.v !== undefined ? `unrounded ${cell.v}` : null,
    ].filter(Boolean);
    const rollouts = (address && overview.rollouts_of[address]) || [];
    const manifest = /^[\w./-]+$/.test(overview.manifest_name) ? overview.manifest_name : `'${overview.manifest_name.replaceAll("'", "'\\''")}'`;
    const panel = el("div", { class: "behind", "aria-live": "polite", tabindex: "-1", onkeydown: (event) => { if (event.key === "Escape") close(); } },
      el("button", { type: "button", class: "close", "aria-label": "Close the details", onclick: close }, "×"),
      el("p", {}, el("strong", {}, `${table.columns[k].title}: ${cell.t}`), ` — ${labels.join(" / ")}`),
      facts.length ? el("p", {}, facts.join(" · ")) : "",
      el("p", {},
        rollouts.length ? el("a", { href: mbt.link("traces", { a: rollouts[0], b: "none" }) }, "its traces") : "",
        rollouts.length && address ? " · " : "",
        address ? el("a", { href: mbt.link("lineage", { cell: address }) }, "its lineage") : ""),
      el("p", {}, "Raw rows: ", el("code", {}, `mbt report ${manifest} --trace ${table.name} ${row + 1} ${table.columns[k].key}`)));
    detail.replaceChildren(el("td", { colspan: String(table.columns.length) }, panel));
    number.closest("tr").after(detail);
    panel.focus({ preventScroll: true });
    panel.scrollIntoView({ block: "nearest" });
  };

  mbt.views.figures = async () => {
    const overview = await mbt.load("overview");
    const names = [...new Set(overview.files.figures.map((name) => name.replace(/\.[a-z]+$/, "")))];
    if (!names.length) return el("div", { class: "page" }, el("p", { class: "empty" }, "This report has no figures. Set figures = [...] on the report stage."));
    return el("div", { class: "page" }, names.map((name) => {
      const own = overview.files.figures.filter((file) => file.replace(/\.[a-z]+$/, "") === name);
      const [title, caption] = overview.captions[name] || [inWords(name), ""];
      const shown = own.find((file) => file.endsWith(".svg")) || own.find((file) => file.endsWith(".png"));
      return el("section", { class: "card" },
        el("h2", {}, title),
        shown ? el("figure", {}, el("img", { src: `figures/${shown}`, alt: `Figure: ${title}. ${caption}` }),
          caption ? el("figcaption", {}, caption) : null) : null,
        fileLinks("figures", own));
    }));
  };

  const inWords = (name) => name.replace(/_/g, " ").replace(/^./, (letter) => letter.toUpperCase());

  mbt.views.manifest = async () => {
    const { manifest } = await mbt.load("overview");
    return el("div", { class: "page" }, el("section", { class: "card" },
      el("h2", {}, "Manifest"),
      manifest ? el("pre", { class: "code", tabindex: "0" }, manifest) : el("p", { class: "empty" }, "This report does not contain the manifest.")));
  };
})();
