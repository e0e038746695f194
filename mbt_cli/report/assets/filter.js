"use strict";
// Filters of the trace browser. They use the index only, so 50,000 traces are filtered at once.

(() => {
  const bits = {};

  /** Prepare the index: the bit of every sign, and the signs of every cell as an array. */
  mbt.prepare = (index) => {
    if (index.ready) return index;
    index.signs.forEach((sign, bit) => { bits[sign] = 1 << bit; });
    for (const cell of index.cells) {
      cell.count = cell.traces.sample.length;
      cell.signs = Uint16Array.from(cell.traces.signs);
    }
    index.ready = true;
    return index;
  };

  mbt.has = (cell, row, sign) => (cell.signs[row] & bits[sign]) !== 0;

  /** Whether a trace's answer is right: true, false, or undefined if unknown. */
  mbt.right = (cell, row, by) => {
    const signs = cell.signs[row];
    if (by !== "match" && signs & bits.judged) return (signs & bits.judge_right) !== 0;
    if (by === "judge") return undefined;
    return signs & bits.matched ? (signs & bits.match_right) !== 0 : undefined;
  };

  /** Row of the same question and sample in another cell of the same set, or -1. */
  mbt.partner = (cell, row, other) => {
    if (!other || other.set !== cell.set) return -1;
    if (!other.rowOf) {
      other.rowOf = new Map();
      for (let k = 0; k < other.count; k += 1) {
        other.rowOf.set(other.traces.question[k] * 65536 + other.traces.sample[k], k);
      }
    }
    const found = other.rowOf.get(cell.traces.question[row] * 65536 + cell.traces.sample[row]);
    return found === undefined ? -1 : found;
  };

  const OUTCOMES = {
    any: () => true,
    a_right: (a) => a === true,
    a_wrong: (a) => a === false,
    a_only: (a, b) => a === true && b === false,
    b_only: (a, b) => a === false && b === true,
    both_right: (a, b) => a === true && b === true,
    both_wrong: (a, b) => a === false && b === false,
  };

  const disagrees = (cell, row) => {
    const [judge, match] = [mbt.right(cell, row, "judge"), mbt.right(cell, row, "match")];
    return judge !== undefined && match !== undefined && judge !== match;
  };

  const SHOWS = {
    all: () => true,
    cut: (cell, row) => mbt.has(cell, row, "cut"),
    failed: (cell, row) => mbt.has(cell, row, "failed"),
    no_answer: (cell, row) => mbt.has(cell, row, "no_answer"),
    disagree: (cell, row) => disagrees(cell, row),
    votes_differ: (cell, row) => mbt.has(cell, row, "votes_differ"),
    unread: (cell, row) => mbt.has(cell, row, "unread"),
  };

  const haystack = (set) => {
    set.lower = set.lower || set.question.map((text, k) => `${text}\n${set.gold[k]}\n${set.id[k]}`.toLowerCase());
    return set.lower;
  };

  const answers = (cell) => {
    cell.lower = cell.lower || cell.traces.answer.map((text) => text.toLowerCase());
    return cell.lower;
  };

  /**
   * Matching traces as columns `cell`, `row` and `other` (row of method B, -1 without one).
   * `wanted`: set, a, b (numbers, or -1 for any set, any method, no second), difficulty, outcome,
   * show, by, text.
   */
  mbt.filter = (index, wanted) => {
    const found = { cell: [], row: [], other: [] };
    const fits = OUTCOMES[wanted.outcome] || OUTCOMES.any;
    const shows = SHOWS[wanted.show] || SHOWS.all;
    const second = index.cells[wanted.b];
    const text = (wanted.text || "").toLowerCase().trim();
    index.cells.forEach((cell, number) => {
      if (wanted.a >= 0 ? number !== wanted.a : wanted.set >= 0 && cell.set !== wanted.set) return;
      const set = index.sets[cell.set];
      const [question, inQuestion] = [cell.traces.question, text && haystack(set)];
      const inAnswer = text && answers(cell);
      for (let row = 0; row < cell.count; row += 1) {
        if (wanted.difficulty && set.difficulty[question[row]] !== wanted.difficulty) continue;
        const other = second ? mbt.partner(cell, row, second) : -1;
        if (!shows(cell, row) && !(other >= 0 && shows(second, other))) continue;
        const b = other >= 0 ? mbt.right(second, other, wanted.by) : undefined;
        if (!fits(mbt.right(cell, row, wanted.by), b)) continue;
        if (text && !inQuestion[question[row]].includes(text) && !inAnswer[row].includes(text)) continue;
        found.cell.push(number);
        found.row.push(row);
        found.other.push(other);
      }
    });
    return found;
  };

  /** Name of a trace's chunk, and the trace's place in it. */
  mbt.place = (index, number, row) => {
    const { starts } = index.cells[number];
    let [low, high] = [0, starts.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= row) low = middle;
      else high = middle - 1;
    }
    return { chunk: `traces-${number}-${low}`, at: row - starts[low] };
  };

  /** The traces of `found` with the text in their trace, reply or verdicts; reads all their chunks. */
  mbt.searchTexts = async (index, found, text, progress, isOver) => {
    const wanted = text.toLowerCase().trim();
    const kept = { cell: [], row: [], other: [] };
    for (let k = 0; k < found.row.length; k += 1) {
      const { chunk, at } = mbt.place(index, found.cell[k], found.row[k]);
      const records = mbt.data.has(chunk) ? mbt.data.get(chunk) : await mbt.load(chunk);
      if (isOver()) return null;
      const record = records[at];
      const texts = [...record.paragraphs, record.before, record.after, ...record.verdicts.map((v) => v.reply || "")];
      if (texts.some((part) => part.toLowerCase().includes(wanted))) {
        for (const column of ["cell", "row", "other"]) kept[column].push(found[column][k]);
      }
      if (k % 500 === 0) progress(k, found.row.length);
    }
    return kept;
  };
})();
