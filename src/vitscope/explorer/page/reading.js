// Numbers out of a transfer: attention of a token, maps of a block, what a block would answer.

const plain = (array, from, to) => array.data.subarray(from, to);

// A word that can be seen: line ends and lone spaces are shown.
export const readable = (word) => (word.trim() ? word : word.replaceAll("\n", "⏎").replaceAll(" ", "␣") || "∅");

export class Reading {
  constructor(transfer, facts) {
    this.t = transfer;
    this.facts = facts;
    this.tokens = transfer.tokens;
    this.blocks = facts.blocks;
    this.heads = facts.heads;
    this.prefix = facts.prefix.length;
    this.grid = facts.grid || [1, transfer.tokens];
    this.rows = null; // of one token, where attention is too large for one transfer
  }

  name(number) {
    if (this.t.names && number in this.t.names) return readable(this.t.names[number]).trim();
    return this.facts.classes[number] || String(number);
  }

  // 'the class token', 'the patch in row 3, column 5', '“word”'
  tokenName(token) {
    if (this.t.words.length) return `“${readable(this.t.words[token]).trim()}” (token ${token})`;
    if (token < this.prefix) return `the ${this.facts.prefix[token]} token`;
    const place = token - this.prefix;
    return `the patch in row ${Math.floor(place / this.grid[1])}, column ${place % this.grid[1]}`;
  }

  get hasAttention() { return this.t.whole !== null; }
  hasRows(token) { return this.t.whole || (this.rows !== null && this.rows.token === token); }
  get signedAttention() {
    const a = this.t.whole ? this.t.arrays.attention : this.rows && this.rows.arrays.row;
    return Boolean(a && a.data instanceof Int8Array);
  }

  // Where a token looks in one head: values (N) and what one level of the eight bits is worth.
  looks(block, head, token) {
    const [n, place] = [this.tokens, block * this.heads + head];
    if (!this.t.whole) {
      const step = this.rows.arrays.row_scale.data[place];
      return { values: Float32Array.from(plain(this.rows.arrays.row, place * n, (place + 1) * n), (v) => v * step), step };
    }
    const first = (place * n + token) * n;
    const step = this.t.arrays.scale.data[place * n + token];
    return { values: Float32Array.from(plain(this.t.arrays.attention, first, first + n), (v) => v * step), step };
  }

  // Who looks at a token in one head.
  seenBy(block, head, token) {
    const [n, place] = [this.tokens, block * this.heads + head];
    if (!this.t.whole) {
      const step = this.rows.arrays.column_scale.data[place];
      return { values: Float32Array.from(plain(this.rows.arrays.column, place * n, (place + 1) * n), (v) => v * step), step };
    }
    const { attention, scale } = this.t.arrays;
    const values = new Float32Array(n);
    let step = 0;
    for (let i = 0; i < n; i += 1) {
      const worth = scale.data[place * n + i];
      values[i] = attention.data[(place * n + i) * n + token] * worth;
      step = Math.max(step, worth);
    }
    return { values, step };
  }

  // Mean over heads.
  meanLooks(block, token) {
    if (!this.hasRows(token)) {
      return token === 0 ? { values: plain(this.t.arrays.first, block * this.tokens, (block + 1) * this.tokens), step: 1e-4 } : null;
    }
    const sum = new Float32Array(this.tokens);
    let worth = 0;
    for (let head = 0; head < this.heads; head += 1) {
      const { values, step } = this.looks(block, head, token);
      for (let i = 0; i < sum.length; i += 1) sum[i] += values[i] / this.heads;
      worth += step / this.heads;
    }
    return { values: sum, step: worth };
  }

  // A row of 'logit', 'identifiability' or 'norm': after block `block`, -1 is the embedding.
  map(kind, block) {
    const array = this.t.arrays[kind];
    return array ? plain(array, (block + 1) * this.tokens, (block + 2) * this.tokens) : null;
  }

  // Only what can be drawn on the grid.
  onGrid(values) { return values.subarray(this.prefix, this.prefix + this.grid[0] * this.grid[1]); }

  // The five classes that lead at the last block, as curves over blocks.
  curves(token) {
    const { curves, top } = this.t.arrays;
    const k = curves.shape[2];
    const blocks = curves.shape[0];
    return Array.from({ length: k }, (_, i) => ({
      number: top.data[((blocks - 1) * this.tokens + token) * k + i],
      values: Float32Array.from({ length: blocks }, (_x, b) => curves.data[(b * this.tokens + token) * k + i]),
    }));
  }

  // The five classes that lead after one block.
  top(block, token) {
    const { top, top_logit: logits } = this.t.arrays;
    const k = top.shape[2];
    const first = ((block + 1) * this.tokens + token) * k;
    return Array.from({ length: k }, (_, i) => ({ number: top.data[first + i], logit: logits.data[first + i] }));
  }

  // What the model would answer after a block: {number, of(class): its probability, logit(class)}; of a text only the
  // block's own word and the chosen one are known.
  answer(block) {
    const { readout: array, said, said_p: likely, chosen_p: chosen } = this.t.arrays;
    if (said) {
      const [number, at] = [said.data[block + 1], block + 1];
      return { number, of: (c) => (c === number ? likely.data[at] : c === this.t.chosen ? chosen.data[at] : NaN) };
    }
    if (!array) return null;
    const k = array.shape[1];
    const logits = plain(array, (block + 1) * k, (block + 2) * k);
    let best = 0;
    for (let i = 1; i < k; i += 1) if (logits[i] > logits[best]) best = i;
    let total = 0;
    for (let i = 0; i < k; i += 1) total += Math.exp(logits[i] - logits[best]);
    return { number: best, of: (c) => Math.exp(logits[c] - logits[best]) / total, logit: (c) => logits[c] };
  }

  probability(number) {
    const found = this.t.answers.find(([c]) => c === number);
    if (found) return found[1];
    const last = this.answer(this.blocks - 1);
    return (last && last.of(number)) || 0;
  }
}

// The first block from which `ahead` stays true to the end; its length where the last one is not.
export const settled = (ahead) => {
  let block = ahead.length;
  while (block > 0 && ahead[block - 1]) block -= 1;
  return block;
};
