"use strict";
// Weights: unpacked, said as numbers, turned into colours. Nothing here touches the document.

/**
 * One head's weights, as packing.py packs them.
 *
 * A weight comes from the middle of the cell that it was put into, so each number is known only
 * as exactly as its cell is narrow.
 */
class Weights {
  constructor(values, keyCount, coding) {
    this.values = values;
    this.keyCount = keyCount;
    this.coding = coding;
    this.fineFrom = ((coding.lowFrom - 1) / coding.cells) ** 2;
  }

  at(query, key) {
    return this.values[query * this.keyCount + key];
  }

  /** A weight with the digits that are true: the last one by ±1. Where that is but one digit, how far it may be off. */
  text(weight) {
    if (Number.isNaN(weight)) return "not a number";
    if (weight === 0) return "0";
    const cell = 1 / this.coding.cells / (weight >= this.fineFrom ? 256 : 1);
    const width = 2 * Math.sqrt(weight) * cell; // of the weight's cell: (√w + cell/2)² - (√w - cell/2)²
    const digits = Math.min(6, Math.floor(-Math.log10(width)));
    const text = weight.toFixed(digits);
    if (Number(text) === 0) return `< ${(10 ** -digits).toFixed(digits)}`;
    const significant = text.replace(/^[0.]+/, "").length;
    return significant > 1 || digits === 6 ? text : withMargin(weight, width / 2, digits + 1);
  }
}

/** A number and how far it may be off, its own rounding included. */
function withMargin(number, error, digits) {
  const unit = 10 ** -digits;
  const margin = Math.ceil((error + unit / 2) / unit) * unit;
  return `${number.toFixed(digits)} ± ${margin.toFixed(digits)}`;
}

/** The bytes that base64 stands for. */
function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** What a zlib stream holds. */
async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** A head's weights, from the text that the page holds of them. */
async function unpack(text, queryCount, keyCount, coding) {
  const bytes = await inflated(bytesOf(text));
  const { cells, notANumber, lowFrom } = coding;
  const values = new Float32Array(queryCount * keyCount);
  const middles = new Float32Array(256); // of the cells that have no low byte
  for (let high = 1; high < 256; high++) middles[high] = ((high - 0.5) / cells) ** 2;
  middles[notANumber] = NaN;
  let from = 2 * keyCount;
  let low = from + queryCount * keyCount;
  for (let place = 0; place < keyCount; place++) {
    const key = bytes[2 * place] | (bytes[2 * place + 1] << 8);
    for (let query = 0, to = key; query < queryCount; query++, to += keyCount) {
      const high = bytes[from++];
      if (high < lowFrom) values[to] = middles[high];
      else {
        const root = (high - 1 + (bytes[low++] + 0.5) / 256) / cells;
        values[to] = high === notANumber ? NaN : root * root;
      }
    }
  }
  return new Weights(values, keyCount, coding);
}

/** Keeps what was used last, and forgets what was not used for longest. */
class Recent {
  constructor(most) {
    this.most = most;
    this.kept = new Map(); // a Map remembers in which order its keys came
  }

  /** What is kept under a name, or else made: a promise. One that fails is not kept. */
  get(name, make) {
    let value = this.kept.get(name);
    if (!value) {
      value = make();
      value.catch(() => this.kept.delete(name));
    }
    this.kept.delete(name);
    this.kept.set(name, value);
    if (this.kept.size > this.most) this.kept.delete(this.kept.keys().next().value);
    return value;
  }
}

/** OKLCH as sRGB bytes. Source: Ottosson 2020, "A perceptual color space for image processing". */
function rgbOf(lightness, chroma, hue) {
  const a = chroma * Math.cos(hue);
  const b = chroma * Math.sin(hue);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((light) => {
    const inside = Math.min(1, Math.max(0, light));
    const bent = inside <= 0.0031308 ? 12.92 * inside : 1.055 * inside ** (1 / 2.4) - 0.055;
    return Math.round(255 * bent);
  });
}

/**
 * 256 colours of one hue in even steps of lightness: from the paper to ink, or from the night to light.
 * What is nothing looks like the ground that it lies on, in either scheme.
 */
function palette(dark) {
  const [from, to] = dark ? [0.215, 0.96] : [0.985, 0.27];
  const hue = (dark ? 235 : 255) * (Math.PI / 180);
  return Array.from({ length: 256 }, (_, i) => {
    const t = i / 255;
    const chroma = dark ? 0.012 + 0.125 * Math.sin(Math.PI * t) : 0.003 + 0.15 * Math.sin(Math.PI * 0.8 * t);
    return rgbOf(from + (to - from) * t, chroma, hue);
  });
}
