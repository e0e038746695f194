"use strict";
// Filters of the trace browser. They use the index only, so 100,000 traces are filtered at once.

(() => {
  const bits = {};

  /**
   * Prepare the index: the bit of every sign, the signs of every cell as an array, and the methods.
   * A method has a cell on each benchmark; its cells differ in benchmark and split alone.
   */
  mbt.prepare = (index) => {
    if (index.ready) return index;
    index.signs.forEach((sign, bit) => { bits[sign] = 1 << bit; });
    const methods = new Map();
    index.cells.forEach((cell) => {
      cell.count = cell.traces.sample.length;
      cell.signs = Uint16Array.from(cell.traces.signs);
      const { benchmark, split, ...others } = cell.axes;
      const key = JSON.stringify([cell.stage, Object.entries(others).sort()]);
      if (!methods.has(key)) methods.set(key, { number: methods.size, cells: new Map() });
      cell.method = methods.get(key).number;
      if (cell.count) methods.get(key).cells.set(cell.set, cell);
    });
    index.methods = [...methods.values()];
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
   * `wanted`: set, a, b (numbers, or -1 for all sets, any method, no second), difficulty, outcome,
   * show, by, text.
   */
  mbt.filter = (index, wanted) => {
    const found = { cell: [], row: [], other: [] };
    const fits = OUTCOMES[wanted.outcome] || OUTCOMES.any;
    const shows = SHOWS[wanted.show] || SHOWS.all;
    const text = (wanted.text || "").toLowerCase().trim();
    index.cells.forEach((cell, number) => {
      if (wanted.a >= 0 && cell.method !== wanted.a) return;
      if (wanted.set >= 0 && cell.set !== wanted.set) return;
      const second = mbt.second(index, wanted, cell);
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

  /** The cell of method B on the benchmark of another cell, if there is one. */
  mbt.second = (index, wanted, cell) => (wanted.b >= 0 ? index.methods[wanted.b].cells.get(cell.set) : undefined);

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

  const verdictTexts = ({ reply, said }) =>
    [reply || "", said.output || "", ...(said.parts || []).map((part) => `${part.name} ${part.detail || ""}`)];

  const AT_ONCE = 8; // chunks that are read side by side

  /**
   * The traces of `found` with the text in their trace, reply or verdicts; reads all their chunks.
   * `progress` gets what was found so far, and the share that was read.
   */
  mbt.searchTexts = async (index, found, text, progress, isOver) => {
    const wanted = text.toLowerCase().trim();
    const hits = new Uint8Array(found.row.length);
    const chunks = new Map();
    for (let k = 0; k < found.row.length; k += 1) {
      const { chunk, at } = mbt.place(index, found.cell[k], found.row[k]);
      if (!chunks.has(chunk)) chunks.set(chunk, []);
      chunks.get(chunk).push([k, at]);
    }
    const kept = () => {
      const columns = { cell: [], row: [], other: [] };
      for (let k = 0; k < hits.length; k += 1) {
        if (hits[k]) for (const name of ["cell", "row", "other"]) columns[name].push(found[name][k]);
      }
      return columns;
    };
    const names = [...chunks.keys()];
    let [next, done, told] = [0, 0, 0];
    const read = async () => {
      while (next < names.length && !isOver()) {
        const name = names[next];
        next += 1;
        const records = mbt.data.get(name) || await mbt.load(name);
        let isHit = false;
        for (const [k, at] of chunks.get(name)) {
          const record = records[at];
          const texts = [...record.paragraphs, record.before, record.after, ...record.verdicts.flatMap(verdictTexts)];
          if (!texts.some((part) => part.toLowerCase().includes(wanted))) continue;
          hits[k] = 1;
          isHit = true;
        }
        done += chunks.get(name).length;
        // the first hit is shown at once
        if (!isOver() && (told ? performance.now() - told > 250 : isHit)) {
          told = performance.now();
          progress(kept(), done / hits.length);
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, read));
    return isOver() ? null : kept();
  };
})();
