"use strict";
// The view of one question and its traces.

(() => {
  const { el, foreign } = mbt;
  const LONG = 6000;
  const PHASES = ["understanding and filtering", "planning", "execution and monitoring", "self-correction", "verification"];

  /** Text of any length; very long text is cut until the reader expands it. */
  const longText = (text, tag, props) => {
    if (text.length <= LONG) return foreign(text, tag, props);
    const node = foreign(text.slice(0, LONG), tag, props);
    const more = el("button", { type: "button", class: "more" }, `show ${mbt.count(text.length - LONG)} more characters`);
    more.addEventListener("click", () => node.replaceChildren(text));
    node.append("… ", more);
    return node;
  };

  mbt.question = (question, set) => {
    const supporting = new Set((question.supporting || []).map((s) => `${s.sentence} ${s.title}`));
    const titles = new Set((question.supporting || []).map((s) => s.title));
    const documents = question.context || [];
    const open = documents.length > 0 && documents.length <= 4;
    return el("section", { class: "card question" },
      el("p", { class: "where" },
        [set.benchmark, set.split, question.difficulty, question.hops ? `${question.hops} hops` : null, question.question_type].filter(Boolean).join(" · "),
        " · ", foreign(question.question_id)),
      foreign(question.question, "h2"),
      question.answer || (question.answer_aliases || []).length
        ? el("p", { class: "gold" }, el("span", { class: "tag good" }, "gold answer"), " ", foreign(question.answer, "strong"),
            (question.answer_aliases || []).length ? [" — also ", question.answer_aliases.map((alias, k) => [k ? ", " : "", foreign(alias)])] .flat(3) : null)
        : null,
      documents.length
        ? el("details", { class: "documents", open },
            el("summary", {}, `${documents.length} documents, ${documents.filter((d) => titles.has(d.title)).length} of them supporting`),
            el("ol", { start: "0" }, documents.map((document) => {
              const supports = titles.has(document.title);
              return el("li", { class: supports ? "supporting" : null },
                el("h4", {}, foreign(document.title), supports ? el("span", { class: "tag good" }, "supporting") : null),
                el("p", { dir: "auto" }, document.sentences.flatMap((sentence, k) =>
                  [supporting.has(`${k} ${document.title}`) ? foreign(sentence.trim(), "mark") : foreign(sentence.trim()), " "])));
            })))
        : null);
  };

  /** The first verdict that has a value in a column. */
  const verdictWith = (record, column) =>
    record.verdicts.find((v) => v.said[column] !== null && v.said[column] !== undefined);

  const marks = (record) => {
    const verdict = verdictWith(record, "answer_paragraph");
    return verdict ? verdict.said : null;
  };

  const phases = (record) => {
    const verdict = verdictWith(record, "l_obs");
    if (!verdict) return null;
    const seen = new Set(verdict.said.phases || []);
    return el("div", { class: "phases" },
      el("span", { class: "level" }, `level ${verdict.said.l_obs} of 5`),
      el("ol", { "aria-label": "Phases" }, PHASES.map((name, k) =>
        el("li", { class: seen.has(k + 1) ? "seen" : "unseen" },
          el("span", { "aria-hidden": "true" }, seen.has(k + 1) ? "● " : "○ "), name,
          el("span", { class: "hidden" }, seen.has(k + 1) ? " (shown)" : " (not shown)")))));
  };

  const paragraphs = (record, marked) => {
    const redundant = new Set(marked ? marked.redundant_paragraphs : []);
    const reached = marked ? marked.answer_paragraph : 0;
    if (!record.paragraphs.length) return el("p", { class: "empty" }, record.failure ? "No reply." : "No trace: the model answered directly.");
    return el("ol", { class: "paragraphs" }, record.paragraphs.map((text, k) => {
      const names = [
        k + 1 === reached ? ["reached", "answer reached"] : null,
        redundant.has(k + 1) ? ["redundant", "redundant"] : null,
      ].filter(Boolean);
      return el("li", { class: names.map(([name]) => name).join(" ") || null },
        names.map(([name, words]) => el("span", { class: `tag ${name}` }, words)),
        longText(text, "p"));
    }));
  };

  const summaryOfMarks = (marked, count) => marked
    ? el("p", { class: "where" }, marked.answer_paragraph
        ? `answer reached in paragraph ${marked.answer_paragraph} of ${count}, ${marked.redundant_paragraphs.length} redundant`
        : `the answer is never reached; ${marked.redundant_paragraphs.length} of ${count} paragraphs redundant`)
    : null;

  const said = (verdict) => Object.entries(verdict.said)
    .filter(([name, value]) => value !== null && value !== undefined && name !== "tasks")
    .map(([name, value]) => `${name} ${Array.isArray(value) ? `[${value.join(", ")}]` : value}`).join(" · ");

  // --- verdicts of verifiers: value, whether it passed, and the parts: rules or tests

  const SHOWN_PARTS = 12;
  const isRule = (verdict) => Array.isArray(verdict.said.parts);

  const passed = (is) => el("span", { class: `tag ${is ? "good" : "bad"}` }, is ? "passed" : "not passed");

  /** Whether a verdict or a part passes once formatting is removed, where that is another answer. */
  const loosely = ({ passed: strict, passed_loose: loose }) =>
    loose === null || loose === undefined || loose === strict ? null : el("span", { class: "tag warn" }, "passed loosely");

  const outcome = ({ said: found }) => {
    const right = found.parts.filter((part) => part.passed).length;
    const facts = [
      found.parts.length ? `${mbt.count(right)} of ${mbt.count(found.parts.length)} parts` : null,
      found.value === 0 || found.value === 1 ? null : `value ${found.value.toFixed(3)}`,
      found.cpu_seconds ? `${found.cpu_seconds.toFixed(2)} s CPU` : null,
    ].filter(Boolean).join(" · ");
    return [passed(found.passed), " ", loosely(found), facts ? ` ${facts}` : null];
  };

  const partList = (parts) => el("ul", { class: "parts" }, parts.map((part) => el("li", {},
    passed(part.passed), loosely(part), el("code", {}, foreign(part.name)), part.detail ? foreign(part.detail) : null)));

  /** All parts; of many, those that passed are folded. */
  const parts = ({ said: found }) => {
    if (found.parts.length <= SHOWN_PARTS) return found.parts.length ? partList(found.parts) : null;
    const [right, wrong] = [true, false].map((is) => found.parts.filter((part) => part.passed === is));
    return [wrong.length ? partList(wrong) : null, right.length
      ? el("details", {}, el("summary", {}, `${mbt.count(right.length)} parts that passed`), partList(right)) : null];
  };

  const output = ({ said: found }) => found.output
    ? el("details", { class: "output" }, el("summary", {}, "Last output of the program"), longText(found.output, "pre", { class: "reply" }))
    : null;

  // --- tasks of an investigation, each with its finding

  const tasks = ({ said: found }) => (found.tasks || []).length
    ? el("ol", { class: "tasks" }, found.tasks.map((one) => el("li", {}, foreign(one.task, "p"), longText(one.finding, "p", { class: "where" }))))
    : null;

  // --- evidence token by token: how much likelier each token of a text is after what was given

  const LEVELS = [0.1, 0.5, 1.5];

  /** The class of a difference in nats: up or down, in three strengths; null for next to none. */
  const heatOf = (nats) => {
    const level = LEVELS.filter((least) => Math.abs(nats) >= least).length;
    return level ? `${nats > 0 ? "up" : "down"}${level}` : null;
  };

  const scored = (verdict) => {
    try {
      const { tokens, logprobs } = JSON.parse(verdict.reply);
      return Array.isArray(tokens) && Array.isArray(logprobs) && tokens.length === logprobs.length ? { tokens, logprobs } : null;
    } catch {
      return null;
    }
  };

  /** Pairs of verdicts on one text, with something given (`sign` 1) and without (-1). */
  const pairs = (record) => {
    const found = new Map();
    for (const verdict of record.verdicts) {
      const { sign, trial } = verdict.said;
      if (verdict.failure || (sign !== 1 && sign !== -1)) continue;
      const key = `${verdict.judge} ${trial} ${verdict.vote}`;
      if (!found.has(key)) found.set(key, { judge: verdict.judge, task: verdict.said.task });
      found.get(key)[sign] = scored(verdict);
    }
    return [...found.values()].filter((pair) => pair[1] && pair[-1]
      && pair[1].tokens.length === pair[-1].tokens.length && pair[1].tokens.every((token, k) => token === pair[-1].tokens[k]));
  };

  const evidence = (record, cell) => {
    const all = pairs(record);
    if (!all.length) return null;
    return el("details", { class: "evidence", open: all.length <= 3 },
      el("summary", {}, "Evidence token by token"),
      el("p", { class: "where" }, "Green tokens are likelier with what was given than without, red ones less likely; the number of a token is in nats."),
      el("ul", {}, all.map((pair) => {
        const nats = pair[1].logprobs.map((value, k) => value - pair[-1].logprobs[k]);
        const total = nats.reduce((sum, value) => sum + value, 0);
        return el("li", {},
          el("p", { class: "where" }, `${cell.judges[pair.judge].judge}: ${mbt.signed(total)} nats, ${mbt.signed(total / nats.length)} a token`),
          pair.task ? foreign(pair.task, "p") : null,
          el("p", { class: "heat", dir: "auto" }, pair[1].tokens.map((token, k) =>
            el("span", { class: heatOf(nats[k]), title: `${mbt.signed(nats[k])} nats` }, token))));
      })));
  };

  const verdicts = (record, cell) => {
    if (!record.verdicts.length) return null;
    return el("div", { class: "verdicts" }, el("h4", {}, "Verdicts"), record.verdicts.map((verdict) => {
      const judge = cell.judges[verdict.judge];
      const votes = record.verdicts.filter((v) => v.judge === verdict.judge).length;
      const rule = !verdict.failure && isRule(verdict);
      return el("details", { open: rule && !verdict.said.passed && verdict.said.parts.length > 0 },
        el("summary", {}, el("strong", {}, judge.judge), votes > 1 ? ` vote ${verdict.vote + 1}` : "",
          " — ", verdict.failure ? el("span", { class: "tag bad" }, "failed") : rule ? outcome(verdict) : said(verdict) || "nothing to judge"),
        el("p", { class: "where" }, verdict.asked && judge.model ? `by ${judge.model}` : "decided by a rule, without a model"),
        verdict.failure ? el("p", { class: "bad" }, foreign(verdict.failure)) : null,
        ...(rule ? [parts(verdict), output(verdict)].flat() : []),
        tasks(verdict),
        verdict.reply ? longText(verdict.reply, "pre", { class: "reply" }) : null);
    }));
  };

  const reply = (record) => {
    const whole = !record.within && !record.before;
    if (whole) return null;
    const body = record.within
      ? [record.before ? longText(record.before, "pre") : null, el("p", { class: "where" }, "[the trace above]"), record.after ? longText(record.after, "pre") : null]
      : [longText(record.before, "pre")];
    return el("details", { class: "sent", open: !record.within && record.before.length < 1200 }, el("summary", {}, "Raw reply"), body);
  };

  // --- the steps of a program, as a tree: programs that it ran side by side are branches

  /** The steps of a branch, in order: steps, and its own branches as { key, children }. */
  const treeOf = (steps) => {
    const root = { key: "", children: [], branches: new Map() };
    for (const step of steps) {
      let node = root;
      for (let depth = 2; depth < step.path.length; depth += 2) {
        const key = step.path.slice(0, depth).join(".");
        if (!node.branches.has(key)) {
          const branch = { key, children: [], branches: new Map() };
          node.branches.set(key, branch);
          node.children.push(branch);
        }
        node = node.branches.get(key);
      }
      node.children.push({ step });
    }
    return root;
  };

  const stepsIn = (node) => node.step ? [node.step] : node.children.flatMap(stepsIn);

  const stepNode = ({ step }) => {
    const tokens = step.completion_tokens === null ? null : `${mbt.count(step.completion_tokens)} tokens`;
    const from = step.parents.length ? `built on ${step.parents.join(", ")}` : null;
    const facts = [tokens, step.finish_reason ? `finish ${step.finish_reason}` : null, from,
      step.trainable ? null : "not trained on"].filter(Boolean).join(" · ");
    return el("li", {}, el("details", { class: "step" },
      el("summary", {},
        el("span", { class: "where" }, `${step.step} `), foreign(step.name, "strong"),
        step.role ? el("span", { class: "tag none role" }, foreign(step.role)) : null,
        " ", el("span", { class: "where" }, "by ", foreign(step.model)),
        step.failure ? el("span", { class: "tag bad" }, "failed")
          : step.is_unread ? el("span", { class: "tag warn" }, "unread")
          : step.read !== null ? el("span", { class: "tag good read" }, foreign(step.read)) : null,
        step.is_answer ? el("span", { class: "tag good" }, "the answer") : null),
      el("p", { class: "where" }, facts),
      step.failure ? el("p", { class: "bad" }, foreign(step.failure)) : null,
      longText(step.reply || "", "pre", { class: "reply" })));
  };

  const treeNode = (node) => {
    if (node.step) return stepNode(node);
    const inside = stepsIn(node);
    const names = [...new Set(inside.map((step) => step.name))];
    return el("li", {}, el("details", { class: "branch", open: inside.length <= 4 },
      el("summary", {}, `branch ${node.key}: `, foreign(names.join(", ")),
        el("span", { class: "where" }, ` ${inside.length === 1 ? "1 step" : `${inside.length} steps`}`)),
      el("ul", { class: "steps" }, node.children.map(treeNode))));
  };

  const steps = (record) => {
    const all = record.steps || [];
    if (!all.length) return null;
    const unread = all.filter((step) => step.is_unread).length;
    return el("details", { class: "program" },
      el("summary", {}, `${mbt.count(all.length)} steps of the program`,
        unread ? el("span", { class: "tag warn" }, `${unread} unread`) : null),
      el("ul", { class: "steps" }, treeOf(all).children.map(treeNode)));
  };

  const OUTCOME = { true: ["good", "right"], false: ["bad", "wrong"], undefined: ["none", "not judged"] };

  mbt.verdictTag = (cell, row, by) => {
    const [kind, words] = OUTCOME[mbt.right(cell, row, by)];
    return el("span", { class: `tag ${kind}` }, words);
  };

  /** The trace of one method, as a column. */
  mbt.trace = (record, cell, row, context) => {
    const marked = marks(record);
    const facts = [
      record.completion_tokens !== null ? `${mbt.count(record.completion_tokens)} tokens` : null,
      record.finish ? `finish ${record.finish}` : null,
      record.attempts > 1 ? `${record.attempts} attempts` : null,
      record.seconds ? `${record.seconds.toFixed(1)} s` : null,
      record.seed !== null ? `seed ${record.seed}` : null,
    ].filter(Boolean).join(" · ");
    return el("article", { class: "card trace", "aria-label": `Trace of ${context.label}` },
      el("header", {},
        el("h3", {}, el("span", { class: "side" }, context.side), context.label),
        mbt.verdictTag(cell, row, context.by),
        mbt.has(cell, row, "cut") ? el("span", { class: "tag warn" }, "truncated") : null,
        mbt.has(cell, row, "failed") ? el("span", { class: "tag bad" }, "failed") : null),
      el("p", { class: "where" }, context.samples, facts),
      record.failure ? el("p", { class: "bad" }, foreign(record.failure)) : null,
      el("p", { class: "final" }, el("span", { class: "tag none" }, "answer"), " ",
        (record.answer || "").trim() ? foreign(record.answer, "strong") : el("em", {}, "none")),
      phases(record),
      summaryOfMarks(marked, record.paragraphs.length),
      paragraphs(record, marked),
      reply(record),
      evidence(record, cell),
      verdicts(record, cell),
      steps(record),
      el("p", { class: "where" }, el("a", { href: mbt.link("lineage", { cell: cell.address }) }, "lineage"), " · request ", el("code", {}, (record.key || "none").slice(0, 16))));
  };
})();
