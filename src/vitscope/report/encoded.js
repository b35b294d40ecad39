// Maps as the page holds them, a byte per cell: {w, h, low, high, blocks: {block: text}}.
import { bytes } from "./draw.js";

export const blocksOf = (map) => Object.keys(map.blocks).map(Number).sort((a, b) => a - b);
export const valuesOf = (map, block) => Float32Array.from(bytes(map.blocks[block]), (level) => map.low + (level / 255) * (map.high - map.low));
export const scaleOf = (row, map) => ({ low: map.low, high: map.high, table: row.signed ? "diverging" : "sequential" });
