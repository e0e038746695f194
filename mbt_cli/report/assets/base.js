"use strict";
// Shared by all views: elements from plain text, data loaded on demand, the address bar.
// Text from models and data sets only becomes text nodes; nothing here parses HTML.

const mbt = { views: {}, data: new Map(), waiting: new Map() };

/** An element; `props` are attributes, or listeners if their name starts with "on". */
mbt.el = (tag, props, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
};

/** Text of a model or data set, with its own direction, isolated from the text around it. */
mbt.foreign = (text, tag = "bdi", props = {}) =>
  mbt.el(tag, { dir: "auto", ...props }, text === null || text === undefined ? "" : String(text));

mbt.count = (number) => (number === null || number === undefined ? "—" : number.toLocaleString("en"));

mbt.signed = (number) => `${number < 0 ? "−" : "+"}${Math.abs(number).toFixed(2)}`;

/** The first names of a list in words, null for an empty one. */
mbt.some = (title, list) => {
  if (!list.length) return null;
  const shown = list.slice(0, 4).join(", ");
  return `${title}${list.length > 1 ? "s" : ""}: ${shown}${list.length > 4 ? ` and ${list.length - 4} more` : ""}`;
};

// --- data: each script in data/ calls mbt.take with its name and content

mbt.take = (name, value) => {
  mbt.data.set(name, value);
  for (const [chunk] of mbt.data) {
    if (mbt.data.size <= 160) break;
    if (/^traces-/.test(chunk) && chunk !== name) mbt.data.delete(chunk);
  }
};

const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("mbt", {
      createScriptURL: (url) => {
        if (!/^data\/[a-z]+(-\d+)*\.js$/.test(url)) throw new TypeError(`not a data file: ${url}`);
        return url;
      },
    })
  : { createScriptURL: (url) => url };

/** The content of data/NAME.js, loaded once. */
mbt.load = (name) => {
  if (mbt.data.has(name)) return Promise.resolve(mbt.data.get(name));
  if (mbt.waiting.has(name)) return mbt.waiting.get(name);
  const promise = new Promise((resolve, reject) => {
    const tag = document.createElement("script");
    const done = (error) => {
      tag.remove();
      mbt.waiting.delete(name);
      if (error || !mbt.data.has(name)) reject(new Error(`data/${name}.js cannot be read`));
      else resolve(mbt.data.get(name));
    };
    tag.addEventListener("load", () => done(false));
    tag.addEventListener("error", () => done(true));
    tag.src = policy.createScriptURL(`data/${name}.js`);
    document.head.append(tag);
  });
  mbt.waiting.set(name, promise);
  return promise;
};

// --- the address bar: #/view?key=value&..., so every state is a link

mbt.state = () => {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "tables", values: new URLSearchParams(query || "") };
};

mbt.link = (view, values) => {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(values || {})) {
    if (value !== "" && value !== null && value !== undefined) query.set(key, value);
  }
  const text = query.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
};

/** Store the state in the address bar without a new history entry. */
mbt.note = (view, values) => {
  const hash = mbt.link(view, values);
  if (hash !== location.hash) history.replaceState(null, "", hash);
};

mbt.select = (label, id, options, value, onchange) =>
  mbt.el(
    "label",
    { class: "field", for: id },
    mbt.el("span", {}, label),
    mbt.el(
      "select",
      { id, onchange: (event) => onchange(event.target.value) },
      options.map(([key, text]) => mbt.el("option", { value: key, selected: key === value }, text))
    )
  );

/** The axis values that distinguish a cell from `others`. */
mbt.label = (cell, others) => {
  const differs = (axis) => others.some((other) => other.axes[axis] !== cell.axes[axis]);
  const parts = Object.entries(cell.axes)
    .filter(([axis]) => axis !== "benchmark" && axis !== "split" && differs(axis))
    .map(([, value]) => value);
  const stages = new Set(others.map((other) => other.stage));
  return [stages.size > 1 || !parts.length ? cell.stage : null, ...parts].filter(Boolean).join(" · ");
};

// --- colours: those of the system, light or dark, remembered in this browser

const THEMES = { auto: ["system", "◐"], light: ["light", "☀"], dark: ["dark", "☾"] };

/** Make the button of the colours work. */
mbt.theme = () => {
  const button = document.getElementById("theme");
  const remembered = () => { try { return localStorage.getItem("mbt-theme"); } catch { return null; } };
  const paint = (theme) => {
    document.documentElement.dataset.theme = theme;
    const [words, glyph] = THEMES[theme];
    button.textContent = glyph;
    button.setAttribute("aria-label", `Colours: ${words}`);
    button.title = `Colours: ${words}`;
    try { localStorage.setItem("mbt-theme", theme); } catch { /* a page opened as a file may have no storage */ }
  };
  button.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    paint(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
  });
  paint(Object.hasOwn(THEMES, remembered()) ? remembered() : "auto");
};
