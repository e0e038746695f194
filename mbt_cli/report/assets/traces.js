"use strict";
// The trace browser: filters, a list that draws only its visible rows, two methods side by side.

(() => {
  const { el, foreign } = mbt;
  const ROW = 64;

  const OUTCOMES = [["any", "any outcome"], ["a_right", "A right"], ["a_wrong", "A wrong"], ["a_only", "A right and B wrong"],
    ["b_only", "A wrong and B right"], ["both_right", "both right"], ["both_wrong", "both wrong"]];
  const SHOWS = [["all", "all traces"], ["cut", "truncated"], ["failed", "failed"], ["no_answer", "without an answer"],
    ["disagree", "judge and verifier disagree"], ["votes_differ", "votes disagree"], ["unread", "unparsed verdict"]];
  const BY = [["auto", "judge, else verifier"], ["judge", "judge"], ["match", "verifier"]];

  let keys = null;

  mbt.views.traces = async (values) => {
    const index = mbt.prepare(await mbt.load("index"));
    if (!index.cells.some((cell) => cell.count)) {
      return el("div", { class: "page" }, el("p", { class: "empty" }, "This report has no traces. Set traces = 1000 (or \"all\") on the report stage."));
    }
    const browser = new Browser(index, values);
    mbt.browser = browser;
    setTimeout(() => browser.start()); // after it is in the page and has a height
    return browser.root;
  };

  class Browser {
    constructor(index, values) {
      this.index = index;
      this.found = { cell: [], row: [], other: [] };
      this.at = -1;
      this.run = 0;
      this.read(values);
      this.count = el("p", { class: "count", role: "status" });
      this.space = el("div", { class: "space" });
      this.list = el("div", { class: "list", tabindex: "0", role: "listbox", "aria-label": "Matching traces; j and k move down and up" }, this.space);
      this.list.addEventListener("scroll", () => requestAnimationFrame(() => this.draw()));
      this.form = el("form", { class: "filters", onsubmit: (event) => event.preventDefault() });
      this.detail = el("div", { class: "reading", tabindex: "-1" });
      this.root = el("div", { class: "browser" },
        el("aside", { "aria-label": "Filters and list" }, this.form, this.count, this.list,
          el("p", { class: "keys" }, el("kbd", {}, "j"), " ", el("kbd", {}, "k"), " next, previous · ", el("kbd", {}, "/"), " search · ", el("kbd", {}, "x"), " swap A and B")),
        this.detail);
      document.removeEventListener("keydown", keys);
      keys = (event) => this.key(event);
      document.addEventListener("keydown", keys);
      new ResizeObserver(() => this.draw()).observe(this.list);
    }

    /** Read the state from the address bar. */
    read(values) {
      const { cells, sets, methods } = this.index;
      const named = (name) => cells.find((cell) => cell.address === values.get(name));
      const [first, second] = [named("a"), named("b")];
      let set = values.get("set") === "all" ? -1 : sets.findIndex((one) => one.address === values.get("set"));
      if (set < 0 && values.get("set") !== "all" && first) set = first.set;
      if (sets.length === 1) set = 0;
      const has = (method) => method.cells.size && (set < 0 || method.cells.has(set));
      const a = first ? first.method : values.get("a") === "any" ? -1 : methods.findIndex(has);
      let b = second && a >= 0 && has(methods[second.method]) ? second.method : -1;
      if (b < 0 && a >= 0 && values.get("b") !== "none") b = methods.findIndex((method, k) => k !== a && has(method));
      this.wanted = {
        set, a, b,
        difficulty: values.get("difficulty") || "", outcome: values.get("outcome") || "any",
        show: values.get("show") || "all", by: values.get("by") || "auto", text: values.get("text") || "",
      };
      this.inside = values.get("inside") === "1";
      this.goal = { q: values.get("q"), s: values.get("s"), m: values.get("m") };
    }

    start() {
      this.controls();
      this.apply();
    }

    note() {
      const { cells, sets, methods } = this.index;
      const { set, a, b, difficulty, outcome, show, by, text } = this.wanted;
      const cell = cells[this.found.cell[this.at]];
      const row = this.found.row[this.at];
      const address = (method) => (methods[method].cells.get(set) || [...methods[method].cells.values()][0]).address;
      mbt.note("traces", {
        set: sets.length === 1 ? "" : set < 0 ? "all" : sets[set].address,
        a: a < 0 ? "any" : address(a), b: b < 0 ? "none" : address(b),
        difficulty, outcome: outcome === "any" ? "" : outcome, show: show === "all" ? "" : show, by: by === "auto" ? "" : by, text,
        inside: this.inside ? "1" : "",
        q: cell ? sets[cell.set].id[cell.traces.question[row]] : this.goal.q,
        s: cell ? cell.traces.sample[row] : this.goal.s,
        m: cell && (a < 0 || set < 0) ? cell.address : "",
      });
    }

    /** Remember the trace in sight, to find it among others. */
    keep() {
      const cell = this.index.cells[this.found.cell[this.at]];
      if (!cell) return;
      const row = this.found.row[this.at];
      this.goal = { q: this.index.sets[cell.set].id[cell.traces.question[row]], s: String(cell.traces.sample[row]), m: cell.address };
    }

    change(name, value) {
      this.keep();
      this.wanted[name] = value;
      if (name === "set") {
        const { sets } = this.index;
        const own = this.methods();
        if (this.wanted.a >= 0 && !own.includes(this.wanted.a)) this.wanted.a = own[0];
        if (this.wanted.b >= 0 && !own.includes(this.wanted.b)) this.wanted.b = own.find((k) => k !== this.wanted.a) ?? -1;
        // a filter that the new questions cannot match would hide them all
        const tiers = sets.filter((_, k) => value < 0 || k === value).flatMap((set) => set.difficulty);
        if (!tiers.includes(this.wanted.difficulty)) this.wanted.difficulty = "";
      }
      if (name === "a" && value < 0) this.wanted.b = -1; // B is beside one method
      if (this.wanted.b < 0 && /_only$|^both/.test(this.wanted.outcome)) this.wanted.outcome = "any";
      if (name !== "text") this.controls();
      this.apply();
    }

    /** Numbers of the methods that have traces on the chosen benchmark. */
    methods() {
      const { set } = this.wanted;
      return this.index.methods.filter(({ cells }) => cells.size && (set < 0 || cells.has(set))).map((method) => method.number);
    }

    /** Name of a cell's method among those of the chosen benchmark. */
    label(cell) {
      const { set } = this.wanted;
      const others = this.index.cells.filter((one) => one.count && (set < 0 || one.set === set));
      return mbt.label(cell, others);
    }

    second(cell) {
      return mbt.second(this.index, this.wanted, cell);
    }

    controls() {
      const { sets } = this.index;
      const { wanted } = this;
      const methods = this.methods().map((k) => [String(k), this.label([...this.index.methods[k].cells.values()][0])]);
      const tiers = [...new Set(sets.filter((_, k) => wanted.set < 0 || k === wanted.set).flatMap((set) => set.difficulty))].filter(Boolean);
      const number = (name) => (value) => this.change(name, Number(value));
      const text = (name) => (value) => this.change(name, value);
      this.search = el("input", { type: "search", id: "text", value: wanted.text, placeholder: "question, answer or id", oninput: (event) => this.change("text", event.target.value) });
      const focused = document.activeElement && document.activeElement.id;
      this.form.replaceChildren(
        mbt.select("Benchmark", "set", [...(sets.length > 1 ? [["-1", "all"]] : []), ...sets.map((set, k) => [String(k), `${set.benchmark}, ${set.split}`])], String(wanted.set), number("set")),
        mbt.select("Difficulty", "difficulty", [["", "all"], ...tiers.map((tier) => [tier, tier])], wanted.difficulty, text("difficulty")),
        mbt.select("Method A", "a", [["-1", "any method"], ...methods], String(wanted.a), number("a")),
        mbt.select("Method B", "b", [["-1", "none"], ...methods], String(wanted.b), number("b")),
        mbt.select("Outcome", "outcome", OUTCOMES, wanted.outcome, text("outcome")),
        mbt.select("Show", "show", SHOWS, wanted.show, text("show")),
        mbt.select("Correctness by", "by", BY, wanted.by, text("by")),
        el("div", { class: "field" }, el("span", {}, "\u00a0"), el("button", { type: "button", id: "reset", class: "quiet", onclick: () => this.reset() }, "Reset filters")),
        el("label", { class: "field whole", for: "text" }, el("span", {}, "Search"), this.search),
        el("label", { class: "check whole" }, el("input", { type: "checkbox", id: "inside", checked: this.inside, onchange: (event) => { this.inside = event.target.checked; this.apply(); } }),
          " also inside replies and verdicts (reads all of them)"));
      if (focused) document.getElementById(focused)?.focus();
    }

    /** All traces of the same benchmark and methods. */
    reset() {
      Object.assign(this.wanted, { difficulty: "", outcome: "any", show: "all", by: "auto", text: "" });
      this.inside = false;
      this.controls();
      this.apply();
    }

    async apply() {
      this.run += 1;
      const { run } = this;
      const began = performance.now();
      if (this.inside && this.wanted.text.trim()) {
        await this.applyInside(run);
        if (run !== this.run) return;
      } else {
        this.found = mbt.filter(this.index, this.wanted);
      }
      this.milliseconds = performance.now() - began;
      const all = this.index.cells.reduce((sum, cell) => sum + cell.count, 0);
      const shown = this.index.cells.some((cell) => cell.count < cell.rows);
      this.count.textContent = `${mbt.count(this.found.row.length)} of ${mbt.count(all)} traces${shown ? ` (of ${mbt.count(this.index.cells.reduce((sum, cell) => sum + cell.rows, 0))} in the study)` : ""}`;
      this.space.style.height = `${this.found.row.length * ROW}px`;
      this.choose(this.goalRow());
    }

    async applyInside(run) {
      const among = mbt.filter(this.index, { ...this.wanted, text: "" });
      const progress = (kept, share) => {
        this.found = kept; // what was found so far can be read already
        this.count.textContent = `${mbt.count(kept.row.length)} found, ${Math.floor(100 * share)} % read…`;
        this.space.style.height = `${kept.row.length * ROW}px`;
        if (this.at < 0 && kept.row.length) this.choose(0);
        else this.draw();
      };
      this.at = -1;
      this.found = { cell: [], row: [], other: [] };
      const kept = await mbt.searchTexts(this.index, among, this.wanted.text, progress, () => run !== this.run);
      if (!kept) return;
      this.keep();
      this.found = kept;
    }

    /** Place of the trace in the address bar, else of the first. */
    goalRow() {
      const { q, s, m } = this.goal;
      if (q) {
        let first = -1;
        for (let k = 0; k < this.found.row.length; k += 1) {
          const cell = this.index.cells[this.found.cell[k]];
          const row = this.found.row[k];
          if (this.index.sets[cell.set].id[cell.traces.question[row]] !== q) continue;
          if ((!s || String(cell.traces.sample[row]) === s) && (!m || cell.address === m)) return k;
          if (first < 0) first = k;
        }
        if (first >= 0) return first;
      }
      return this.found.row.length ? 0 : -1;
    }

    choose(at) {
      this.at = Math.min(at, this.found.row.length - 1);
      const top = this.at * ROW;
      if (top < this.list.scrollTop) this.list.scrollTop = top;
      if (top + ROW > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top + ROW - this.list.clientHeight;
      this.draw();
      this.note();
      this.show();
    }

    draw() {
      const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - 4);
      const last = Math.min(this.found.row.length, first + Math.ceil(this.list.clientHeight / ROW) + 8);
      const rows = [];
      for (let k = first; k < last; k += 1) rows.push(this.line(k));
      this.space.replaceChildren(...rows);
      this.list.setAttribute("aria-activedescendant", this.at >= 0 ? `trace-${this.at}` : "");
    }

    line(k) {
      const { cells, sets } = this.index;
      const cell = cells[this.found.cell[k]];
      const row = this.found.row[k];
      const set = sets[cell.set];
      const question = cell.traces.question[row];
      const second = this.second(cell);
      const other = this.found.other[k];
      const node = el("div", {
        class: `line${k === this.at ? " chosen" : ""}`, role: "option", id: `trace-${k}`, "aria-selected": k === this.at ? "true" : "false",
        "aria-setsize": this.found.row.length, "aria-posinset": k + 1, onclick: () => this.choose(k),
      },
        foreign(set.question[question], "span", { class: "asks" }),
        el("span", { class: "signs" },
          this.sign("A", mbt.right(cell, row, this.wanted.by)),
          other >= 0 ? this.sign("B", mbt.right(second, other, this.wanted.by)) : null,
          mbt.has(cell, row, "cut") ? el("span", { class: "tag warn" }, "truncated") : null,
          mbt.has(cell, row, "failed") ? el("span", { class: "tag bad" }, "failed") : null,
          el("span", { class: "where" }, [
            this.wanted.set < 0 ? set.benchmark : null, this.wanted.a < 0 ? this.label(cell) : null,
            set.difficulty[question], cell.traces.sample[row] ? `sample ${cell.traces.sample[row]}` : null,
            cell.traces.tokens[row] !== null ? `${mbt.count(cell.traces.tokens[row])} tokens` : null,
          ].filter(Boolean).join(" · "))));
      node.style.top = `${k * ROW}px`;
      return node;
    }

    sign(side, right) {
      const [kind, glyph, words] = right === true ? ["good", "✓", "right"] : right === false ? ["bad", "✗", "wrong"] : ["none", "?", "not judged"];
      return el("span", { class: `tag ${kind}`, title: `${side} is ${words}` }, `${side} ${glyph}`, el("span", { class: "hidden" }, ` ${words}`));
    }

    async show() {
      this.shown = (this.shown || 0) + 1;
      const { shown } = this;
      if (this.at < 0) {
        this.detail.replaceChildren(el("div", { class: "empty" }, el("p", {}, "No trace matches these filters."),
          el("button", { type: "button", class: "quiet", onclick: () => this.reset() }, "Reset filters")));
        return;
      }
      const { cells, sets } = this.index;
      const [number, row, other] = [this.found.cell[this.at], this.found.row[this.at], this.found.other[this.at]];
      const cell = cells[number];
      const set = sets[cell.set];
      const beside = this.second(cell);
      const asked = cell.traces.question[row];
      try {
        const [questions, first, second] = await Promise.all([
          mbt.load(`questions-${cell.set}-${Math.floor(asked / set.chunk)}`),
          this.record(number, row),
          other >= 0 ? this.record(this.index.cells.indexOf(beside), other) : null,
        ]);
        if (shown !== this.shown) return;
        const among = cells.filter((c) => c.set === cell.set && c.count);
        const context = (side, of, at) => ({ side, label: mbt.label(of, among), by: this.wanted.by, samples: this.samples(of, at) });
        this.detail.replaceChildren(
          mbt.question(questions[asked % set.chunk], set),
          el("div", { class: "sides" },
            mbt.trace(first, cell, row, context("A", cell, row)),
            second ? mbt.trace(second, beside, other, context("B", beside, other)) : null));
        this.detail.scrollTop = 0;
        this.detail.dataset.ready = String(this.at);
        if (shown === 1) performance.mark("first trace");
      } catch (error) {
        this.detail.replaceChildren(el("p", { class: "empty bad" }, `${error.message}. Copy the whole folder of the page.`));
      }
    }

    samples(cell, row) {
      return cell.traces.sample[row] ? `sample ${cell.traces.sample[row]} · ` : "";
    }

    async record(number, row) {
      const { chunk, at } = mbt.place(this.index, number, row);
      return (await mbt.load(chunk))[at];
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || mbt.state().view !== "traces") return;
      const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
      if (typing) {
        if (event.key === "Escape") this.list.focus();
        return;
      }
      const inList = event.target === this.list;
      const step = { j: 1, k: -1, ...(inList ? { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 } : {}) }[event.key];
      if (step && this.found.row.length) {
        event.preventDefault();
        this.choose(Math.min(Math.max(this.at + step, 0), this.found.row.length - 1));
      } else if (event.key === "/") {
        event.preventDefault();
        this.search.focus();
      } else if (event.key === "x" && this.wanted.a >= 0 && this.wanted.b >= 0) {
        [this.wanted.a, this.wanted.b] = [this.wanted.b, this.wanted.a];
        this.change("by", this.wanted.by);
      }
    }
  }
})();
