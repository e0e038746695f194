"use strict";
// The JSON Schema of manifests: what a place of a manifest can hold, and forms made from it.

mbt.schema = { root: null };

(() => {
  const { el } = mbt;
  const schema = mbt.schema;

  schema.load = async () => { schema.root = schema.root || await mbt.get("schema"); };

  /** The schemas that a value may follow: references followed, unions taken apart. */
  schema.flat = (node, depth = 0) => {
    if (!node || typeof node !== "object" || depth > 12) return [];
    if (node.$ref) return schema.flat(schema.root.$defs[node.$ref.replace("#/$defs/", "")], depth + 1);
    const parts = [...(node.oneOf || []), ...(node.anyOf || [])];
    return parts.length ? parts.flatMap((part) => schema.flat(part, depth + 1)) : [node];
  };

  const kindOf = (node) => ((node.properties || {}).kind || {}).const;

  /** The schemas of the table at a path; `kinds` are the kinds that are written on the way. */
  schema.at = (path, kinds) => path.reduce((nodes, key, place) => {
    const inner = nodes.flatMap((node) => {
      if (node.type === "array") return schema.flat(node.items);
      const patterns = Object.entries(node.patternProperties || {}).filter(([pattern]) => new RegExp(pattern, "u").test(key));
      const found = (node.properties || {})[key] || (patterns[0] || [])[1] || (typeof node.additionalProperties === "object" ? node.additionalProperties : null);
      return found ? schema.flat(found) : [];
    });
    const kind = kinds[place + 1];
    const chosen = kind ? inner.filter((node) => !kindOf(node) || kindOf(node) === kind) : inner;
    return chosen.length ? chosen : inner;
  }, kinds[0] ? schema.flat(schema.root).filter((node) => !kindOf(node) || kindOf(node) === kinds[0]) : schema.flat(schema.root));

  /** Keys of a table with what they are. */
  schema.keys = (nodes) => {
    const found = new Map();
    for (const node of nodes) {
      for (const [key, value] of Object.entries(node.properties || {})) {
        if (!found.has(key)) found.set(key, { about: value.description || "", required: (node.required || []).includes(key), value });
      }
    }
    return found;
  };

  /** Values that a key may have, as far as they are listed. */
  schema.values = (nodes) => [...new Set(nodes.flatMap((node) =>
    node.const !== undefined ? [node.const]
      : node.enum ? node.enum
        : node.type === "boolean" ? [true, false]
          : node.type === "array" ? schema.values(schema.flat(node.items))
            : kindOf(node) ? [kindOf(node)] : []))];

  /** Names in the manifest that a key may have as its value. */
  schema.names = (key, outline) => {
    const stages = (outline.stage || []).map((stage) => stage.name);
    if (/^(model|judge_model|teacher)$/.test(key)) return outline.models || [];
    if (key === "benchmark") return outline.benchmarks || [];
    if (key === "judge") return [...new Set([...(outline.judges || []), ...schema.values(schema.at(["judges", "x"], []))])];
    if (key === "program") return [...new Set([...(outline.programs || []), ...schema.values(schema.at(["programs", "x"], []))])];
    if (key === "sampling") return outline.sampling || [];
    if (key === "preset") return schema.models || [];
    if (/^(rollouts|verdicts|scores|data|checkpoints|peers|graded|investigations|solutions|traces)$/.test(key)) return stages;
    if (key === "split") return ["train", "validation", "test"];
    return [];
  };

  // --- forms

  const FAMILIES = [["judges", "judge"], ["models", "model"], ["sampling", "sampling"], ["benchmarks", "benchmark"], ["programs", "program"], ["stage", "stage"]];
  const HIDDEN = new Set(["kind", "name"]);
  const LIKELY = new Set(["matrix", "rollouts", "judge_model", "metrics", "verdicts", "baseline", "samples", "scores", "tables", "figures", "preset", "backend", "sampling", "id", "source", "files", "limit", "template", "temperature", "max_tokens", "top_p", "data", "teacher", "votes"]);

  /** The forms; `take` gets the text of the manifest with what was filled in. */
  schema.forms = (editor, take) => {
    const box = el("div", {});
    const body = el("div", {});
    const chosen = el("select", { id: "form-family" });
    const what = () => {
      const [family, stage] = chosen.value.split("\n");
      return { family, stage };
    };
    const fill = () => {
      const before = chosen.value;
      chosen.replaceChildren(
        el("optgroup", { label: "Add" }, FAMILIES.map(([family, title]) => el("option", { value: family }, `a ${title}`))),
        el("optgroup", { label: "Change" }, (editor.outline.stage || []).map((stage) => el("option", { value: `stage\n${stage.name}` }, `the stage ${stage.name}`))));
      if ([...chosen.options].some((option) => option.value === before)) chosen.value = before;
    };
    const draw = () => body.replaceChildren(form(editor, what(), take));
    chosen.addEventListener("change", draw);
    box.append(el("label", { class: "field" }, el("span", {}, "What"), chosen), body);
    fill();
    draw();
    return { node: box, update: () => { const before = chosen.value; fill(); if (chosen.value !== before) draw(); } };
  };

  const form = (editor, { family, stage }, take) => {
    const own = stage ? (editor.outline.stage || []).find((one) => one.name === stage) : null;
    const base = family === "stage" ? ["stage", "0"] : [family, "x"];
    const kinds = own ? [own.kind] : schema.at(base, []).map(kindOf).filter(Boolean);
    const said = el("div", {});
    const fields = el("div", { class: "fields tall" });
    const name = el("input", { id: "form-name", required: true, value: own ? own.name : "", readonly: Boolean(own), autocomplete: "off", spellcheck: "false" });
    const kind = el("select", { id: "form-kind" }, kinds.map((one) => el("option", { value: one }, one)));
    let inputs = [];
    const draw = () => {
      const nodes = schema.at(base, kinds.length ? [null, null, kind.value] : []);
      const keys = [...schema.keys(nodes)].filter(([key]) => !HIDDEN.has(key));
      inputs = keys.map(([key, found]) => field(key, found, editor, own));
      const isFirst = ({ key, required }) => required || LIKELY.has(key) || (own && own.values[key] !== undefined);
      fields.replaceChildren(
        el("p", { class: "notes" }, mbt.foreign((nodes[0] || {}).description || "")),
        ...inputs.filter(isFirst).map((input) => input.node),
        el("details", {}, el("summary", {}, "More settings"), inputs.filter((input) => !isFirst(input)).map((input) => input.node)));
    };
    kind.addEventListener("change", draw);
    draw();
    const send = async (event) => {
      event.preventDefault();
      const values = Object.fromEntries(inputs.map((input) => [input.key, input.value()]).filter(([, value]) => value !== undefined));
      const head = !own && kinds.length ? { kind: kind.value } : {};
      try {
        const { text } = await mbt.post("form", { text: editor.text(), family, name: name.value.trim(), values: { ...head, ...values }, changes: Boolean(own) });
        said.replaceChildren();
        take(text);
      } catch (error) {
        said.replaceChildren(mbt.failure(error));
      }
    };
    return el("form", { class: "form", onsubmit: send },
      el("div", { class: "fields" }, el("label", { class: "field", hidden: Boolean(own) }, el("span", {}, "Name"), name),
        kinds.length && !own ? el("label", { class: "field" }, el("span", {}, "Kind"), kind) : null),
      fields, el("button", { class: "act", id: "form-add" }, own ? "Change it" : "Add it"), said);
  };

  /** The input of a key, which gives a JSON value, TOML, or nothing. */
  const field = (key, { about, required, value }, editor, own) => {
    const nodes = schema.flat(value).filter((node) => node.type !== "null");
    const types = new Set(nodes.map((node) => node.type));
    const id = `form-${key}`;
    const names = schema.names(key, editor.outline);
    const listed = [...new Set([...schema.values(nodes), ...names])];
    const before = own && own.values[key] !== undefined ? own.values[key] : "";
    const inputs = { toml: null };
    let node;
    if (!own && types.size === 1 && types.has("boolean")) {
      node = el("select", { id }, [["", "default"], ["true", "yes"], ["false", "no"]].map(([one, words]) => el("option", { value: one }, words)));
      inputs.read = (text) => text === "true";
    } else if (!own && types.size === 1 && (types.has("integer") || types.has("number"))) {
      const [{ minimum, maximum }] = nodes;
      node = el("input", { id, type: "number", step: types.has("number") ? "any" : "1", min: minimum, max: maximum, required });
      inputs.read = Number;
    } else if (!own && (types.has("array") || key === "metrics") && listed.length && !types.has("object")) {
      node = el("select", { id, multiple: true, size: String(Math.min(6, listed.length)), required }, listed.map((one) => el("option", { value: String(one) }, String(one))));
    } else if (!own && listed.length && types.has("string") && !types.has("object") && nodes.every((one) => one.enum || one.const !== undefined || names.length)) {
      node = el("select", { id, required }, el("option", { value: "" }, "default"), listed.map((one) => el("option", { value: String(one) }, String(one))));
      inputs.read = (text) => text;
    } else if (!own && types.size === 1 && types.has("string")) {
      node = el("input", { id, required, autocomplete: "off", spellcheck: "false" });
      inputs.read = (text) => text;
    } else {
      const hint = key === "matrix" ? '{ judge = ["strict"] }' : types.has("object") ? '{ key = "value" }' : types.has("array") ? '["a", "b"]' : '"text"';
      node = el("input", { id, required: required && !own, value: before, placeholder: `TOML, such as ${hint}`, autocomplete: "off", spellcheck: "false", class: "toml" });
      inputs.read = (toml) => ({ toml });
    }
    const read = () => {
      if (node.multiple) return node.selectedOptions.length ? [...node.selectedOptions].map((option) => option.value) : undefined;
      const text = node.value.trim();
      return text === "" || (own && text === before) ? undefined : inputs.read(text);
    };
    const doc = about.split(/(?<=\.)\s/)[0];
    return { key, required, value: read, node: el("label", { class: "field" }, el("span", {}, el("b", {}, key), required && !own ? " (required)" : ""), node, doc ? el("small", {}, mbt.foreign(doc)) : null) };
  };
})();
